"""Translating lines: order, empty lines, greedy and beam search, and a task that can be learnt completely."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.errors import CheckpointError, ConfigError
from firth.inference import translating
from firth.inference.decoding import penalty_of
from firth.inference.model import Model, load_model
from firth.inference.translating import Search, translate_stream
from firth.objectives.translation import Translation
from firth.pretraining.run import pretrain, resolve
from firth.tasks.learnt import trained_length

pytestmark = pytest.mark.unchecked

WORDS = ["red", "blue", "green", "one", "two", "three", "four", "cat", "dog", "bird", "house", "tree", "river", "old"]
WORDS += ["new", "big"]
RECIPE: dict[str, Any] = {
    "model": "transformer-tiny",
    "encoder": {"width": 32, "n_layers": 1, "n_heads": 2, "feed_forward_width": 128, "dropout": 0.0, "norm": "pre"},
    "data": {"length": 24},
    "optim": {"kind": "adamw", "learning_rate": 1e-2, "warmup_share": 0.1, "schedule": "inverse_sqrt", "decay": 0.0},
    "train": {
        "steps": 350,
        "batch_tokens": 768,
        "log_every": 50,
        "eval_every": 0,
        "save_every": 0,
        "precision": "float32",
    },
}


def lines_of(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.sample(WORDS, rng.randint(1, 6))) for _ in range(n)]


@pytest.fixture(scope="module")
def copying_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt to copy its source."""
    folder = tmp_path_factory.mktemp("copying")
    text = folder / "text"
    text.write_text("\n".join(lines_of(1500, 1)) + "\n", "utf-8")
    # Every word is a token.
    build_vocab([text], folder / "vocab", size=68, workers=1)
    prepare([text], folder / "vocab", folder / "corpus", second=[text], hold_out=0.0, workers=1)
    recipe = resolve(RECIPE, [f"data.corpus={folder / 'corpus'}"], "copying")
    pretrain(recipe, folder / "run", tell=lambda _: None)
    return folder / "run"


@pytest.fixture(scope="module")
def copier(copying_run: Path) -> Model:
    return load_model(copying_run)


def test_a_copy_task_is_learnt_to_the_end(copier: Model) -> None:
    """New lines of known words, in orders that training never showed."""
    lines = lines_of(60, 2)
    assert copier.translate(lines) == lines
    assert copier.translate(lines, beam=1) == lines
    assert copier.translate(lines[0]) == lines[0]


def test_lines_keep_their_order_and_empty_ones_are_empty(copier: Model) -> None:
    lines = ["red", "", "one two three four cat dog", "  ", "big"]
    expected = ["red", "", "one two three four cat dog", "", "big"]
    assert copier.translate(lines) == expected
    assert copier.translate([]) == []
    for at_once in (1, 2, 5):
        done = list[int]()
        assert [t.text for t in copier.translate_stream(lines, Search(), at_once, done.append)] == expected
        assert sum(done) == len(lines)


@pytest.mark.parametrize("beam", [1, 3])
def test_lines_together_are_the_lines_one_by_one(beam: int, copier: Model) -> None:
    lines, search = lines_of(20, 3), Search(beam=beam)
    together = list(copier.translate_stream(lines, search))
    few = translate_stream(copier.loaded, lines, search, device=copier.device, budget_tokens=16)
    for line, whole, part in zip(lines, together, few, strict=True):
        (alone,) = copier.translate_stream([line], search)
        assert whole.text == alone.text == part.text
        assert whole.score == pytest.approx(alone.score, abs=1e-4)


class Watched:
    """Records batch sizes: source sequences per call, and the largest number of log-probabilities in one step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.batches, self.scores = list[int](), 0
        begin, advance = Translation.begin, Translation.advance

        def begin_watched(model: Translation, tokens: Any) -> Any:
            self.batches.append(tokens.rows.n_rows)
            return begin(model, tokens)

        def advance_watched(model: Translation, ids: Any, state: Any) -> Any:
            log_probs, state = advance(model, ids, state)
            self.scores = max(self.scores, log_probs.numel())
            return log_probs, state

        monkeypatch.setattr(Translation, "begin", begin_watched)
        monkeypatch.setattr(Translation, "advance", advance_watched)


@pytest.mark.parametrize("beam", [1, 4])
def test_many_short_lines_with_a_large_vocabulary_are_bounded(
    beam: int, copier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, search = [*WORDS * 4, "red blue green one two"], Search(beam=beam)
    whole, n_pieces = list(copier.translate_stream(lines, search)), copier.loaded.tokenizer.size
    watched, most = Watched(monkeypatch), 8 * n_pieces
    monkeypatch.setattr(translating, "MOST_SCORES", most)
    bounded = list(copier.translate_stream(lines, search))
    assert [t.text for t in bounded] == [t.text for t in whole] == lines
    assert watched.scores <= most and max(watched.batches) == 8 // beam


def test_what_may_be_written_is_counted(copier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, lines = Watched(monkeypatch), WORDS * 16
    for extra in (2, 50, 1000):
        watched.batches.clear()
        list(copier.translate_stream(lines, Search(beam=2, extra=extra)))
        # One word and its end, and what may be more.
        assert 2 * (2 + extra) * max(watched.batches) <= translating.MOST_WRITTEN * copier.budget_tokens
        assert sum(watched.batches) == len(lines)
    assert max(watched.batches) == 8


def test_lines_of_a_batch_are_of_similar_length_though_they_cost_the_same(
    copier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translating, "MOST_SCORES", 4 * copier.loaded.tokenizer.size)
    lines = [line for _ in range(4) for line in ("red", "red blue", "red blue green")]
    lengths, begin = list[list[int]](), Translation.begin

    def begin_watched(model: Translation, tokens: Any) -> Any:
        lengths.append(tokens.rows.lengths.tolist())
        return begin(model, tokens)

    monkeypatch.setattr(Translation, "begin", begin_watched)
    list(copier.translate_stream(lines, Search(beam=1)))
    assert lengths == [[n] * 4 for n in (4, 3, 2)]


def test_how_long_lines_of_training_were(copier: Model) -> None:
    assert trained_length(copier.loaded.provenance) == RECIPE["data"]["length"]
    for provenance in ({}, {"recipe": None}, {"recipe": {"data.length": "24"}}, {"recipe": {"data.length": 0}}):
        assert trained_length(provenance) is None
    read = [found.read for found in copier.translate_stream(["red", "", "one two three"], Search())]
    assert read == [2, 0, 4]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_with_damaged_weights_says_so(beam: int, copying_run: Path) -> None:
    damaged = load_model(copying_run)
    damaged.loaded.objective.encoder.pieces.weight.data[7] = float("nan")
    with pytest.raises(CheckpointError, match="not finite numbers: its weights are damaged"):
        damaged.translate("red cat", beam=beam)


def test_scores_are_those_of_the_model(copier: Model) -> None:
    """The score of a translation is the log-probability that the model gives it as a target."""
    from firth.data.rows import pack_lists

    (found,) = copier.translate_stream(["old red house"], Search(beam=2, length_penalty=0.6))
    tokenizer, objective = copier.loaded.tokenizer, copier.loaded.objective
    (pieces,) = tokenizer.ids_many([found.text])
    with torch.no_grad():
        state = objective.begin(pack_lists([[*pieces, tokenizer.end_id]]))
        total, last = 0.0, tokenizer.start_id
        for piece in [*pieces, tokenizer.end_id]:
            log_probs, state = objective.advance(torch.tensor([last]), state)
            total, last = total + float(log_probs[0, piece]), piece
    assert found.ended and found.tokens == len(pieces)
    assert found.log_prob == pytest.approx(total, abs=1e-4)
    assert found.score == pytest.approx(total / penalty_of(len(pieces) + 1, 0.6), abs=1e-4)


def test_a_translation_is_no_longer_than_allowed(copier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Translation.advance

    def never_ends(self: Translation, ids: Any, state: Any) -> Any:
        log_probs, state = advance(self, ids, state)
        log_probs[:, copier.loaded.tokenizer.end_id] = -1e9
        return log_probs, state

    monkeypatch.setattr(Translation, "advance", never_ends)
    (found,) = copier.translate_stream(["red cat"], Search(beam=2, extra=3))
    assert not found.ended
    # Two words and the end token of the source, and three more.
    assert found.tokens == 2 + 1 + 3


def test_an_end_at_the_first_step_is_an_empty_translation(copier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Translation.advance

    def ends(self: Translation, ids: Any, state: Any) -> Any:
        log_probs, state = advance(self, ids, state)
        log_probs[:, copier.loaded.tokenizer.end_id] = 0.0
        return log_probs, state

    monkeypatch.setattr(Translation, "advance", ends)
    for beam in (1, 4):
        (found,) = copier.translate_stream(["red cat"], Search(beam=beam))
        assert (found.text, found.tokens, found.ended) == ("", 0, True)


@pytest.mark.parametrize("beam", [1, 4])
def test_no_special_token_is_written(beam: int, copier: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be missing from the text, without a word."""
    advance, tokenizer = Translation.advance, copier.loaded.tokenizer

    def unsure(self: Translation, ids: Any, state: Any) -> Any:
        log_probs, state = advance(self, ids, state)
        others = [number for number in tokenizer.special_ids if number != tokenizer.end_id]
        log_probs[:, others] = -1e-3
        return log_probs, state

    monkeypatch.setattr(Translation, "advance", unsure)
    (found,) = copier.translate_stream(["red cat"], Search(beam=beam))
    assert found.ended and len(found.text.split()) == found.tokens


@pytest.mark.parametrize(
    "options",
    [{"beam": 0}, {"length_penalty": -0.1}, {"length_penalty": float("nan")}, {"length_penalty": 1e308}, {"extra": 0}],
)
def test_searches_that_make_no_sense(options: dict[str, Any], copier: Model) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        copier.translate("red", **options)


def test_a_model_that_does_not_translate_says_so(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="system bert does not translate: train one with"):
        load_model(tiny_run).translate("red")
