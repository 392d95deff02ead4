"""``--precision``, ``--compile`` and ``--max-drop``: messages, refusals and exit codes."""

import json
from pathlib import Path

import pytest
import torch

from firth.files import write_folder
from firth.folder import read_model, write_model
from firth.inference.model import load_model
from firth.inference.score import Scored
from firth.tasks.breakdown import Breakdown
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig

GOLD = "text\tlabel\nthe river\ta\nwinter\tb\nthe old mill\ta\nthe queen\tb\n"


@pytest.fixture(autouse=True)
def has_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: True)


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    base = read_model(tiny_run)
    torch.manual_seed(0)
    model = Classifier(base.objective.encoder, ClassifyConfig(labels=("a", "b")))
    torch.nn.init.normal_(model.head.weight, std=0.5)
    write_folder(
        tmp_path / "run" / "model", lambda new: write_model(new, "bert", "classify", model, base.tokenizer, {})
    )
    return tmp_path / "run"


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev.tsv").write_text(GOLD, "utf-8")
    return tmp_path / "dev.tsv"


def path_said(err: str) -> str:
    """The one line that says on what the encoder runs."""
    (line,) = (line for line in err.splitlines() if "CPU thread" in line)
    return line


@pytest.mark.parametrize("verb", [["embed"], ["fill-mask", "--json"]])
def test_the_path_is_said_once_and_only_if_asked_for(firth, tiny_run: Path, verb: list[str]) -> None:
    stdin = b"The old [MASK].\nThe [MASK] river.\n"
    plain, fast = (firth(*verb, tiny_run, *tokens, stdin=stdin) for tokens in ([], ["--precision", "bfloat16"]))
    assert (plain.code, plain.err, fast.code) == (0, "", 0)
    assert fast.err == path_said(fast.err) + "\n" and fast.err.endswith(", bfloat16\n")
    assert fast.out != plain.out and len(fast.out.splitlines()) == len(plain.out.splitlines())
    assert firth(*verb, tiny_run, "--precision", "auto", stdin=stdin).out == fast.out


@pytest.mark.parametrize("verb", [["embed"], ["fill-mask"]])
def test_memory_is_kept_for_the_next_batch(
    firth, tiny_run: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    monkeypatch.setattr("firth.machine.reuse_memory", lambda: kept.append(True))
    assert firth(*verb, tiny_run, stdin=b"The old [MASK].\n").code == 0 and kept


def test_auto_without_bfloat16_says_what_it_does_instead(
    firth, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: False)
    if "AVX" in torch.backends.cpu.get_cpu_capability():
        halves = firth("embed", tiny_run, "--precision", "auto", stdin=b"a\n")
        assert halves.code == 0 and path_said(halves.err).endswith(", float16 weights")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    plain, auto = firth("embed", tiny_run, stdin=b"a\n"), firth("embed", tiny_run, "--precision", "auto", stdin=b"a\n")
    assert auto.out == plain.out and path_said(auto.err).endswith(", float32")
    refused = firth("embed", tiny_run, "--precision", "bfloat16", stdin=b"a\n")
    assert refused.code == 2 and "precision='bfloat16'" in refused.complaint and refused.out == ""


def test_int8_is_for_predict_and_embed_once_it_was_measured(firth, run: Path, dev: Path) -> None:
    for tokens in (["predict", run, "the river"], ["embed", run]):
        refused = firth(*tokens, "--precision", "int8", stdin=b"the river\n")
        assert refused.code == 2 and refused.out == ""
        assert f"firth evaluate {run} --data DEV --precision int8" in refused.complaint
    result = firth("evaluate", run, "--data", dev, "--precision", "int8", "--max-drop", "100")
    assert result.code == 0 and path_said(result.err).endswith(", int8")
    lines = result.out.splitlines()
    assert lines[0] == f"{dev}: classify, 4 examples" and lines[1].split() == ["float32", "int8"]
    assert lines[2].split()[0] == "accuracy" and len(lines[2].split()) == 3
    assert lines[-1].startswith("accuracy ") and lines[-1].endswith("within 100 points, recorded in the model's folder")
    answer = firth("predict", run, "the river", "--precision", "int8")
    assert answer.code == 0 and path_said(answer.err).endswith(", int8")
    expected = load_model(run, precision="int8").predict("the river")
    assert json.loads(answer.out)["probabilities"] == pytest.approx(expected.probabilities)
    assert firth("embed", run, "--precision", "int8", stdin=b"the river\n").code == 0


def test_a_drop_that_is_too_much_ends_with_1(firth, run: Path, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in ([], ["--json"]):
        scores = iter([{"accuracy": 0.75}, {"accuracy": 0.7432}])
        monkeypatch.setattr(
            "firth.finetuning.evaluate.score_records",
            lambda *arguments, scores=scores: Scored(next(scores), Breakdown(labels={}), {}),
        )
        result = firth("evaluate", run, "--data", dev, "--precision", "int8", *flags)
        assert result.code == 1
        assert result.complaint == (
            "accuracy 75.00 in float32, 74.32 in int8: a drop of 0.68, more than the 0.5 points of --max-drop; "
            "int8 stays refused"
        )
    found = json.loads(result.out)
    assert found["scores"] == {"accuracy": 0.7432} and found["path"].endswith("int8")
    assert found["compared"] == {
        "float32": {"accuracy": 0.75},
        "metric": "accuracy",
        "drop": pytest.approx(0.68),
        "max_drop": 0.5,
        "passed": False,
    }
    assert firth("predict", run, "x", "--precision", "int8").code == 2


def test_bfloat16_is_scored_alone_or_beside_float32(firth, run: Path, dev: Path) -> None:
    alone = firth("evaluate", run, "--data", dev, "--precision", "bfloat16")
    assert alone.code == 0 and path_said(alone.err).endswith(", bfloat16") and "float32" not in alone.out
    both = firth("evaluate", run, "--data", dev, "--precision", "bfloat16", "--max-drop", "100")
    assert both.code == 0 and "within 100 points" in both.out and "recorded" not in both.out
    plain = firth("evaluate", run, "--data", dev)
    assert plain.code == 0 and "CPU thread" not in plain.err
    as_json = firth("evaluate", run, "--data", dev, "--precision", "bfloat16", "--max-drop", "100", "--json")
    assert len(as_json.out.splitlines()) == 1 and json.loads(as_json.out)["compared"]["passed"]
    assert "within 100 points" in as_json.err


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["fill-mask", "MODEL", "a [MASK]", "--precision", "int8"], ["is not fine-tuned", "bfloat16"]),
        (["embed", "MODEL", "--precision", "int8"], ["is not fine-tuned", "bfloat16"]),
        (["embed", "MODEL", "--precision", "half"], ["--precision", "half", "float16", "bfloat16"]),
        (["fill-mask", "MODEL", "a [MASK]", "--compile"], ["--compile"]),
        (["evaluate", "MODEL", "--data", __file__, "--max-drop", "1"], ["--max-drop", "give --precision"]),
    ],
)
def test_what_does_not_go_together(firth, tiny_run: Path, tokens: list[str], parts: list[str]) -> None:
    result = firth(*(tiny_run if token == "MODEL" else token for token in tokens), stdin=b"a\n")
    assert result.code == 2 and result.out == ""
    assert [part for part in parts if part not in result.complaint] == []


def test_compiling_is_asked_for_by_name(firth, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr("firth.inference.model.compile_regions", lambda encoder, device: not compiled.append(encoder))
    for verb in ("embed", "predict"):
        result = firth(verb, run, "--compile", stdin=b"the river\n")
        assert result.code == 0 and path_said(result.err).endswith(", float32, compiled")
        assert firth(verb, run, "--no-compile", stdin=b"the river\n").err == ""
    assert len(compiled) == 2
    monkeypatch.setattr("firth.inference.model.compile_regions", lambda encoder, device: False)
    refused = firth("embed", run, "--compile", stdin=b"the river\n")
    assert refused.code == 2 and "compile: this machine has no compiler" in refused.complaint
