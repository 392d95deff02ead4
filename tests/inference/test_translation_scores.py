"""BLEU and chrF of translations: equal to sacreBLEU's, and inputs that cannot be scored."""

import json
import sys
from pathlib import Path

import pytest

from firth.errors import ConfigError, InputError
from firth.finetuning.evaluate import evaluate
from firth.finetuning.recipe import LabelledConfig
from firth.inference.translation_scores import evaluate_translation, score_translation_file

pytest.importorskip("sacrebleu")

GOLD = ["the cat sat on the mat .", "a dog runs in the park .", "two birds sing"]


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def test_a_file_of_translations(tmp_path: Path) -> None:
    gold = written(tmp_path / "gold", GOLD)
    found = score_translation_file(written(tmp_path / "lines", GOLD), gold)
    assert found["scores"]["bleu"] == pytest.approx(100) and found["examples"] == 3
    objects = [json.dumps({"translation": line, "score": -1.0}) for line in GOLD]
    assert score_translation_file(written(tmp_path / "found.jsonl", objects), gold) == found
    for bad in ("{}", "[" * 100_000):
        with pytest.raises(InputError, match=r"broken.jsonl:2: expected an object with the text of a .translation."):
            score_translation_file(written(tmp_path / "broken.jsonl", [objects[0], bad, objects[2]]), gold)
    with pytest.raises(InputError, match="short has 2 lines and .*gold 3"):
        score_translation_file(written(tmp_path / "short", GOLD[:2]), gold)


def test_a_model_that_does_not_translate_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    gold = written(tmp_path / "gold", GOLD)
    with pytest.raises(ConfigError, match="does not translate"):
        evaluate_translation(tiny_run, gold, gold)


def test_without_the_library_nothing_is_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ConfigError, match=r"pip install 'firth\[mt\]'"):
        evaluate_translation(tmp_path / "not read", "nor this", "nor this")


def test_a_model_that_translates_wants_translations(tiny_pairs: Path, tmp_path: Path) -> None:
    from firth.pretraining.run import pretrain, resolve

    recipe = {
        "model": "transformer-tiny",
        "encoder": {"width": 16, "feed_forward_width": 16},
        "data": {"length": 32},
        "train": {"steps": 1, "batch_tokens": 64, "precision": "float32"},
    }
    pretrain(resolve(recipe, [f"data.corpus={tiny_pairs}"], "x"), tmp_path / "run", tell=lambda _: None)
    gold = written(tmp_path / "gold", GOLD)
    with pytest.raises(ConfigError, match="translates: give --gold as well"):
        evaluate(tmp_path / "run", gold, LabelledConfig())
    found = evaluate_translation(tmp_path / "run", gold, gold)
    assert set(found["scores"]) == set(found["signatures"]) == {"bleu", "chrf"}
    assert found["search"] == {"beam": 4, "length_penalty": 0.6, "extra": 50}
    assert found["examples"] == 3
