"""``firth convert``, and the other commands on folders that other tools wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from published_folders import PIECES, encoder_alone, fine_tuned, masked, publish, weights
from tiny_language_models import tiny_language_model

from firth.folder import PRETRAINING, read_model, write_model
from firth.formats.table import open_model
from firth.tasks.config import AnswerConfig, ClassifyConfig, MultiLabelConfig, RegressConfig
from firth.tasks.table import TASKS


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(tmp_path / "hf", weights(masked()))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An encoder without pooler and heads."""
    state = {n: t for n, t in encoder_alone(masked()).items() if not n.startswith("pooler.")}
    return publish(tmp_path / "bare", state, architecture="BertModel")


def test_it_says_what_it_found_and_what_comes_next(firth, published: Path, tmp_path: Path) -> None:
    result = firth("convert", published, "--out", tmp_path / "made")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{published}: a model in Hugging Face's layout"
    assert f"{tmp_path / 'made'}: a model folder; read again, every number is equal" in lines
    for part in ("bert", "pretraining", f"2 layers of width 8, {len(PIECES)} tokens", "cased (from the tokens)"):
        assert part in result.out
    assert lines[-1] == f"next: firth fill-mask {tmp_path / 'made'} 'The capital of France is [MASK].'"
    assert read_model(tmp_path / "made").task == PRETRAINING


def test_what_is_new_is_said(firth, bare: Path, tmp_path: Path) -> None:
    result = firth("convert", bare, "--out", tmp_path / "made")
    assert "the pooler: the checkpoint has none, so it begins at random" in result.out
    assert "the masked-LM head: the checkpoint has none" in result.out
    assert result.out.splitlines()[-1].startswith("next: firth finetune --task classify")
    refused = firth("fill-mask", tmp_path / "made", "a [MASK]")
    assert refused.code == 2 and "published without a masked-LM head" in refused.complaint


def test_json(firth, published: Path, tmp_path: Path) -> None:
    found = json.loads(firth("convert", published, "--out", tmp_path / "made", "--json").out)
    assert found["format"] == "hf" and found["out"] == str(tmp_path / "made")
    assert ["system", "bert"] in found["found"]


def test_google_both_ways(firth, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "tf-bert-fixture" / "bert_model.ckpt"
    assert firth("convert", source, "--out", tmp_path / "a", "--gelu", "tanh").code == 0
    assert read_model(tmp_path / "a").objective.encoder.config.activation == "gelu_tanh"
    result = firth("convert", tmp_path / "a", "--as", "google", "--out", tmp_path / "b")
    assert result.code == 0 and "--do_lower_case=True" in result.out and "next:" not in result.out
    assert {path.name for path in (tmp_path / "b").iterdir()} >= {
        "bert_config.json",
        "vocab.txt",
        "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
    }


def test_sentence_transformers(firth, published: Path, tmp_path: Path) -> None:
    assert firth("convert", published, "--as", "st", "--out", tmp_path / "st").code == 0
    assert (tmp_path / "st" / "modules.json").is_file() and (tmp_path / "st" / "firth.json").is_file()


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ((), "--out"),
        (("--to", "a"), "firth convert has no --to: use --out DIR"),
        (("--to-google", "a"), "firth convert has no --to-google: use --as google --out DIR"),
        (("--to-sentence-transformers=a",), "firth convert has no --to-sentence-transformers: use --as st --out DIR"),
        (("--to-onnx", "a", "--int8"), "firth convert has no --to-onnx: use --as onnx --out DIR"),
        (("--as", "fastai", "--out", "a"), "a language model of fastai is read, not written; expected one of"),
        (("--as", "keras", "--out", "a"), "'keras' is not known; expected one of firth, st, elmo"),
    ],
)
def test_targets_that_are_none(firth, flags: tuple[str, ...], part: str, published: Path) -> None:
    result = firth("convert", published, *flags)
    assert result.code == 2 and part in result.complaint, result.complaint


def test_hugging_faces_files_alone(firth, published: Path, tmp_path: Path) -> None:
    """The hf files written equal those read, and none of our own files is beside them."""
    made = tmp_path / "made"
    result = firth("convert", published, "--as", "hf", "--out", made)
    assert result.code == 0 and "firth.json: what Firth alone knows" in result.out
    assert not (made / "firth.json").exists() and (made / "tokenizer.json").is_file()
    assert json.loads(firth("convert", made, "--out", tmp_path / "back", "--json").out)["format"] == "hf"
    ours, theirs = (open_model(path).objective.state_dict() for path in (made, published))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("answer", AnswerConfig(can_refuse=True, threshold=-2.5), "head.can_refuse=true, threshold=-2.5: there every"),
        ("multilabel", MultiLabelConfig(labels=("a", "b"), threshold=0.25), "head.threshold=0.25: there a label"),
        ("regress", RegressConfig(lowest=0, highest=5), "head.lowest=0, highest=5: there values are not clipped"),
        ("answer", AnswerConfig(), ""),
        ("multilabel", MultiLabelConfig(labels=("a", "b")), ""),
    ],
)
def test_rules_that_other_files_cannot_hold_are_named(
    firth, bare: Path, tmp_path: Path, task: str, options: Any, said: str
) -> None:
    loaded = open_model(bare)
    model = TASKS[task].model(loaded.objective.encoder, options)
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m", "bert", task, model, loaded.tokenizer, {})
    result = firth("convert", tmp_path / "m", "--as", "hf", "--out", tmp_path / "hf")
    assert result.code == 0 and (said in result.out if said else "head." not in result.out), result.out
    file = ["--input", "FILE"] if task == "answer" else ["TEXT"]
    assert f"next: firth predict {tmp_path / 'hf'} {' '.join(file)}\n" in result.out


def test_a_fine_tuned_gpt_stays_here_and_a_language_model_goes_on_writing(firth, tmp_path: Path) -> None:
    model = tiny_language_model("gpt")
    classifier = TASKS["classify"].model(model.loaded.objective.encoder, ClassifyConfig(labels=("a", "b")))
    for name, task, objective in (("tuned", "classify", classifier), ("lm", PRETRAINING, model.loaded.objective)):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, "gpt", task, objective, model.loaded.tokenizer, {})
    refused = firth("convert", tmp_path / "tuned", "--as", "hf", "--out", tmp_path / "hf")
    assert refused.code == 2 and "only Firth has, which firth predict and firth serve run" in refused.complaint
    done = firth("convert", tmp_path / "lm", "--out", tmp_path / "again")
    assert done.out.splitlines()[-1] == f"next: firth generate {tmp_path / 'again'} TEXT"


def test_casing_and_vocabulary_from_the_flags(firth, tmp_path: Path) -> None:
    pieces = [*PIECES[:5], *(chr(0xAC00 + i) for i in range(len(PIECES) - 5))]
    source = publish(tmp_path / "hf", weights(masked()), vocab=None)
    result = firth("convert", source, "--out", tmp_path / "x")
    assert result.code == 2 and "give its vocabulary with firth convert" in result.complaint
    (tmp_path / "v.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    result = firth("convert", source, "--out", tmp_path / "x", "--vocab", tmp_path / "v.txt")
    assert result.code == 2 and "--cased, or --uncased" in result.complaint
    for flag, lowercase in (("--cased", False), ("--uncased", True)):
        assert firth("convert", source, "--out", tmp_path / flag, "--vocab", tmp_path / "v.txt", flag).code == 0
        assert read_model(tmp_path / flag).tokenizer.lowercase is lowercase


@pytest.mark.parametrize("source", ["nowhere", "hub:nobody/nothing"])
def test_no_such_source(firth, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    result = firth("convert", source, "--out", tmp_path / "x")
    assert result.code in (1, 2) and source in result.complaint and not (tmp_path / "x").exists()


# The other commands, on the folders themselves.


def test_answers_of_a_published_model(firth, published: Path) -> None:
    masks = json.loads(firth("fill-mask", published, "the [MASK].", "--json").out)["masks"]
    assert len(masks) == 1 and len(masks[0]["candidates"]) == 5
    result = firth("embed", published, stdin=b"the cat\nthe moon\n")
    assert result.code == 0 and len(json.loads(result.out.splitlines()[0])) == 8


def test_a_published_classifier_predicts_and_is_scored(firth, tmp_path: Path) -> None:
    state = weights(fine_tuned("classify", ClassifyConfig(labels=("bad", "good"))), "classify")
    source = publish(
        tmp_path / "hf", state, architecture="BertForSequenceClassification", id2label={"0": "bad", "1": "good"}
    )
    result = firth("predict", source, "the cat")
    assert result.code == 0 and json.loads(result.out)["label"] in ("bad", "good")
    (tmp_path / "d.tsv").write_text("the cat\tgood\na moon\tbad\n")
    assert "accuracy" in firth("evaluate", source, "--data", tmp_path / "d.tsv", "--columns", "text=0,label=1").out


def test_a_published_model_is_fine_tuned(firth, bare: Path, tmp_path: Path) -> None:
    kinds = (("the cat", "a"), ("a moon", "b"))
    lines = [f"{text} {number}\t{label}\n" for number in range(10) for text, label in kinds]
    (tmp_path / "t.tsv").write_text("".join(lines))
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        bare,
        "--train",
        tmp_path / "t.tsv",
        "--columns",
        "text=0,label=1",
        "--out",
        tmp_path / "out",
        "--epochs",
        1,
        "--set",
        "train.precision=float32",
    )
    assert result.code == 0, result.err
    assert "pre-trained weights except pooler, missing from the checkpoint" in result.err
    tuned = read_model(tmp_path / "out")
    # The head reads the mean of the tokens, so the pooler is still at random, and no vector may come from it.
    assert tuned.task == "classify" and tuned.untrained == ("encoder.pooler",)
    assert "summary" in firth("embed", tmp_path / "out", "the cat", "--pool", "summary").complaint
    assert tuned.provenance["base"]["provenance"]["origin"]["from"] == str(bare)


def test_fresh_parts_follow_the_seed_of_a_fine_tuning(bare: Path) -> None:
    from firth.finetuning.base import read_base

    base = read_base(str(bare), "", False)
    assert base.untrained == ("pooler",)
    first, second, other = (base.encoder(seed, None).state_dict() for seed in (1, 1, 2))
    assert torch.equal(first["pooler.weight"], second["pooler.weight"])
    assert not torch.equal(first["pooler.weight"], other["pooler.weight"])
    assert torch.equal(first["embeddings.pieces.weight"], other["embeddings.pieces.weight"])


def corpus(firth: Any, source: Path, tmp_path: Path) -> Path:
    sentences = ["the cat in the hut.", "a moon on the hut.", "the mice run at noon.", "a hen on the road."]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(sentences) for _ in range(12)) + "\n")
    assert firth("prepare", tmp_path / "text.txt", "--tokenizer", source, "--out", tmp_path / "corpus").code == 0
    return tmp_path / "corpus"


@pytest.mark.parametrize("kind", ["published", "bare"])
def test_pretraining_goes_on_from_a_published_model(firth, kind: str, request, tmp_path: Path) -> None:
    source: Path = request.getfixturevalue(kind)
    data = corpus(firth, source, tmp_path)
    result = firth(
        "pretrain",
        "--model",
        source,
        "--corpus",
        data,
        "--out",
        tmp_path / "run",
        "--steps",
        1,
        "--set",
        "data.length=32",
        "--set",
        "train.batch_tokens=256",
        "--set",
        "train.precision=float32",
    )
    assert result.code == 0, result.err
    new = "has no trained encoder.pooler, mlm, mlm.norm, mlm.transform, nsp: initialised randomly"
    assert (new in result.err) is (kind == "bare")
    loaded = read_model(tmp_path / "run")
    assert loaded.untrained == () and loaded.objective.nsp is not None
    # One step at the tiny initial learning rate of the warm-up: the published weights are almost unchanged.
    ours, theirs = (m.objective.encoder.state_dict() for m in (loaded, open_model(source)))
    for name in ours:
        if not (kind == "bare" and name.startswith("pooler.")):
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-3)


def test_a_published_model_is_extended(firth, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"the moon man {'a' * i} on the hut\n\n" for i in range(1, 30)))
    result = firth("extend", bare, tmp_path / "text.txt", "--out", tmp_path / "wide", "--tokens", 3)
    assert result.code == 0, result.err
    assert read_model(tmp_path / "wide").untrained == ("encoder.pooler", "mlm")
