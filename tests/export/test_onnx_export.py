"""``firth convert --as onnx``: onnxruntime agrees with Firth at any shape, or nothing is written."""

import importlib.util
import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of
from published_folders import PIECES, drawn, masked

import firth.export.onnx as job
from firth.convert.padded import INPUTS
from firth.data.batch import Objective
from firth.errors import CheckpointError, ConfigError
from firth.export.convert import convert
from firth.export.onnx import ABOUT, GRAPH, INT8_GRAPH, Int8
from firth.finetuning.evaluate import evaluate
from firth.finetuning.recipe import LabelledConfig
from firth.folder import PRETRAINING, Loaded, read_model, write_model
from firth.inference.answering import answer_records
from firth.inference.onnx import open_session, padded_inputs, session_outputs
from firth.inference.outputs import row_outputs
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM
from firth.packed import Rows, Tokens
from firth.systems import SYSTEMS
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    TowersConfig,
    WindowConfig,
)
from firth.tasks.rows import RowMaker, make_row
from firth.tasks.table import TASKS
from firth.text.records import Choice, Question, Tagged, Text
from firth.text.tokenizer import Tokenizer

# One layer, because export time grows with the number of layers.
ONE = BertConfig(vocab_size=len(PIECES), width=8, n_layers=1, n_heads=2, feed_forward_width=12, max_positions=32)
LTR = replace(ONE, causal=True)
LABELS = ("a", "b")
TEXTS = [Text("a bad cat ate"), Text("one"), Text("Anna mit Bo. " * 9, second="a tin"), Text("hat")]
WORDS = ("a", "bad", "cat", "on", "that", "mat")
TAGGED = [Tagged("a bad cat on that", ((0, 1), (2, 5), (6, 9), (10, 12), (13, 17))), Tagged("on", ((0, 2),))]
QUESTIONS = [Question("A cat?", "a bad cat ate on the mat. " * 3), Question("Bo?", "Bo.")]
CHOICES = [Choice("a cat", "an ion", ("a", "bad hat on a mat", "tin")), Choice("", "a", ("Bo", "hid a tin"))]


def tuned(task: str, options: Any, sizes: BertConfig = ONE) -> Objective:
    return drawn(TASKS[task].model(Bert(sizes), options))


def undecided(classifier: Any) -> Objective:
    """Shift the bias so that both labels occur."""
    with torch.no_grad():
        classifier.head.bias[1] += 3.195
    return classifier


Make = Callable[[], Objective]
MODELS: dict[str, tuple[str, str, Make, list[Any]]] = {
    "classify": (
        "bert",
        "classify",
        lambda: undecided(tuned("classify", ClassifyConfig(labels=LABELS, network=network_of(pool="mean")))),
        TEXTS,
    ),
    "one segment": (
        "bert",
        "classify",
        lambda: tuned("classify", ClassifyConfig(labels=LABELS), replace(ONE, n_segments=1)),
        [Text("a bad cat ate", second="one"), Text("hat", second="a tin")],
    ),
    "both orders": (
        "bert",
        "regress",
        lambda: tuned("regress", RegressConfig(both_orders=True, windows=WindowConfig(long="cut"))),
        [Text("a bad cat ate", second="one"), Text("hat", second="a tin")],
    ),
    "multilabel": (
        "bert-ltr",
        "multilabel",
        lambda: tuned(
            "multilabel",
            MultiLabelConfig(labels=LABELS, network=network_of(layers=(0, 1), mix="scalar", pool="mean")),
            LTR,
        ),
        TEXTS,
    ),
    "regress": ("bert-ltr", "regress", lambda: tuned("regress", RegressConfig(), LTR), TEXTS),
    "towers": (
        "bert",
        "classify",
        lambda: tuned(
            "classify", ClassifyConfig(labels=LABELS, network=TowersConfig(), windows=WindowConfig(long="cut"))
        ),
        [
            Text("a bad cat ate", second="one"),
            Text("hat", second="a tin on a mat"),
            Text("Anna mit Bo. " * 9, second="a"),
        ],
    ),
    "tag": ("bert", "tag", lambda: tuned("tag", TagConfig(labels=("O", "B-X", "I-X"))), TAGGED),
    "answer": ("bert", "answer", lambda: tuned("answer", AnswerConfig()), QUESTIONS),
    "answer, marked": ("bert", "answer", lambda: tuned("answer", AnswerConfig(mark_shared_words=True)), QUESTIONS),
    "choose": ("bert", "choose", lambda: tuned("choose", ChooseConfig()), CHOICES),
    "choose, marked": ("bert", "choose", lambda: tuned("choose", ChooseConfig(mark_shared_words=True)), CHOICES),
    "pre-trained": ("bert", PRETRAINING, lambda: drawn(MaskedLM(Bert(ONE), MaskedLMConfig())), []),
    "pre-trained left to right": ("bert-ltr", PRETRAINING, lambda: drawn(CausalLM(Bert(LTR), CausalLMConfig())), []),
}

# The model whose weights are treated as too large for one file.
LARGE = "choose"


def model(folder: Path, system: str, task: str, objective: Objective) -> Path:
    folder.mkdir(parents=True)
    write_model(folder, system, task, objective, Tokenizer.from_vocab(PIECES, lowercase=False), {"seed": 1})
    return folder


@pytest.fixture(scope="module")
def packages() -> None:
    for name in job.PACKAGES:
        pytest.importorskip(name)


@pytest.fixture(scope="module")
def exported(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Loaded, Path]]:
    """A model of MODELS by name, and its export folder; each is exported once, so tests must not change it."""
    home, done = tmp_path_factory.mktemp("onnx"), dict[str, tuple[Loaded, Path]]()

    def make(name: str) -> tuple[Loaded, Path]:
        if name not in done:
            system, task, objective, _ = MODELS[name]
            source = model(home / name, system, task, objective())
            with pytest.MonkeyPatch.context() as patch:
                if name == LARGE:
                    patch.setattr(job, "_MOST_BYTES", 0)
                convert(source, home / f"{name} onnx", "onnx")
            done[name] = read_model(source), home / f"{name} onnx"
        return done[name]

    return make


Exported = Callable[[str], tuple[Loaded, Path]]


@pytest.mark.parametrize("name", [name for name, (_, _, _, records) in MODELS.items() if records])
def test_a_task_is_answered_as_by_firth(name: str, exported: Exported) -> None:
    loaded, folder = exported(name)
    records, task, objective = MODELS[name][3], TASKS[loaded.task], loaded.objective
    maker = RowMaker(loaded.tokenizer, loaded.system.layout(loaded.tokenizer), objective.config.windows, 32)
    examples = task.examples(records, maker, objective.config)
    session = open_session(folder / GRAPH)
    expected: Any = row_outputs(objective, examples)  # type: ignore[arg-type]  # all here have a task
    for budget in (4096, 1):  # sequences of very different length in one batch, and each alone
        found = session_outputs(session, objective.config, examples, loaded.tokenizer.pad_id, budget_tokens=budget)
        for ours, theirs in zip(expected, found, strict=True):
            for row, other in zip(ours, theirs, strict=True):
                assert list(row) == list(other)
                for output in row:
                    np.testing.assert_allclose(other[output], row[output], rtol=1e-4, atol=1e-5)
    assert len({len(row.ids) for example in examples for row in example.rows}) > 1
    answers = task.answers(records, examples, found, objective.config)
    assert [type(answer) for answer in answers] == [type(answer) for answer in answer_records(loaded, records)[0]]


@pytest.mark.parametrize("name", ["pre-trained", "pre-trained left to right"])
def test_a_pre_trained_model_at_other_shapes(name: str, exported: Exported) -> None:
    loaded, folder = exported(name)
    session, objective = open_session(folder / GRAPH), loaded.objective
    names = [node.name for node in session.get_outputs()]
    pooled = ["pooler_output"] if loaded.system_name == "bert" else []
    assert names == ["last_hidden_state", *pooled, "logits"]
    head: Any = objective.mlm if loaded.system_name == "bert" else objective.lm
    rng = np.random.default_rng(0)
    for lengths in ([1], [2], [32], [31, 1, 4, 9]):
        ids = [rng.integers(len(PIECES), size=n) for n in lengths]
        tokens = Tokens(Rows.from_lengths(lengths), torch.from_numpy(np.concatenate(ids)))
        with torch.inference_mode():
            hidden = objective.encoder(tokens)
            logits = head.logits(hidden.top, objective.encoder.piece_embedding)
        found = dict(zip(names, session.run(None, padded_inputs([make_row(row) for row in ids], 0)), strict=True))
        for name, expected in (("last_hidden_state", hidden.top), ("logits", logits)):
            real = np.concatenate([row[:n] for row, n in zip(found[name], lengths, strict=True)])
            np.testing.assert_allclose(real, expected, rtol=1e-4, atol=1e-5)
        for name in pooled:
            np.testing.assert_allclose(found[name], hidden.summary, rtol=1e-4, atol=1e-5)


def test_vectors_without_the_scores_of_pieces(exported: Exported) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = open_session(exported("pre-trained")[1] / GRAPH)
    given, options = padded_inputs([make_row([5, 6, 7])], 0), runtime.RunOptions()
    options.only_execute_path_to_fetches = True
    (alone,) = session.run(["last_hidden_state"], given, options)
    np.testing.assert_array_equal(alone, session.run(None, given)[0])


def test_the_folder_says_what_it_is(exported: Exported) -> None:
    loaded, folder = exported("classify")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.onnx",
        "onnx.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    about = json.loads((folder / ABOUT).read_text())
    assert (about["system"], about["task"], about["options"]["labels"]) == ("bert", "classify", ["a", "b"])
    assert about["inputs"] == dict.fromkeys(INPUTS, ["batch", "length"])
    assert about["outputs"] == {"logits": ["batch", 2]}
    towers = json.loads((exported("towers")[1] / ABOUT).read_text())
    second = {f"second_{name}": ["batch", "second_length"] for name in INPUTS[:2]}
    assert towers["inputs"] == dict.fromkeys(INPUTS[:2], ["batch", "length"]) | second
    assert [(x["batch"], x["length"]) for x in about["checked"]] == [(1, 7), (3, 20), (5, 32)]
    assert all(0 <= x["differences"]["logits"] <= job.TOLERANCE for x in about["checked"])
    assert set(about["versions"]) == {"firth", "torch", *job.PACKAGES} and "int8" not in about
    assert about["provenance"]["seed"] == 1
    config = json.loads((exported("tag")[1] / "config.json").read_text())
    assert (config["model_type"], config["id2label"]) == ("bert", {"0": "O", "1": "B-X", "2": "I-X"})
    assert Tokenizer.load(folder).fingerprint == loaded.tokenizer.fingerprint
    readme = (folder / "README.md").read_text()
    assert f"| 5×32 | `logits` | {about['checked'][2]['differences']['logits']:.1e} |" in readme
    assert "| outputs | `logits` | batch × 2 |" in readme and "other order" not in readme
    assert "add the `logits` of the two" in (exported("both orders")[1] / "README.md").read_text()
    ltr = json.loads((exported("regress")[1] / "config.json").read_text())
    assert (ltr["model_type"], ltr["causal"]) == ("firth-bert-ltr", True)


def test_a_graph_is_compared_on_both_texts_of_a_pair(exported: Exported) -> None:
    """Also where both have the same segment embedding: the graph still takes their segments."""
    loaded, folder = exported("one segment")
    (row,) = job._drawn_rows(loaded, 1, 20)
    assert set(row.segments) == {0, 1}
    assert [node.name for node in open_session(folder / GRAPH).get_inputs()] == list(INPUTS)


def test_the_graph_holds_no_path_of_this_machine_and_each_weight_once(exported: Exported) -> None:
    loaded, folder = exported("pre-trained")
    onnx = pytest.importorskip("onnx")
    assert b".py" not in (folder / GRAPH).read_bytes()
    graph = onnx.load(folder / GRAPH)
    onnx.checker.check_model(graph, full_check=True)
    assert [(x.domain, x.version) for x in graph.opset_import] == [("", job.OPSET)]
    sizes = sum(int(np.prod(x.dims)) for x in graph.graph.initializer if len(x.dims) == 2)
    nsp: Any = loaded.objective.nsp
    assert sizes == sum(p.numel() for p in loaded.objective.parameters() if p.ndim == 2) - nsp.weight.numel()


def test_the_example_of_the_page(exported: Exported) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats" / "onnx.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    loaded, folder = exported("classify")
    found: dict[str, Any] = {}
    exec(code.replace("DIR", str(folder)), found)
    texts = [Text("A first text."), Text("A pair:", second="its second text.")]
    shares = np.exp(found["logits"]) / np.exp(found["logits"]).sum(1, keepdims=True)
    expected = [list(answer.probabilities.values()) for answer in answer_records(loaded, texts)[0]]
    np.testing.assert_allclose(shares, expected, rtol=1e-4)


@pytest.fixture
def classifier(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The classifier's model folder; its exported graph is reused."""
    _, folder = exported("classify")
    monkeypatch.setattr(job, "_export", lambda module, inputs, path, max_length: shutil.copy(folder / GRAPH, path))
    return folder.parent / "classify"


def test_nothing_is_written_that_is_not_the_same(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = job._packed_outputs
    monkeypatch.setattr(job, "_packed_outputs", lambda *given: {n: x + 1.5e-4 for n, x in right(*given).items()})
    with pytest.raises(CheckpointError, match=r"logits of the exported graph is 1\.5e-04 from PyTorch's at 1×7, more"):
        convert(classifier, tmp_path / "x", "onnx")
    assert not list(tmp_path.iterdir())


def test_large_weights_lie_beside_the_graph(exported: Exported, tmp_path: Path) -> None:
    moved = shutil.copytree(exported(LARGE)[1], tmp_path / "x")
    assert sorted(path.name for path in moved.glob("model*")) == ["model.onnx", "model.onnx.data"]
    assert open_session(moved / GRAPH).run(None, padded_inputs([make_row([5, 6])], 0))[0].shape == (1,)


# -- int8 ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with the labels that the classifier predicts, so that its accuracy is 100 %."""
    loaded, _ = exported("classify")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(1, 12, size=40)]
    answers = answer_records(loaded, [Text(text) for text in texts])[0]
    sure = [(text, answer.label) for text, answer in zip(texts, answers, strict=True) if answer.probability > 0.501]
    assert len(sure) > 20 and {label for _, label in sure} == {"a", "b"}
    path = tmp_path_factory.mktemp("dev") / "dev.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in sure))
    return path


def test_int8_is_written_with_its_score(classifier: Path, labelled: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    before = list(logging.getLogger().handlers)
    done = convert(classifier, tmp_path / "x", "onnx", int8=Int8(data=str(labelled), max_drop=100.0))
    assert logging.getLogger().handlers == before
    found = json.loads((tmp_path / "x" / ABOUT).read_text())["int8"]
    assert (found["metric"], found["float32"]["accuracy"], found["max_drop"]) == ("accuracy", 1.0, 100)
    assert found["float32"] == evaluate(classifier, str(labelled), LabelledConfig())["scores"]
    assert found["drop"] == pytest.approx(100 * (1 - found["int8"]["accuracy"]))
    words = dict(done.facts)["int8"]
    assert words.startswith("accuracy 100.00 in float32, ") and words in (tmp_path / "x" / "README.md").read_text()
    kinds = {node.op_type for node in onnx.load(tmp_path / "x" / INT8_GRAPH).graph.node}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= kinds and "Gemm" not in kinds
    given = padded_inputs([make_row([5, 6, 7, 8, 9])], 0)
    logits, other = (open_session(tmp_path / "x" / name).run(None, given)[0] for name in (GRAPH, INT8_GRAPH))
    assert 0 < np.abs(logits - other).max() < 0.2 * np.abs(logits).max()


def test_int8_finds_the_columns_that_evaluate_finds(exported: Exported, labelled: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in labelled.read_text("utf-8").splitlines()[1:]]
    other = tmp_path / "other.tsv"
    other.write_text("category\tmessage\n" + "".join(f"{label}\t{text}\n" for text, label in rows), "utf-8")
    gold = job._read_gold(exported("classify")[0], Int8(data=str(other)))
    assert [(record.text, record.label) for record in gold.records] == [(text, label) for text, label in rows]
    assert any("columns found by content" in note for note in gold.notes)


def test_int8_that_scores_worse_is_refused(
    classifier: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")

    def against(path: Path, small: Path) -> None:
        graph = onnx.load(path)
        for weight in graph.graph.initializer:
            if weight.name in ("head.weight", "head.bias"):
                weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), weight.name))
        onnx.save(graph, small)

    monkeypatch.setattr(job, "_quantise", against)
    message = r"accuracy 100\.00 in float32, 0\.00 in int8: a drop of 100\.00, more than the 0\.5 points of --max-drop"
    with pytest.raises(CheckpointError, match=message):
        convert(classifier, tmp_path / "x", "onnx", int8=Int8(data=str(labelled)))
    assert not list(tmp_path.iterdir())


# -- refused ---------------------------------------------------------------------------------------------------


def test_other_systems_are_refused(packages: None, tmp_path: Path) -> None:
    lstm = SYSTEMS["lstm"]
    objective = lstm.objective(
        lstm.encoder(lstm.config(vocab_size=len(PIECES), width=8, n_layers=1)), lstm.objective_config()
    )
    with pytest.raises(ConfigError, match="m is lstm: only models of bert and bert-ltr become ONNX"):
        convert(model(tmp_path / "m", "lstm", PRETRAINING, objective), tmp_path / "x", "onnx")
    crf = tuned("tag", TagConfig(labels=("O", "B-X", "I-X"), crf=True))
    with pytest.raises(ConfigError, match="n cannot become ONNX: a tagger with a CRF"):
        convert(model(tmp_path / "n", "bert", "tag", crf), tmp_path / "x", "onnx")
    assert not (tmp_path / "x").exists()


def test_int8_needs_a_score(packages: None, tmp_path: Path) -> None:
    source = model(tmp_path / "m", "bert", PRETRAINING, masked())
    with pytest.raises(ConfigError, match="is not fine-tuned, so no score can show"):
        convert(source, tmp_path / "x", "onnx", int8=Int8(data="f"))
    classifier = model(tmp_path / "n", "bert", "classify", MODELS["classify"][2]())
    with pytest.raises(ConfigError, match="is a model for classify, but squad1 is of kind answer"):
        convert(classifier, tmp_path / "x", "onnx", int8=Int8(data="f", task="squad1"))
    with pytest.raises(ConfigError, match="--max-drop 101: expected points from 0 to 100"):
        convert(classifier, tmp_path / "x", "onnx", int8=Int8(data="f", max_drop=101))
    with pytest.raises(ConfigError, match="int8 is for the format onnx"):
        convert(classifier, tmp_path / "x", int8=Int8(data="f"))
    assert not (tmp_path / "x").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    source = model(tmp_path / "m", "bert", PRETRAINING, masked())
    with pytest.raises(ConfigError, match="exists already"):
        convert(source, source, "onnx")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    missing = {"onnxruntime", "onnxscript"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in missing else real(name, *more))
    source = model(tmp_path / "m", "bert", PRETRAINING, masked())
    with pytest.raises(ConfigError) as error:
        convert(source, tmp_path / "x", "onnx")
    assert str(error.value) == "an ONNX graph needs onnxruntime and onnxscript: pip install 'firth[onnx]'"
    assert not (tmp_path / "x").exists()


def test_numbers_are_compared_by_their_size(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near 30, even PyTorch's float32 logits differ this much from float64."""
    loaded, _ = exported("pre-trained")
    monkeypatch.setattr(job, "_differences", lambda *_: {"logits": (1.4e-4, 30.7)})
    assert job._compare(None, loaded)[0]["differences"] == {"logits": 1.4e-4}
    for largest in (0.5, 9.0):
        monkeypatch.setattr(job, "_differences", lambda *_, n=largest: {"logits": (1.4e-4, n)})
        with pytest.raises(CheckpointError, match=r"logits of the exported graph is 1\.4e-04 from PyTorch's at 1×7"):
            job._compare(None, loaded)
    monkeypatch.setattr(job, "_differences", lambda *_: {"logits": (float("nan"), 30.7)})
    with pytest.raises(CheckpointError, match="nothing was written"):
        job._compare(None, loaded)
