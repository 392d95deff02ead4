"""``firth convert --as onnx`` on the command line: its messages, and which flags belong together."""

import json
from pathlib import Path
from typing import Any

import pytest
from published_folders import PIECES, drawn, fine_tuned, masked, publish, weights

from firth.folder import write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig, TagConfig
from firth.text.tokenizer import Tokenizer

ONE = BertConfig(vocab_size=len(PIECES), width=8, n_layers=1, n_heads=2, feed_forward_width=12, max_positions=32)
ONNX = ("--as", "onnx", "--out", "x")
INT8 = ("--int8", "--data", "f.tsv")


def model(folder: Path, task: str, objective: Any) -> Path:
    folder.mkdir()
    write_model(folder, "bert", task, objective, Tokenizer.from_vocab(PIECES, lowercase=False), {})
    return folder


def test_a_classifier_with_int8(firth, tmp_path: Path) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    source = model(tmp_path / "m", "classify", drawn(Classifier(Bert(ONE), ClassifyConfig(labels=("a", "b")))))
    dev = tmp_path / "dev.txt"
    dev.write_text("gold,sentence\n" + "a,a bad cat\nb,a hat\n" * 3)
    columns = ("--columns", "text=sentence,label=gold", "--header", "--format", "csv")
    result = firth(
        "convert",
        source,
        "--as",
        "onnx",
        "--out",
        tmp_path / "x",
        "--int8",
        "--data",
        dev,
        *columns,
        "--max-drop",
        "100",
    )
    assert result.code == 0, result.err
    assert "Traceback" not in result.err and "WARNING" not in result.err
    assert f"{tmp_path / 'x'}: model.onnx and its tokenizer; onnxruntime gives PyTorch's numbers" in result.out
    assert "from PyTorch in 1×7, 3×20, 5×32" in result.out and "accuracy 50.00 in float32, " in result.out
    assert "next:" not in result.out
    about = json.loads((tmp_path / "x" / "onnx.json").read_text())
    assert (about["int8"]["examples"], about["int8"]["max_drop"]) == (6, 100)
    refused = firth("predict", tmp_path / "x", "a cat")
    assert refused.code != 0 and "is an ONNX graph: a graph cannot be read back: use onnxruntime" in refused.complaint


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*ONNX, "--int8"), "--int8 needs labelled examples to be scored on: give --data FILE"),
        ((*ONNX, "--data", "f"), "--data belongs to --int8: leave out, or give --int8"),
        ((*ONNX, "--max-drop", "1", "--split", "test"), "--max-drop and --split belong to --int8"),
        (("--out", "x", *INT8), "--int8 is for --as onnx"),
    ],
)
def test_flags_that_do_not_go_together(firth, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    source = publish(tmp_path / "hf", weights(masked()))
    result = firth("convert", source, *flags)
    assert result.code == 2 and message in result.complaint


def test_a_model_without_onnx_form_is_one_line(firth, tmp_path: Path) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    crf = fine_tuned("tag", TagConfig(labels=("O", "B-X", "I-X"), crf=True))
    result = firth("convert", model(tmp_path / "m", "tag", crf), "--as", "onnx", "--out", tmp_path / "x")
    assert result.code == 2 and "m cannot become ONNX: a tagger with a CRF (head.crf)" in result.complaint
    assert not (tmp_path / "x").exists()
