"""A loaded model's answers against answers computed by hand, one text at a time."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_language_models import tiny_language_model

from firth.data.rows import pack_lists
from firth.errors import CheckpointError, ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, write_model
from firth.inference import embedding, masks, text_scores
from firth.inference.embedding import layer_number
from firth.inference.masks import check_masked
from firth.inference.model import Model, load_model
from firth.inference.text_scores import MinimalPair
from firth.inference.token_vectors import Mix
from firth.models.bert import Bert
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Hidden
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig, EmbeddingConfig, LinearConfig
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "un",
    "##able",
    "##s",
    ".",
    ",",
    "[",
    "]",
    "mask",
    "고양이",
    "##가",
    "앉았다",
    "매트",
    "##에",
]
PIECES = [*SPECIALS, *WORDS]
MOST = 12


def written(folder: Path, system_name: str, task: str = PRETRAINING) -> Path:
    system = SYSTEMS[system_name]
    sizes: dict[str, Any] = {"width": 8, "n_layers": 2}
    if system_name not in ("lstm", "awd-lstm"):
        sizes |= {"n_heads": 2, "max_positions": MOST} | ({} if system_name == "gpt" else {"feed_forward_width": 12})
    encoder = system.encoder(system.config(vocab_size=len(PIECES), **sizes, **system.fixed))
    if task == PRETRAINING:
        objective = system.objective(encoder, system.objective_config())
    else:
        objective = Classifier(encoder, ClassifyConfig(labels=("a", "b")))
    torch.manual_seed(0)
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    folder.mkdir()
    write_model(folder, system_name, task, objective, Tokenizer.from_vocab(PIECES, lowercase=True), {})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    made = {name: written(base / name, name) for name in ("bert", "bert-ltr", "lstm")}
    return made | {"classify": written(base / "classify", "bert", "classify")}


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> Model:
    return load_model(folders["bert"], device="cpu")


def ids_of(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


@torch.no_grad()
def hidden_of(model: Model, row: list[int], layer: int = -1) -> Hidden:
    hidden: Hidden = model.loaded.objective.encoder(pack_lists([row]), keep=(layer,))
    return hidden


# Loading.


def test_loading(folders: dict[str, Path]) -> None:
    made = load_model(folders["bert"])
    assert made.system == "bert"
    assert not made.loaded.objective.training
    assert load_model(str(folders["lstm"]), device="cpu").device == torch.device("cpu")
    with pytest.raises(ConfigError, match="no such model folder"):
        load_model(folders["bert"] / "nowhere")
    with pytest.raises(CheckpointError, match="not a model folder"):
        load_model(folders["bert"].parent)


def test_pieces_of_a_text(model: Model) -> None:
    pieces = model.tokenize("The cats,\t고양이가")
    assert [(p.token, p.start, p.end) for p in pieces] == [
        ("the", 0, 3),
        ("cat", 4, 7),
        ("##s", 7, 8),
        (",", 8, 9),
        ("고양이", 10, 13),
        ("##가", 13, 14),
    ]
    assert [p.id for p in pieces] == ids_of("the", "cat", "##s", ",", "고양이", "##가")
    assert model.tokenize("") == []


# Filling masks.


def expected_blanks(model: Model, row: list[int], top_k: int) -> list[list[tuple[str, float]]]:
    """The softmax over the vocabulary at each mask, sorted."""
    hidden = hidden_of(model, row)
    places = [place for place, piece in enumerate(row) if piece == PIECES.index("[MASK]")]
    with torch.no_grad():
        shares = model.loaded.objective.logits(hidden.top[places]).softmax(1)
    return [sorted(zip(PIECES, share.tolist(), strict=True), key=lambda pair: -pair[1])[:top_k] for share in shares]


@pytest.mark.parametrize(
    ("text", "pieces", "starts"),
    [
        ("the [MASK] sat.", ["the", "[MASK]", "sat", "."], [4]),
        ("[MASK]", ["[MASK]"], [0]),
        ("[MASK] the cat [MASK]", ["[MASK]", "the", "cat", "[MASK]"], [0, 15]),
        ("the [MASK][MASK] cat", ["the", "[MASK]", "[MASK]", "cat"], [4, 10]),
        ("un[MASK]able", ["un", "[MASK]", "[UNK]"], [2]),
        ("고양이가 [MASK] 앉았다.", ["고양이", "##가", "[MASK]", "앉았다", "."], [5]),
        ("  the\t[MASK]\n", ["the", "[MASK]"], [6]),
        ("the [mask] and [MASK]", ["the", "[", "mask", "]", "[UNK]", "[MASK]"], [15]),
        ("[[MASK]]", ["[", "[MASK]", "]"], [1]),
    ],
)
def test_blanks(model: Model, text: str, pieces: list[str], starts: list[int]) -> None:
    blanks = model.fill_mask(text, top_k=4)
    assert [blank.start for blank in blanks] == starts
    assert all(text[start:].startswith("[MASK]") for start in starts)
    for blank, expected in zip(blanks, expected_blanks(model, ids_of("[CLS]", *pieces, "[SEP]"), 4), strict=True):
        assert [c.token for c in blank.candidates] == [piece for piece, _ in expected]
        assert [c.probability for c in blank.candidates] == pytest.approx([p for _, p in expected], rel=1e-5)


def test_many_texts_are_answered_in_order_whatever_the_batches(model: Model) -> None:
    texts = [
        "the [MASK]",
        "고양이가 [MASK] [MASK] 앉았다.",
        "[MASK]",
        "the cat sat on the [MASK] .",
        "un [MASK]",
    ] * 2
    alone = [model.fill_mask(text) for text in texts]
    for budget in (1, 10, 30, 4096):
        together = replace(model, budget_tokens=budget).fill_mask(texts)
        for one, other in zip(together, alone, strict=True):
            assert [b.start for b in one] == [b.start for b in other]
            for x, y in zip(one, other, strict=True):
                assert [c.probability for c in x.candidates] == pytest.approx(
                    [c.probability for c in y.candidates], rel=1e-4
                )
                assert [c.token for c in x.candidates] == [c.token for c in y.candidates]


def test_masks_are_predicted_some_at_a_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the [MASK] [MASK] [MASK]", "[MASK] cat [MASK]"]
    expected = model.fill_mask(texts)
    sizes = list[int]()
    logits = model.loaded.objective.logits
    monkeypatch.setattr(model.loaded.objective, "logits", lambda rows: (sizes.append(len(rows)), logits(rows))[1])
    monkeypatch.setattr(masks, "_AT_ONCE", 2)
    found = model.fill_mask(texts)
    assert sizes == [2, 2, 1]
    for one, other in zip(found, expected, strict=True):
        assert [blank.start for blank in one] == [blank.start for blank in other]
        for x, y in zip(one, other, strict=True):
            assert [c.token for c in x.candidates] == [c.token for c in y.candidates]


def test_probabilities_of_the_whole_vocabulary_add_up(model: Model) -> None:
    (blank,) = model.fill_mask("the [MASK]", top_k=len(PIECES))
    assert sum(c.probability for c in blank.candidates) == pytest.approx(1)
    assert sorted(c.token for c in blank.candidates) == sorted(PIECES)
    assert model.fill_mask([]) == []


def test_texts_that_cannot_be_filled(model: Model) -> None:
    for text in ("the cat", "", "[mask]", "[MASK"):
        with pytest.raises(InputError, match=r"has no \[MASK\]"):
            model.fill_mask(text)
    with pytest.raises(InputError, match="'the cat' has no"):
        model.fill_mask(["[MASK]", "the cat"])
    with pytest.raises(LengthError, match=f"has {MOST + 1} tokens, the model reads at most {MOST}"):
        model.fill_mask("the " * (MOST - 2) + "[MASK]")
    assert len(model.fill_mask("the " * (MOST - 3) + "[MASK]")) == 1
    for top_k in (0, len(PIECES) + 1):
        with pytest.raises(ConfigError, match=f"top_k={top_k}: expected 1 to {len(PIECES)}"):
            model.fill_mask("[MASK]", top_k=top_k)


@pytest.mark.parametrize("name", ["bert-ltr", "lstm", "classify"])
def test_models_that_have_not_learnt_to_fill_blanks_say_so(folders: dict[str, Path], name: str) -> None:
    with pytest.raises(ConfigError, match="cannot fill masks: .* such as firth fill-mask firth-mini-en TEXT"):
        load_model(folders[name], device="cpu").fill_mask("[MASK]")


def test_a_fine_tuned_model_names_the_one_that_fills_masks(folders: dict[str, Path]) -> None:
    tuned = load_model(folders["classify"], device="cpu").loaded
    for base, named in (("runs/a", "runs/a"), ("firth-mini-ko", "firth-mini-ko"), ("bert-tiny", "firth-mini-en")):
        of_base = replace(tuned, provenance={"recipe": {"model": base}})
        with pytest.raises(ConfigError, match=f"such as firth fill-mask {named} TEXT"):
            check_masked(of_base, 1)


# Vectors.

SHORT, KOREAN, LONG = "the cat sat", "고양이가 매트에 앉았다.", "the cat sat on mat . " * 4
LONG_IDS = ids_of("the", "cat", "sat", "on", "mat", ".") * 4


def bert_row(ids: list[int]) -> list[int]:
    return [*ids_of("[CLS]"), *ids, *ids_of("[SEP]")]


def pooled_by_hand(model: Model, windows: list[list[int]], layer: int, pool: str) -> np.ndarray:
    """Collect all tokens of all windows in one table, then pool."""
    states = [hidden_of(model, window, layer) for window in windows]
    if pool == "summary":
        return torch.stack([s.summary[0] for s in states if s.summary is not None]).mean(0).numpy()
    table = torch.cat([s.top for s in states])
    choices = {"mean": table.mean(0), "max": table.amax(0), "first": table[0], "last": table[-1]}
    return choices[pool].numpy()


@pytest.mark.parametrize("pool", ["mean", "max", "first", "last", "summary"])
@pytest.mark.parametrize("layer", [-1, -2, 0, 1])
def test_vectors_by_hand(model: Model, layer: int, pool: Any) -> None:
    if pool == "summary" and layer != -1:
        with pytest.raises(ConfigError, match=f"only at the top layer: leave out layer {layer}, or choose"):
            model.embed(SHORT, layer, pool)
        return
    room = MOST - 2
    windows = {
        SHORT: [bert_row(ids_of("the", "cat", "sat"))],
        KOREAN: [bert_row(ids_of("고양이", "##가", "매트", "##에", "앉았다", "."))],
        LONG: [bert_row(LONG_IDS[i : i + room]) for i in range(0, len(LONG_IDS), room)],
        "": [bert_row([])],
    }
    assert [len(parts) for parts in windows.values()] == [1, 1, 3, 1]
    vectors = model.embed(list(windows), layer, pool)
    assert vectors.shape == (4, 8) and vectors.dtype == np.float32
    for vector, parts in zip(vectors, windows.values(), strict=True):
        np.testing.assert_allclose(vector, pooled_by_hand(model, parts, layer, pool), rtol=0, atol=1e-5)


def test_vectors_come_in_the_order_of_the_texts_whatever_the_batches(model: Model) -> None:
    texts = [LONG, SHORT, "", KOREAN, "cat", LONG + SHORT, "mat"] * 2
    alone = np.stack([model.embed(text) for text in texts])
    for budget in (1, 15, 4096):
        narrow = replace(model, budget_tokens=budget)
        np.testing.assert_allclose(narrow.embed(texts), alone, rtol=0, atol=1e-5)
        for at_once in (1, 3):
            np.testing.assert_allclose(
                np.stack(list(narrow.embed_stream(iter(texts), at_once=at_once))), alone, atol=1e-5
            )


def test_shapes_of_vectors(model: Model) -> None:
    assert model.embed(SHORT).shape == (8,)
    assert model.embed([SHORT]).shape == (1, 8)
    empty = model.embed([])
    assert empty.shape == (0, 8) and empty.dtype == np.float32
    # The mean over all tokens of all windows, not the mean of window means.
    exact = pooled_by_hand(model, [bert_row(LONG_IDS[i : i + 10]) for i in (0, 10, 20)], -1, "mean")
    np.testing.assert_allclose(model.embed(LONG), exact, atol=1e-5)


def test_no_vectors_are_as_wide_as_others(tmp_path: Path) -> None:
    made = load_model(written(tmp_path / "a", "awd-lstm"), device="cpu")
    for pool, width in (("summary", 24), ("mean", 8)):
        assert made.embed([], pool=pool).shape == (0, width)  # type: ignore[arg-type]  # pools
        assert made.embed([SHORT], pool=pool).shape == (1, width)  # type: ignore[arg-type]
    own = replace(made, loaded=replace(made.loaded, embedding=EmbeddingConfig(pool="summary")))
    assert own.embed([]).shape == (0, 24)


def test_a_stream_is_read_as_it_is_asked_for(model: Model) -> None:
    taken = []

    def texts() -> Any:
        for text in (SHORT, KOREAN, "cat", "mat"):
            taken.append(text)
            yield text

    stream = model.embed_stream(texts(), at_once=2)
    next(stream)
    assert taken == [SHORT, KOREAN]
    assert len(list(stream)) == 3


def test_long_texts_are_read_a_few_at_a_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [SHORT, KOREAN, "cat", "mat"]
    expected = model.embed(texts), [score.log_probability for score in model.score_texts(texts)]
    monkeypatch.setattr(embedding, "MOST_CHARACTERS", 1)
    monkeypatch.setattr(text_scores, "MOST_CHARACTERS", 1)
    for ask in (model.embed_stream, model.score_stream):
        taken = []

        def reading(taken: list[str] = taken) -> Any:
            for text in texts:
                taken.append(text)
                yield text

        next(ask(reading()))
        assert taken == texts[:1]
    np.testing.assert_allclose(model.embed(texts), expected[0], atol=1e-6)
    assert [score.log_probability for score in model.score_texts(texts)] == pytest.approx(expected[1], abs=1e-4)


@pytest.mark.parametrize("layer", [3, -4, 100])
def test_layers_that_do_not_exist_are_named(model: Model, layer: int) -> None:
    for texts in ([SHORT], []):
        with pytest.raises(
            ConfigError, match=rf"layer {layer}: this model has layers 0 \(embeddings\) to 2, or -1 to -3"
        ):
            model.embed(texts, layer)


@pytest.mark.unchecked
def test_pools_that_do_not_exist_are_named(model: Model) -> None:
    with pytest.raises(ConfigError, match="pool 'median': expected one of mean, max, first, last, summary"):
        model.embed(SHORT, pool="median")  # type: ignore[arg-type]


def test_a_summary_that_nothing_taught_is_refused(folders: dict[str, Path]) -> None:
    without: dict[str, Any] = {"recipe": {"objective.next_sentence": False}}
    bert, tuned, ltr = (load_model(folders[name], device="cpu") for name in ("bert", "classify", "bert-ltr"))
    read_apart = Classifier(
        tuned.loaded.objective.encoder, ClassifyConfig(labels=("a", "b"), network=LinearConfig(pool="mean"))
    )
    for loaded in (
        replace(bert.loaded, provenance=without),
        replace(tuned.loaded, objective=read_apart.eval(), provenance={"base": {"provenance": without}}),
        ltr.loaded,
    ):
        with pytest.raises(ConfigError, match="trained without its summary vector: choose another pool"):
            replace(bert, loaded=loaded).embed(SHORT, pool="summary")
    # This one's task has trained it.
    learnt = replace(tuned.loaded, provenance={"base": {"provenance": without}})
    assert replace(tuned, loaded=learnt).embed(SHORT, pool="summary").shape == (8,)


@pytest.mark.parametrize("name", ["bert", "lstm", "classify"])
@pytest.mark.parametrize("pool", ["mean", "max", "first", "last", "summary"])
def test_every_system_has_vectors(folders: dict[str, Path], name: str, pool: Any) -> None:
    made = load_model(folders[name], device="cpu")
    ids = ids_of("the", "cat", "sat")
    row = [*ids, *ids_of("[SEP]")] if name == "lstm" else bert_row(ids)
    np.testing.assert_allclose(made.embed(SHORT, pool=pool), pooled_by_hand(made, [row], -1, pool), rtol=0, atol=1e-5)
    assert made.embed("", pool=pool).shape == (8,)


@pytest.mark.parametrize("pool", ["mean", "first", "last", "summary"])
def test_a_model_reads_as_it_was_pretrained_until_it_has_learnt_more(tmp_path: Path, pool: Any) -> None:
    """GPT saw no special token in pre-training; after fine-tuning it reads texts between two of them."""
    bare, tuned = (
        load_model(written(tmp_path / task, "gpt", task), device="cpu") for task in (PRETRAINING, "classify")
    )
    ids, room = ids_of("the", "cat", "sat"), MOST - 2
    for made, row in ((bare, ids), (tuned, bert_row(ids))):
        np.testing.assert_allclose(made.embed(SHORT, pool=pool), pooled_by_hand(made, [row], -1, pool), atol=1e-5)
        # A text without tokens consists of special tokens alone.
        expected = pooled_by_hand(made, [bert_row([])], -1, pool)
        np.testing.assert_allclose(made.embed(["", SHORT, " "], pool=pool)[[0, 2]], [expected] * 2, atol=1e-5)
    windows = [LONG_IDS[i : i + MOST] for i in range(0, len(LONG_IDS), MOST)]
    np.testing.assert_allclose(bare.embed(LONG, pool=pool), pooled_by_hand(bare, windows, -1, pool), atol=1e-5)
    windows = [bert_row(LONG_IDS[i : i + room]) for i in range(0, len(LONG_IDS), room)]
    np.testing.assert_allclose(tuned.embed(LONG, pool=pool), pooled_by_hand(tuned, windows, -1, pool), atol=1e-5)


def test_a_model_without_position_limit_reads_any_length_at_once(folders: dict[str, Path]) -> None:
    made = load_model(folders["lstm"], device="cpu")
    row = [*LONG_IDS * 5, *ids_of("[SEP]")]
    np.testing.assert_allclose(made.embed(LONG * 5, pool="last"), pooled_by_hand(made, [row], -1, "last"), atol=1e-5)


def test_answering_leaves_no_gradients(model: Model) -> None:
    model.embed(SHORT)
    model.fill_mask("[MASK]")
    assert all(p.grad is None for p in model.loaded.objective.parameters())


def test_a_model_with_room_for_special_tokens_alone_reads_no_text() -> None:
    loaded = tiny_language_model("bert").loaded
    config = replace(loaded.objective.encoder.config, max_positions=2)
    short = replace(loaded, objective=MaskedLM(Bert(config), loaded.objective.config))
    made = Model(short, torch.device("cpu"))
    for ask in (made.embed, made.vectors):
        with pytest.raises(ConfigError, match="at most 2 tokens, of which 2 are special: no text fits"):
            ask(["a1"])


def test_a_model_that_computes_no_numbers_answers_nothing() -> None:
    made = tiny_language_model("bert")
    made.loaded.objective.encoder.embeddings.norm.weight.data[0] = torch.nan
    pairs = [MinimalPair("a1 b2", "b2 a1")]
    asked: list[Callable[[], Any]] = [
        lambda: made.embed("a1 b2"),
        lambda: made.vectors("a1 b2"),
        lambda: made.fill_mask("a1 [MASK] b2"),
        lambda: made.score_texts("a1 b2"),
        lambda: made.follows("a1", "b2"),
        lambda: list(made.prefers_good(pairs)),
    ]
    for ask in asked:
        with pytest.raises(CheckpointError, match="outputs are not finite numbers: its weights are damaged"):
            ask()


def test_a_loaded_model_is_not_copied(model: Model) -> None:
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ConfigError, match="not copied, pickled or given to another process: give its path"):
            copied(model)


@pytest.mark.parametrize("device", ["gpu", "", "mps", "cpu:0", "cuda:x"])
def test_devices_have_names(folders: dict[str, Path], device: str) -> None:
    with pytest.raises(ConfigError, match=r"^device=.*: expected 'cpu', 'cuda' or 'cuda:0'$"):
        load_model(folders["bert"], device=device)


def test_numbers_of_layers_may_be_numpys(model: Model) -> None:
    assert layer_number(model.loaded, np.int64(-2)) == layer_number(model.loaded, -2)
    with pytest.raises(ConfigError, match="layer 1 is one layer, and mix combines several"):
        model.embed("a b", layer=1, mix=Mix(kind="mean"))
