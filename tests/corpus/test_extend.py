"""Models with an extended vocabulary: what stays, what is new, what is written, and continued pre-training."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import firth.corpus.extend as job
from firth.corpus.extend import extend, extended_objective, mean_rows
from firth.corpus.hold_out import is_held_out
from firth.corpus.prepare import prepare
from firth.data.rows import pack_lists
from firth.data.shards import Corpus
from firth.errors import CheckpointError, ConfigError, InputError
from firth.folder import PRETRAINING, Loaded, read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.pretraining.report import tokens_per_word, write_run_report
from firth.pretraining.run import pretrain, resolve, resume
from firth.systems import SYSTEMS
from firth.tasks.config import ClassifyConfig, TagConfig
from firth.tasks.table import TASKS
from firth.text.added_tokens import greedy_pieces
from firth.text.corpus import CorpusReader
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS
from firth.training.log import read_log
from firth.training.trainer import Trainer

LETTERS = "abcdefghijklmnopqrstuvwxyz심근경색은"
PIECES = [*SPECIALS, *(form for c in LETTERS for form in (c, "##" + c)), ".", "the", "heart", "##ache"]
BERT_SIZES = {"width": 8, "n_layers": 2, "n_heads": 2, "feed_forward_width": 12, "max_positions": 64}
TEXT = "the myocardium of the heart. heartache. 심근경색은 심근"


def silent(_: str) -> None:
    """Print nothing."""


def tokenizer(**look: bool) -> Tokenizer:
    return Tokenizer.from_vocab(PIECES, **{"lowercase": True, **look})


def drawn(objective: Any) -> Any:
    """Sample every parameter, biases too, so that a row taken from the wrong place is detected."""
    torch.manual_seed(0)
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return objective.eval()


def of_system(name: str) -> Any:
    system = SYSTEMS[name]
    known = {f.name for f in fields(system.config)}
    sizes = {key: value for key, value in (BERT_SIZES | {"hidden_width": 12}).items() if key in known}
    config = system.config(vocab_size=len(PIECES), **sizes, **system.fixed)
    return drawn(system.objective(system.encoder(config), system.objective_config()))


def of_task(task: str, options: Any) -> Any:
    return drawn(TASKS[task].model(Bert(BertConfig(vocab_size=len(PIECES), **BERT_SIZES)), options))


MODELS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    **{
        name: (name, PRETRAINING, lambda name=name: of_system(name))
        for name, system in SYSTEMS.items()
        if not system.characters
    },
    "classify": ("bert", "classify", lambda: of_task("classify", ClassifyConfig(labels=("n", "y"), temperature=1.5))),
    "crf": ("bert", "tag", lambda: of_task("tag", TagConfig(labels=("O", "B-X"), crf=True))),
}


def written(folder: Path, kind: str = "bert", made: Tokenizer | None = None) -> Path:
    system, task, make = MODELS[kind]
    folder.mkdir(parents=True)
    write_model(folder, system, task, make(), made or tokenizer(), {"recipe": {"data.length": 32}})
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Forty documents, some of which are held out."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{TEXT}\n{'abc'[i % 3] * (i % 7 + 1)}\n\n" for i in range(40)), "utf-8")
    return path


def states(model: Loaded, line: str, layer: int = -1) -> Tensor:
    with torch.no_grad():
        return model.objective.encoder(pack_lists(model.tokenizer.ids_many([line])), keep=(layer,)).top


def growing(old: Loaded, new: Loaded) -> dict[str, tuple[Tensor, Tensor]]:
    """The tensors that have one row per token, before and after."""
    before, after = old.objective.state_dict(), new.objective.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[n], after[n]) for n in before if before[n].shape == after[n].shape)
    return {name: (before[name], after[name]) for name in before if before[name].shape != after[name].shape}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_is_extended(kind: str, text: Path, tmp_path: Path) -> None:
    base = written(tmp_path / "base", kind)
    heard: list[str] = []
    report = extend(base, [text], tmp_path / "new", tokens=500, tell=heard.append)
    old, new = read_model(base), read_model(tmp_path / "new")
    assert (new.system_name, new.task, new.objective.config) == (old.system_name, old.task, old.objective.config)
    assert new.tokenizer.pieces[: len(PIECES)] == PIECES
    added = new.tokenizer.pieces[len(PIECES) :]
    assert {"myocardium", "heartache", "심근경색은", "심근", "of"} <= set(added)
    assert len(added) == report.added == new.tokenizer.size - old.tokenizer.size
    assert f"only {len(added):,} of 500 new tokens are useful for this text: adding these" in heard
    # Text without new tokens: the same ids, the same hidden states.
    line = "the heart, the ache."
    assert new.tokenizer.ids_many([line]) == old.tokenizer.ids_many([line])
    torch.testing.assert_close(states(new, line), states(old, line), rtol=0, atol=1e-6)
    # New rows: in the embedding, and in the vocabulary bias if the head has one; CoVe's decoder has its own embedding
    # and output.
    grown = growing(old, new)
    assert len(grown) == {"bert": 2, "bert-ltr": 2, "lstm": 2, "awd-lstm": 2, "cove": 4}.get(kind, 1)
    tensors = {**dict(new.objective.named_parameters()), **dict(new.objective.named_buffers())}
    (embedding,) = (name for name, tensor in tensors.items() if tensor is new.objective.encoder.piece_embedding)
    assert embedding in grown
    for before, after in grown.values():
        assert torch.equal(after[: len(PIECES)], before)
        heartache = before[[PIECES.index("heart"), PIECES.index("##ache")]].mean(0)
        torch.testing.assert_close(after[new.tokenizer.pieces.index("heartache")], heartache)
        syllables = before[[PIECES.index(piece) for piece in ("심", "##근")]].mean(0)
        torch.testing.assert_close(after[new.tokenizer.pieces.index("심근")], syllables)


def test_means_by_hand() -> None:
    rows = torch.tensor([[0.0, 2.0], [4.0, 6.0], [1.0, 1.0]])
    expected = torch.tensor([[2.0, 4.0], [1.0, 1.0]])
    assert torch.equal(mean_rows(rows, [[0, 1], [2]]), torch.cat([rows, expected]))
    assert torch.equal(mean_rows(rows[:, 0], [[0, 1, 1]]), torch.tensor([0.0, 4.0, 1.0, 8 / 3]))


def test_what_was_unknown_begins_as_unk(tmp_path: Path) -> None:
    loaded = read_model(written(tmp_path / "base"))
    before = loaded.objective.encoder.piece_embedding
    after = extended_objective(loaded, ["é", "##ié", "中"]).encoder.piece_embedding
    for row in after[-3:]:
        torch.testing.assert_close(row, before[PIECES.index("[UNK]")])


@pytest.mark.parametrize("look", [{"lowercase": False}, {"lowercase": True, "google": True}])
def test_cased_and_googles_vocabularies(look: dict[str, bool], text: Path, tmp_path: Path) -> None:
    base = written(tmp_path / "base", made=tokenizer(**look))
    text.write_text(text.read_text("utf-8").replace("myocardium", "Myocardium"), "utf-8")
    extend(base, [text], tmp_path / "new", tokens=500, tell=silent)
    old, new = read_model(base).tokenizer, read_model(tmp_path / "new").tokenizer
    assert ("Myocardium" in new.pieces, "myocardium" in new.pieces) == (not new.lowercase, new.lowercase)
    # Google's lower-casing decomposes Hangul to Jamo: one new token still represents the whole word.
    assert [len(ids) for ids in new.ids_many(["심근경색은", "Myocardium"])] == [1, 1]
    assert new.pieces[: old.size] == old.pieces


def test_numbers_before_and_after(text: Path, tmp_path: Path) -> None:
    base = written(tmp_path / "base")
    report = extend(base, [text], tmp_path / "new", tokens=3, tell=silent)
    documents = list(CorpusReader([text]))
    held = [d for d in documents if is_held_out(d, job.HELD_OUT)]
    assert held and (report.documents, report.held_documents) == (len(documents) - len(held), len(held))
    old, new = read_model(base).tokenizer, read_model(tmp_path / "new").tokenizer
    assert report.added == report.asked == 3 and report.held_out is not None
    for change, some in ((report.text, [d for d in documents if d not in held]), (report.held_out, held)):
        lines = [paragraph for d in some for paragraph in d.paragraphs]
        for fit, made in ((change.before, old), (change.after, new)):
            rows = made.encode_many(lines)
            assert fit.tokens == sum(len(row.ids) for row in rows)
            assert fit.words == sum(len(set(row.words)) for row in rows)
            whole = sum(
                row.words.count(w) == 1 and i != made.unk_id
                for row in rows
                for i, w in zip(row.ids, row.words, strict=True)
            )
            assert fit.whole == whole
    assert report.text.after.tokens < report.text.before.tokens
    for piece in report.frequent:
        assert piece.before == tuple(greedy_pieces(piece.token, set(PIECES)))
        lines = [paragraph for d in documents if d not in held for paragraph in d.paragraphs]
        assert piece.count == sum(ids.count(new.pieces.index(piece.token)) for ids in new.ids_many(lines))


def test_one_document_is_enough(tmp_path: Path) -> None:
    base = written(tmp_path / "base")
    for number in range(30):  # whether or not its hash would hold it out
        path = tmp_path / f"{number}.txt"
        path.write_text(f"myocardium myocardium {'a' * number}", "utf-8")
    paths = [tmp_path / f"{number}.txt" for number in range(30)]
    held = next(path for path in paths if is_held_out(next(iter(CorpusReader([path]))), job.HELD_OUT))
    report = extend(base, [held], tmp_path / "new", tokens=1, tell=silent)
    assert report.held_out is None and (report.documents, report.held_documents) == (1, 0)


def test_files_report_and_provenance(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    base = written(tmp_path / "base")
    one = extend(base, [text], tmp_path / "one", tokens=500, tell=silent).size_after
    line = " ".join(["myocardial"] * 40)
    text.write_text("".join(f"{line} {i}\n\n" for i in range(20)), "utf-8")
    extend(tmp_path / "one", [text], tmp_path / "deep" / "two", tokens=1, tell=silent)
    two = read_model(tmp_path / "deep" / "two")
    assert two.tokenizer.size == one + 1
    first, second = two.provenance["extended"]
    assert first["from"] == str(base) and first["tokens"] == [len(PIECES), one]
    assert second["tokens"] == [one, one + 1] and first["text"] != second["text"]
    assert two.provenance["recipe"] == {"data.length": 32}
    assert json.loads((tmp_path / "one" / "config.json").read_text())["vocab_size"] == one
    page = (tmp_path / "one" / "report.html").read_text("utf-8")
    for part in ("myocardium", "m ##y ##o ##c", "held-out, after", "words kept whole", "[UNK]", "<svg"):
        assert part in page
    assert {path.name for path in tmp_path.iterdir()} == {"base", "text.txt", "one", "deep"}


def test_without_matplotlib_there_is_no_page_but_a_word(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    heard: list[str] = []
    extend(written(tmp_path / "base"), [text], tmp_path / "new", tokens=2, tell=heard.append)
    assert any("no report.html" in said and "firth[report]" in said for said in heard)
    assert not (tmp_path / "new" / "report.html").exists() and read_model(tmp_path / "new")


@contextmanager
def leaves_nothing(folder: Path) -> Iterator[None]:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == names
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_cannot_be_done_leaves_nothing(text: Path, tmp_path: Path) -> None:
    base, out = written(tmp_path / "base"), tmp_path / "new"
    (blank := tmp_path / "blank.txt").write_text(" \n\n \n")
    (whole := tmp_path / "whole.txt").write_text("the heart. the the heart. once")
    (taken := tmp_path / "taken").mkdir()
    (taken / "mine").write_text("keep")
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ConfigError, "tokens=0", lambda: extend(base, [text], out, tokens=0)),
        (ConfigError, "taken exists already", lambda: extend(base, [text], taken)),
        (ConfigError, "text.txt exists already", lambda: extend(base, [text], text)),
        (ConfigError, "no such model folder", lambda: extend(tmp_path / "none", [text], out)),
        (CheckpointError, "not a model folder", lambda: extend(taken, [text], out)),
        (InputError, "no such file", lambda: extend(base, [tmp_path / "none.txt"], out)),
        (InputError, "blank.txt.*give text", lambda: extend(base, [blank], out)),
        (InputError, "no new token is useful for .*whole.txt", lambda: extend(base, [whole], out)),
    ]
    for kind, message, call in cases:
        with leaves_nothing(tmp_path), pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("moment", ["choose_pieces", "measure_fit", "write_model", "write_extend_report"])
def test_an_interruption_leaves_nothing(
    moment: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = written(tmp_path / "base")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, moment, interrupted)
    with leaves_nothing(tmp_path), pytest.raises(KeyboardInterrupt):
        extend(base, [text], tmp_path / "new", tell=silent)


def test_rare_words_that_do_not_fit_in_memory_are_counted(text: Path, tmp_path: Path) -> None:
    base = written(tmp_path / "base")
    assert extend(base, [text], tmp_path / "all", tokens=1, tell=silent).pruned_words == 0
    assert extend(base, [text], tmp_path / "few", tokens=1, max_types=8, tell=silent).pruned_words > 0


def test_transformers_reads_the_same(text: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    extend(written(tmp_path / "base"), [text], tmp_path / "new", tokens=500, tell=silent)
    new = read_model(tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    line = "The myocardium of the heart; 심근경색은 ache."
    ids = theirs(line, add_special_tokens=False, return_tensors="pt")
    assert ids["input_ids"].tolist() == new.tokenizer.ids_many([line])
    assert new.tokenizer.pieces.index("myocardium") in ids["input_ids"][0].tolist()
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        out = model(**ids, output_hidden_states=True)
    torch.testing.assert_close(states(new, line), out.hidden_states[-1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(new.objective.logits(states(new, line)), out.logits[0], rtol=0, atol=1e-5)


# Continued pre-training.


@pytest.fixture(scope="module")
def domain(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny run's model extended with domain words, and a corpus of that domain prepared with it."""
    folder = tmp_path_factory.mktemp("domain")
    lines = [f"The old farmer's myocardium was near the harbour {i} times. 심근경색은 시장에서." for i in range(120)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines[i : i + 6]) for i in range(0, 120, 6)), "utf-8")
    extend(tiny_run, [folder / "text.txt"], folder / "model", tokens=8, tell=silent)
    prepare([folder / "text.txt"], folder / "model", folder / "corpus", hold_out=0.3, workers=1)
    return folder / "model", folder / "corpus"


def recipe_for(model: Path, corpus: Path, *settings: str) -> Any:
    common = [
        "train.steps=2",
        "train.batch_tokens=256",
        "train.precision=float32",
        "data.length=32",
        "train.eval_every=1",
        "train.save_every=1",
    ]
    return resolve({"model": str(model), "data": {"corpus": str(corpus)}}, [*common, *settings], "test")


def test_pretraining_goes_on_and_is_scored_before_it_does(domain: tuple[Path, Path], tmp_path: Path) -> None:
    model, corpus = domain
    recipe = recipe_for(model, corpus)
    heard: list[str] = []
    assert pretrain(recipe, tmp_path / "run", heard.append).finished
    dev = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "dev"]
    assert [event["step"] for event in dev] == [0, 1, 2]
    assert any(said.startswith("step 0  held-out: mlm_loss") for said in heard)
    assert set(dev[0]) == set(dev[1]) and dev[0] != dev[1] | {"step": 0}
    # The score at step 0 is that of the starting model: a run that learns nothing keeps it.
    still = recipe_for(model, corpus, "optim.learning_rate=1e-30")
    pretrain(still, tmp_path / "still", silent)
    first, *rest = (e for e in read_log(tmp_path / "still" / "log.jsonl") if e["event"] == "dev")
    assert first["loss"] == dev[0]["loss"] and [e["loss"] for e in rest] == [first["loss"]] * 2
    assert read_model(tmp_path / "run").tokenizer.fingerprint == read_model(model).tokenizer.fingerprint


def test_only_a_run_from_a_model_is_scored_before_it_begins(tiny_run: Path) -> None:
    assert all(event["step"] for event in read_log(tiny_run / "log.jsonl"))


def test_the_model_before_is_never_the_best(domain: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = recipe_for(*domain, "optim.learning_rate=10.0", "optim.kind=adamw", "optim.warmup_share=0.0")
    outcome = pretrain(recipe, tmp_path / "run", silent)
    dev = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "dev"]
    assert dev[0]["loss"] < min(dev[1]["loss"], dev[2]["loss"]) == outcome.best
    if "matplotlib" in sys.modules:
        page = (tmp_path / "run" / "report.html").read_text("utf-8")
        assert "No evaluation of this run was better than its starting model." in page


def test_a_run_killed_while_it_is_first_scored_begins_anew(
    domain: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(*domain)
    pretrain(recipe, tmp_path / "whole", silent)

    def interrupted(_: Trainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, tmp_path / "cut", silent)
    monkeypatch.undo()
    assert resume(tmp_path / "cut", silent).finished
    losses = [
        [(e["event"], e["step"], e["loss"]) for e in read_log(tmp_path / run / "log.jsonl")] for run in ("cut", "whole")
    ]
    assert losses[0] == losses[1]


@pytest.mark.draws
def test_the_report_of_the_run_compares_before_and_after(domain: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, folder = domain
    recipe, corpus = recipe_for(model, folder), Corpus(folder)
    events = [
        {"event": "dev", "step": 0, "mlm_loss": 3.0, "mlm_accuracy": 0.25, "loss": 3.0},
        {"event": "dev", "step": 5, "mlm_loss": 1.0, "mlm_accuracy": 0.75, "loss": 1.0},
        {"event": "dev", "step": 9, "mlm_loss": 2.0, "mlm_accuracy": 0.5, "loss": 2.0},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    per_word = tokens_per_word(corpus)
    assert per_word is not None and per_word > 1
    page = write_run_report(tmp_path, recipe, corpus).read_text("utf-8")
    table = [part.split("</table>")[0] for part in page.split("<table>")[1:]][0]
    rows = table.split("<tr>")[1:]
    shown = {"before (step 0)": 3.0, "best (step 5)": 1.0, "last (step 9)": 2.0}
    assert "masked LM loss per word" in rows[0]
    for row, (name, loss) in zip(rows[1:], shown.items(), strict=True):
        assert name in row and f">{loss:.4f}<" in row and f">{loss * per_word:.4f}<" in row
    assert "Per-token losses of two vocabularies cannot be compared" in page and "No evaluation of this run" not in page
    assert "per word" not in write_run_report(tmp_path, recipe).read_text("utf-8")


def test_pieces_per_word_of_held_out_text(domain: tuple[Path, Path]) -> None:
    corpus = Corpus(domain[1])
    ids = [i for info in corpus.shards("dev") for i in corpus.open(info).ids.tolist()]
    words = [i for i in ids if not corpus.tokenizer.pieces[i].startswith("##")]
    assert tokens_per_word(corpus) == len(ids) / len(words)


def test_words_are_bounded_in_text_without_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ideograph is a word: however long the text between spaces, few words are held in memory."""
    text = tmp_path / "zh.txt"
    text.write_text("\n\n".join("".join("天地玄黃宇宙洪荒"[i // 8**k % 8] for k in range(4)) for i in range(4096)))
    base = written(tmp_path / "base")
    monkeypatch.setattr("firth.corpus.extend._BLOCK_RUNS", 100)
    report = extend(base, [text], tmp_path / "out", tokens=4, max_types=8, tell=silent)
    assert report.pruned_words == 0 and report.text.before.words + report.held_out.before.words == 4 * 4096
