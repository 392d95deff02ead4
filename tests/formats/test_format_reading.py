"""Reading published models, and the errors for files that do not fit."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from network_options import network_of
from published_folders import PIECES, SIZES, drawn, encoder_alone, fine_tuned, masked, publish, weights
from safetensors.torch import save_file

from firth.errors import CheckpointError, ConfigError, TokenizerError
from firth.export.convert import convert
from firth.folder import PRETRAINING, read_model, write_model
from firth.formats.reading import ReadOptions
from firth.formats.table import find_format, open_model, read_format
from firth.inference.model import load_model
from firth.models.bert import Bert
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    EmbeddingConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.text.tokenizer_kinds import SPECIALS

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
PLAIN = network_of(dropout=0.25)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_whole_model(next_sentence: bool, tmp_path: Path) -> None:
    objective = masked(next_sentence=next_sentence)
    found = read_format(find_format(publish(tmp_path / "m", weights(objective))))
    loaded = found.loaded
    assert (loaded.system_name, loaded.task, loaded.untrained) == ("bert", PRETRAINING, ())
    assert loaded.objective.encoder.config == SIZES and not loaded.objective.training
    state = loaded.objective.state_dict()
    assert list(state) == list(objective.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in objective.state_dict().items())
    facts = dict(found.facts)
    assert facts["sizes"].startswith(f"2 layers of width 8, {len(PIECES)} tokens")
    assert facts["text"] == "cased (from the tokens)" and facts["weights"] == "model.safetensors, float32"
    assert loaded.provenance["origin"]["from"] == str(tmp_path / "m")


def test_parts_that_are_not_there_begin_at_random_the_same_each_time(tmp_path: Path) -> None:
    state = {n: t for n, t in encoder_alone(masked()).items() if not n.startswith("pooler.")}
    folder = publish(tmp_path / "m", state, architecture="BertModel")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    found = read_format(find_format(folder))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found.loaded.untrained == ("encoder.pooler", "mlm")
    new = [value for name, value in found.facts if name == "new"]
    assert [value.partition(":")[0] for value in new] == ["the pooler", "the masked-LM head"]
    first, second = found.loaded.objective.state_dict(), open_model(folder).objective.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    pooler = first["encoder.pooler.weight"]
    assert 0 < float(pooler.abs().max()) <= 2 * SIZES.init_range and not first["encoder.pooler.bias"].any()
    assert not first["mlm.bias"].any() and bool((first["mlm.norm.weight"] == 1).all())


def test_what_a_model_has_not_learnt_is_refused_by_name(tmp_path: Path) -> None:
    state = {n: t for n, t in encoder_alone(masked()).items() if not n.startswith("pooler.")}
    model = load_model(publish(tmp_path / "m", state, architecture="BertModel"), device="cpu")
    assert model.embed("the cat").shape == (8,)
    with pytest.raises(ConfigError, match="published without a masked-LM head: it cannot fill masks"):
        model.fill_mask("a [MASK]")
    with pytest.raises(ConfigError, match="trained without its summary vector"):
        model.embed("the cat", pool="summary")
    # The same holds once it is stored as a model folder.
    loaded = open_model(tmp_path / "m")
    (tmp_path / "ours").mkdir()
    write_model(
        tmp_path / "ours",
        "bert",
        PRETRAINING,
        loaded.objective,
        loaded.tokenizer,
        {},
        untrained=loaded.untrained,
        embedding=EmbeddingConfig(pool="max"),
    )
    again = read_model(tmp_path / "ours")
    assert again.untrained == loaded.untrained and again.embedding == EmbeddingConfig(pool="max")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert "not learnt, at random: mlm" in (tmp_path / "ours" / "README.md").read_text()


OPTIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "classify": (
        ClassifyConfig(labels=("a", "b", "c"), network=PLAIN),
        "BertForSequenceClassification",
        {"id2label": {"0": "a", "1": "b", "2": "c"}, "classifier_dropout": 0.25},
    ),
    "multilabel": (
        MultiLabelConfig(labels=("a",), network=PLAIN),
        "BertForSequenceClassification",
        {"id2label": {"0": "a"}, "classifier_dropout": 0.25, "problem_type": "multi_label_classification"},
    ),
    "regress": (RegressConfig(network=PLAIN), "BertForSequenceClassification", {"classifier_dropout": 0.25}),
    "tag": (
        TagConfig(labels=("O", "B-X", "E-X", "S-X"), scheme="BIOES", network=PLAIN),
        "BertForTokenClassification",
        {"id2label": {"0": "O", "1": "B-X", "2": "E-X", "3": "S-X"}, "classifier_dropout": 0.25},
    ),
    "choose": (ChooseConfig(network=PLAIN), "BertForMultipleChoice", {"classifier_dropout": 0.25}),
    "answer": (AnswerConfig(), "BertForQuestionAnswering", {}),
}


@pytest.mark.parametrize("task", list(OPTIONS))
def test_fine_tuned_models(task: str, tmp_path: Path) -> None:
    options, architecture, about = OPTIONS[task]
    objective = fine_tuned(task, options)
    folder = publish(tmp_path / "m", weights(objective, task), architecture=architecture, **about)
    loaded = open_model(folder)
    assert (loaded.task, loaded.untrained, loaded.objective.config) == (task, (), options)
    state = loaded.objective.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in objective.state_dict().items())


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-X", "I-X"], "BIO"),
        (["NOUN", "VERB"], "plain"),
        (["LABEL_0", "LABEL_1"], "plain"),
        (["O", "I-X"], "plain"),
    ],
)
def test_the_scheme_of_a_tagger(labels: list[str], scheme: str, tmp_path: Path) -> None:
    objective = fine_tuned("tag", TagConfig(labels=tuple(labels), scheme="plain"))
    named = {str(i): label for i, label in enumerate(labels)}
    state = weights(objective, "tag")
    loaded = open_model(publish(tmp_path / "m", state, architecture="BertForTokenClassification", id2label=named))
    assert loaded.objective.config.scheme == scheme and loaded.objective.config.labels == tuple(labels)


@pytest.mark.parametrize(
    ("theirs", "ours", "scheme"),
    [(["O", "PER-B", "PER-I"], ("O", "B-PER", "I-PER"), "BIO"), (["O", "U-X", "B-X", "I-X", "L-X"], None, "BIOES")],
)
def test_entity_labels_in_other_spellings(
    theirs: list[str], ours: tuple[str, ...] | None, scheme: str, tmp_path: Path
) -> None:
    objective = fine_tuned("tag", TagConfig(labels=tuple(theirs), scheme="plain"))
    named = {str(i): label for i, label in enumerate(theirs)}
    folder = publish(
        tmp_path / "m", weights(objective, "tag"), architecture="BertForTokenClassification", id2label=named
    )
    config = open_model(folder).objective.config
    assert config.scheme == scheme and config.labels == (ours or ("O", "S-X", "B-X", "I-X", "E-X"))


def test_one_output_without_a_word_about_it_is_a_regression(tmp_path: Path) -> None:
    state = weights(fine_tuned("regress", RegressConfig()), "regress")
    assert open_model(publish(tmp_path / "m", state, architecture="BertForSequenceClassification")).task == "regress"


def changed(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {n: t for n, t in (state | changes).items() if t is not None}


CLASSIFIER = {"classifier.weight": torch.zeros(3, 8), "classifier.bias": torch.zeros(3)}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (changed(surprise=torch.zeros(1)), {}, r"has unknown surprise \(0 missing, 1 unknown"),
        (
            changed(**{"bert.encoder.layer.1.output.dense.bias": None}),
            {},
            r"lacks bert\.encoder\.layer\.1\.output\.dense",
        ),
        (changed(**{"bert.pooler.dense.bias": None}), {}, r"lacks bert\.pooler\.dense\.bias \(1 missing"),
        (changed(**{"cls.predictions.bias": None}), {}, r"lacks cls\.predictions\.bias"),
        (changed(**{"bert.pooler.dense.bias": torch.zeros(7)}), {}, r"dense\.bias has shape \(7,\), expected \(8,\)"),
        (changed(**{"bert.pooler.dense.bias": torch.zeros(8, dtype=torch.int8)}), {}, "quantised weights are not read"),
        (changed(**{"embeddings.LayerNorm.bias": torch.zeros(8)}), {}, "twice, also as embeddings.LayerNorm.bias"),
        (changed(), {"model_type": "roberta"}, "model_type 'roberta': this Firth reads 'bert' and 'openai-gpt'"),
        (changed(), {"position_embedding_type": "relative_key"}, "'relative_key' is not BERT's"),
        (changed(), {"auto_map": {"AutoModel": "x.Y"}}, "auto_map .* is not BERT's"),
        (changed(), {"pruned_heads": {"0": [1]}}, "pruned_heads .* is not BERT's"),
        (changed(), {"hidden_act": "swish"}, "hidden_act 'swish': expected one of"),
        (changed(), {"hidden_size": "8"}, "width = '8': expected int"),
        (changed(), {"hidden_size": 16}, r"says hidden_size 16, but .* has shape \(\d+, 8\)"),
        (changed(), {"type_vocab_size": 1}, "says type_vocab_size 1, but"),
        (changed(), {"max_position_embeddings": 512}, "says max_position_embeddings 512, but"),
        (changed(), {"intermediate_size": 13}, "says intermediate_size 13, but"),
        (changed(), {"num_hidden_layers": 3}, "says num_hidden_layers 3, the weights have 2"),
        (changed(), {"num_hidden_layers": 900}, "says num_hidden_layers 900, the weights have 2"),
        (changed(), {"vocab_size": 10**9}, "says vocab_size 1000000000, but"),
        (changed(), {"num_attention_heads": 3}, "width=8 is not a multiple of n_heads=3"),
        (changed(**CLASSIFIER), {}, "the weights have classifier.weight, so expected one of BertForSequenceCl"),
        (changed(), {"architectures": ["BertForTokenClassification"]}, "says tag, but the weights have no classifier"),
        (changed(**CLASSIFIER), {"architectures": ["BertForTokenClassification"]}, "has unknown cls.predictions"),
        (
            changed(**CLASSIFIER),
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}},
            "id2label: expected the names of 3 labels, 0 to 2",
        ),
        (
            changed(**CLASSIFIER),
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "a", "2": "b"}},
            "without duplicates",
        ),
        (
            changed(**CLASSIFIER),
            {"architectures": ["BertForSequenceClassification"], "problem_type": "ranking"},
            "problem_type 'ranking': expected one of",
        ),
        (
            changed(**CLASSIFIER),
            {"architectures": ["BertForSequenceClassification"], "is_decoder": True},
            "reads left to right would pool a token that knows nothing",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    change: Callable[[dict[str, Any]], dict[str, Any]], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = publish(tmp_path / "m", change(weights(masked())), **config)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def test_no_vocabulary_or_another_one(tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", weights(masked()), vocab=None)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json and no vocab\.txt: .* --vocab FILE --out DIR"):
        open_model(folder)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    loaded = read_format(find_format(folder), ReadOptions(vocab=tmp_path / "vocab.txt")).loaded
    assert loaded.tokenizer.pieces == PIECES
    # The extra token of the last list is a special one.
    for pieces in (PIECES[:-1], [*PIECES, "more"], ["more", *PIECES[len(SPECIALS) :], *SPECIALS]):
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
        with pytest.raises(CheckpointError, match=r"not of one make; give the right vocabulary with .* --vocab FILE"):
            open_model(folder)


def test_rows_up_to_a_round_number_get_names(tmp_path: Path) -> None:
    """Many published models have a few more rows than tokens, for hardware efficiency."""
    size = len(PIECES) + 8 - len(PIECES) % 8
    state = weights(masked())
    word = "bert.embeddings.word_embeddings.weight"
    state[word] = torch.cat([state[word], torch.ones(size - len(PIECES), 8)])
    state["cls.predictions.bias"] = torch.cat([state["cls.predictions.bias"], torch.ones(size - len(PIECES))])
    found = read_format(find_format(publish(tmp_path / "m", state, vocab_size=size)))
    assert found.loaded.tokenizer.pieces[len(PIECES) :] == [f"[row{i}]" for i in range(len(PIECES), size)]
    assert dict(found.facts)["vocabulary"].startswith(f"{size - len(PIECES)} rows of the embedding have no token")


def test_casing_that_nothing_tells(tmp_path: Path) -> None:
    pieces = [*PIECES[:5], *(chr(0xAC00 + i) for i in range(len(PIECES) - 5))]
    folder = publish(tmp_path / "m", weights(masked()), vocab=pieces)
    with pytest.raises(TokenizerError, match="--cased, or --uncased"):
        open_model(folder)
    assert read_format(find_format(folder), ReadOptions(lowercase=True)).loaded.tokenizer.lowercase


KOREAN = [*PIECES[:5], *(chr(0xAC00 + 28 * i) + "가" for i in range(395))]


def korean(folder: Path, **about: Any) -> Path:
    """A Korean model whose tokens are whole syllables."""
    objective = drawn(MaskedLM(Bert(replace(SIZES, vocab_size=len(KOREAN))), MaskedLMConfig()))
    publish(folder, weights(objective), vocab=KOREAN, vocab_size=len(KOREAN))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | about))
    return folder


def test_a_tokenizer_that_cannot_read_the_models_korean_is_told(tmp_path: Path, capsys: Any) -> None:
    bad, good = korean(tmp_path / "bad", do_lower_case=True), korean(tmp_path / "good", do_lower_case=False)
    open_model(good)
    assert capsys.readouterr().err == ""
    open_model(bad)
    said = capsys.readouterr().err
    assert f"{bad}: its tokenizer reads 100% of the Korean words of its own vocabulary as [UNK]" in said
    with pytest.raises(ConfigError, match="--cased; --allow-unknown-hangul converts it as it is"):
        convert(bad, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    facts = convert(bad, tmp_path / "x", allow_unknown_hangul=True).facts
    assert any(name == "warning" and "[UNK]" in value for name, value in facts)
    # Two fixes: the flag, and the file.
    assert not any(name == "warning" for name, _ in convert(bad, tmp_path / "y", lowercase=False).facts)
    convert(korean(tmp_path / "mended", do_lower_case=True, strip_accents=False), tmp_path / "z")


@pytest.mark.parametrize(
    "key", ["hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"]
)
@pytest.mark.parametrize("size", [10**12, 10**30])
def test_sizes_that_no_machine_holds_are_one_line(tmp_path: Path, key: str, size: int) -> None:
    for number, state in enumerate((weights(masked()), {"classifier.weight": torch.zeros(2, 8)})):
        folder = publish(tmp_path / str(number), state, **{key: size})
        with pytest.raises(CheckpointError) as caught:
            open_model(folder)
        assert len(str(caught.value)) < 500


def test_gelu_is_asked_of_google_alone(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(ConfigError, match="is a model in Hugging Face's layout, which needs no gelu"):
        read_format(find_format(publish(tmp_path / "m", weights(masked()))), ReadOptions(gelu="tanh"))
    google = find_format(shared_data / "tf-bert-fixture")
    found = {gelu: read_format(google, ReadOptions(gelu=gelu)).loaded.objective for gelu in ("erf", "tanh", None)}
    assert [found[gelu].encoder.config.activation for gelu in found] == ["gelu", "gelu_tanh", "gelu"]
    a, b = found["erf"].state_dict(), found["tanh"].state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def google_of(shared_data: Path, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    from firth.convert.tf_bundle import read_bundle, write_bundle

    shutil.copytree(shared_data / "tf-bert-fixture", folder)
    prefix = folder / "bert_model.ckpt"
    state = change({name: array.copy() for name, array in read_bundle(prefix).items()})
    for path in folder.glob("bert_model.ckpt.*"):
        path.unlink()
    write_bundle(prefix, state)
    return folder


def test_a_head_of_google_without_its_shape_is_refused(shared_data: Path, tmp_path: Path) -> None:
    import numpy as np

    def change(state: dict[str, Any]) -> dict[str, Any]:
        kept = {name: array for name, array in state.items() if not name.startswith("cls/")}
        return kept | {"output_weights": np.float32(1.0).reshape(()), "output_bias": np.zeros(1, np.float32)}

    with pytest.raises(CheckpointError, match=r"output_weights has shape \(\), expected \(labels, width\)"):
        open_model(google_of(shared_data, tmp_path / "m", change))


@pytest.mark.parametrize("head", ["", "cls/squad/"])
def test_fine_tuned_checkpoints_of_google(head: str, shared_data: Path, tmp_path: Path) -> None:
    import numpy as np

    def change(state: dict[str, Any]) -> dict[str, Any]:
        kept = {n: a for n, a in state.items() if not n.startswith("cls/")}
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        return kept | {f"{head}output_weights": rows, f"{head}output_bias": np.ones(2, np.float32)}

    loaded = open_model(google_of(shared_data, tmp_path / "m", change))
    assert loaded.task == ("answer" if head else "classify")
    assert loaded.objective.state_dict()["head.weight"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    if not head:
        assert loaded.objective.config.labels == ("LABEL_0", "LABEL_1")


def test_a_google_encoder_without_heads(shared_data: Path, tmp_path: Path) -> None:
    folder = google_of(
        shared_data, tmp_path / "m", lambda state: {n: a for n, a in state.items() if not n.startswith("cls/")}
    )
    found = read_format(find_format(folder))
    assert found.loaded.untrained == ("mlm",)
    expected = open_model(shared_data / "tf-bert-fixture").objective.encoder.state_dict()
    state = found.loaded.objective.encoder.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@FUZZ
@given(place=st.integers(0, 10_000), byte=st.integers(32, 126), size=st.integers(0, 10_000) | st.none())
def test_a_changed_configuration(place: int, byte: int, size: int | None, tmp_path: Path) -> None:
    """Gives a model or a one-line error, never anything else."""
    folder = tmp_path / "m"
    if not folder.exists():
        publish(folder, weights(masked()))
        shutil.copy(folder / "config.json", tmp_path / "whole")
    raw = bytearray((tmp_path / "whole").read_bytes())
    raw[place % len(raw)] = byte
    (folder / "config.json").write_bytes(bytes(raw if size is None else raw[:size]))
    try:
        loaded = open_model(folder)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        assert loaded.tokenizer.size == len(PIECES)


_KEYS = (
    "architectures id2label hidden_act is_decoder model_type auto_map problem_type classifier_dropout "
    "num_hidden_layers layer_norm_eps"
)


@pytest.mark.parametrize("key", _KEYS.split())
@pytest.mark.parametrize("value", [None, 3, -1.5, "x", [], [1], [["x"]], {}, {"0": None}, True, 1e400])
def test_odd_values_in_a_configuration(key: str, value: Any, tmp_path: Path) -> None:
    state = weights(fine_tuned("classify", ClassifyConfig(labels=("a", "b"))), "classify")
    folder = publish(tmp_path / "m", state, architecture="BertForSequenceClassification")
    about = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(about))
    try:
        assert open_model(folder).task == "classify"
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_the_source_is_not_held_open(tmp_path: Path) -> None:
    """The model is in memory: later changes to the file do not matter."""
    folder = publish(tmp_path / "m", weights(masked()))
    loaded = open_model(folder)
    before = loaded.objective.state_dict()["encoder.pooler.weight"].clone()
    os.truncate(folder / "model.safetensors", 0)
    assert torch.equal(loaded.objective.state_dict()["encoder.pooler.weight"], before)


def test_float16_is_read_as_float32(tmp_path: Path) -> None:
    objective = masked()
    folder = publish(tmp_path / "m", weights(objective))
    save_file({n: t.half() for n, t in weights(objective).items()}, folder / "model.safetensors")
    found = read_format(find_format(folder))
    for name, tensor in found.loaded.objective.state_dict().items():
        assert torch.equal(tensor, objective.state_dict()[name].half().float())
    assert dict(found.facts)["weights"] == "model.safetensors, float16, read as float32"


def test_the_activation_of_the_configuration_counts(tmp_path: Path) -> None:
    config = open_model(publish(tmp_path / "m", weights(masked()), hidden_act="gelu_new")).objective.encoder.config
    assert config == replace(SIZES, activation="gelu_tanh")
