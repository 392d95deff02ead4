"""``firth finetune --head-preset``: a published tagger by name, from a tagging file to answers."""

import json
from pathlib import Path

import pytest
import torch

from firth.folder import PRETRAINING, write_model
from firth.models.bilm import Bilm
from firth.models.config import BilmConfig
from firth.objectives.bilm import BilmLM
from firth.objectives.config import BilmLMConfig
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained language model, tagged sentences, and word vectors."""
    place = tmp_path_factory.mktemp("designs")
    tokenizer = SYSTEMS["elmo"].reads(Tokenizer.from_words([*WORDS.specials, "Ann", "walked"], lowercase=False))
    sizes = BilmConfig(vocab_size=tokenizer.size, width=4, cells=4, character_width=3, filters=((2, 3),), n_highways=0)
    torch.manual_seed(0)
    (place / "lm").mkdir()
    write_model(place / "lm", "elmo", PRETRAINING, BilmLM(Bilm(sizes), BilmLMConfig()), tokenizer, {})
    (place / "t.conll").write_text("\n".join(f"Ann B-PER\nLee{i} I-PER\nwalked O\n" for i in range(10)))
    (place / "v.txt").write_text("ann 1 2 3\nwalked 4 5 6\n")
    return place


SMALL = ("train.precision=float32", "head.network.lstm_width=4", "head.network.own_words=3")
FAST = [f"--set={key}" for key in SMALL]


def test_a_tagger_by_its_name(firth, folder: Path, tmp_path: Path) -> None:
    data = ["--task", "tag", "--model", folder / "lm", "--train", folder / "t.conll", "--epochs", "1"]
    vectors = f"--set=adapt.vectors={folder / 'v.txt'}"
    done = firth("finetune", "--head-preset", "taglm", *data, *FAST, vectors, "--out", tmp_path / "run")
    assert done.code == 0 and "tag fine-tuned on" in done.out
    assert "vectors for 2 of the vocabulary's 2 words (1 by their lower case)" in done.err
    about = json.loads((tmp_path / "run" / "model" / "firth.json").read_text())
    assert about["options"]["scheme"] == "BIOES" and about["options"]["network"]["join"] == "first"
    answered = firth("predict", tmp_path / "run", stdin=b"Ann Lee walked\n")
    assert answered.code == 0 and len(json.loads(answered.out)["tags"]) == 3
    # Other tools cannot express it, and say so by name.
    refused = firth("convert", tmp_path / "run", "--as", "onnx", "--out", tmp_path / "model.onnx")
    assert refused.code == 2 and "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("name", "task", "words"),
    [
        ("tagml", "tag", "head_preset='tagml': known are taglm, elmo, bilstm-crf"),
        ("taglm", "classify", "head_preset='taglm' is for tag, not for a task of kind classify"),
    ],
)
def test_what_is_no_design_of_the_task_is_one_line(firth, folder: Path, name: str, task: str, words: str) -> None:
    data = ["--task", task, "--model", folder / "lm", "--train", folder / "t.conll", "--out", folder / "out"]
    result = firth("finetune", "--head-preset", name, *data)
    assert result.code == 2 and words in result.complaint
    assert not (folder / "out").exists()


def test_the_recipe_of_a_design_is_shown_with_its_name(firth, folder: Path) -> None:
    data = ["--task", "tag", "--model", folder / "lm", "--train", folder / "t.conll"]
    shown = firth("finetune", "--head-preset", "bilstm-crf", *data, "--show-recipe")
    assert shown.code == 0
    assert 'head_preset = "bilstm-crf"' in shown.out and 'join = "none"' in shown.out
