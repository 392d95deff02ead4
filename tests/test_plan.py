"""The suggested pre-training run: sizes, vocabularies, and what is printed."""

import dataclasses
import json
from pathlib import Path

import pytest

from firth import plan as planning
from firth.errors import ConfigError, InputError
from firth.plan import CURVE, Size, _estimated_tokens, choose_size, make_plan, recorded_loss, suggested_vocabulary
from firth.pretraining.length import Pace

ROOT = Path(__file__).parents[1]
SPEEDS = {"bert-tiny": 0.1, "bert-mini": 0.25, "bert-small": 1.0}


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make steps of 2,000 tokens take as long as SPEEDS says, in one process."""

    def pace(recipe: planning.Pretrain, *rest: object, **more: object) -> Pace:
        return Pace(step_s=SPEEDS.get(recipe.model, 5.0), step_tokens=2000.0, epoch_steps=1.0, dev_batches=0)

    monkeypatch.setattr(planning, "measure_pace", pace)
    monkeypatch.setattr(planning.torch, "get_num_threads", lambda: 1)


def size(model: str, per_weight: float, memory: float = 1e9) -> Size:
    return Size(model=model, parameters=1, tokens_per_s=1.0, tokens=1.0, tokens_per_weight=per_weight, memory=memory)


def test_the_widest_size_with_enough_tokens_that_fits_is_chosen() -> None:
    sizes = [size("bert-tiny", 90), size("bert-mini", 9, 2e9), size("bert-small", 3, 4e9)]
    assert choose_size(sizes, None).model == "bert-mini"
    assert choose_size(sizes, 1.5e9).model == "bert-tiny"
    assert choose_size([size("bert-tiny", 1)], None).model == "bert-tiny"


@pytest.mark.parametrize(("tokens", "size"), [(1e3, 4_000), (1e6, 8_000), (2e7, 16_000), (3e9, 30_000)])
def test_more_text_has_a_larger_vocabulary(tokens: float, size: int) -> None:
    assert suggested_vocabulary(tokens) == size


def test_the_curve_is_the_recorded_one() -> None:
    recorded = json.loads((ROOT / "docs/results/firth-mini-en.json").read_text("utf-8"))
    train = recorded["recipe"]["train"]
    step_tokens = train["batch_tokens"] * train["micro_batches"]
    assert [
        (round(point["step"] * step_tokens / 1e6, 3), round(point["mlm_loss"], 2), round(point["mlm_accuracy"], 3))
        for point in recorded["curve"]
    ] == list(CURVE)
    assert recorded_loss(1e6) is None
    assert recorded_loss(2e7) == (16_384_000.0, 3.94, 0.348)


def test_a_size_that_does_not_fit_is_not_measured(
    tiny_text: Path, known_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda device: 1e6)
    plan = make_plan([tiny_text], 1e6, lambda text: None)
    assert [one.model for one in plan.sizes] == ["bert-tiny"], "the smallest is measured, and told that it is too large"


def test_a_plan_for_a_text(tiny_text: Path, known_speed: None) -> None:
    plan = make_plan([tiny_text], 10.0, lambda text: None)
    assert 5_000 < plan.text_tokens < 50_000 and not plan.counted and plan.vocabulary == 4_000
    # 40 epochs of so little text take less than ten minutes at any size, and suffice only for the narrowest model.
    assert plan.chosen.model == "bert-tiny" and plan.epochs == pytest.approx(40)
    assert [s.model for s in plan.sizes] == ["bert-tiny"] and plan.recorded is None


def test_time_decides_where_there_is_text_enough(
    tiny_corpus: Path, known_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_tokens_of", lambda corpus: 1e8)
    # At 8,000 tokens/s the mini reads 19.2 million, six per weight; the small reads less than one per weight.
    plan = make_plan([tiny_corpus], 40.0, lambda text: None)
    assert (plan.chosen.model, plan.chosen.tokens, plan.counted) == ("bert-mini", 19.2e6, True)
    assert [s.model for s in plan.sizes] == ["bert-tiny", "bert-mini", "bert-small"]
    assert plan.vocabulary == 300 and plan.recorded == (16_384_000.0, 3.94, 0.348)
    assert dataclasses.asdict(plan)["chosen"]["model"] == "bert-mini"


def test_speed_is_measured(tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SPEED_S", 0.0)
    monkeypatch.setattr(planning, "_SPEED_TOKENS", 3_000)
    plan = make_plan([tiny_corpus], 0.01, lambda text: None)
    assert plan.chosen.tokens_per_s > 0


def test_what_is_no_text_is_refused(tmp_path: Path, tiny_word_corpus: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        make_plan([tmp_path / "nowhere.txt"], 10.0)
    with pytest.raises(
        ConfigError, match="BERT, which masks WordPiece tokens; this corpus has a vocabulary of kind words"
    ):
        make_plan([tiny_word_corpus], 10.0)
    with pytest.raises(ConfigError, match="--minutes=0: expected a number above 0"):
        make_plan([tiny_word_corpus], 0.0)
    with pytest.raises(ConfigError, match="--minutes=inf: expected a number above 0"):
        make_plan([tiny_word_corpus], float("inf"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("天地玄黃宇宙洪荒" * 100, 800), ("ひらがなのぶん" * 100, 350), ("ภาษาไทย" * 100, 350), ("a word " * 100, 300)],
)
def test_tokens_are_estimated_with_and_without_blanks(text: str, tokens: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    assert _estimated_tokens([tmp_path / "a.txt"]) == pytest.approx(tokens)
