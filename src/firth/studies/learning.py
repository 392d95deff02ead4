"""``firth study learning``: what makes a small model learn from few tokens, one change at a time.

Every variant is pre-trained on the same text for the same number of tokens and scored in the same way: held-out masked
language modelling with the published masking (15 % of single tokens, 80/10/10) in sequences of 64 and 128 tokens, and
the share of minimal pairs in which it prefers the grammatical sentence.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from firth.config import read_json
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.files import make_folder
from firth.folder import PRETRAINING, read_model, write_model
from firth.inference.model import load_model
from firth.inference.text_scores import MinimalPair, pair_accuracies
from firth.models.bert import Bert
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.pretraining import run as job
from firth.pretraining.assembly import make_dev_loader
from firth.studies.cells import StudyCell, check_corpus
from firth.tasks.readers.files import Problems, read_jsonl
from firth.training.log import read_log

TOKENS = {"2.5 M": 2_500_000, "12 M": 12_000_000}
PREDICTED_FOR = "2.5 M"
SEEDS = 3
# Held-out losses whose first crossing is reported: just above the end of the plateau, and on the way down.
LOSSES = (6.3, 5.5, 5.0)
LENGTHS = (64, 128)
EVAL_BATCHES = 60
# One in this many pairs of a file is scored: 13,400 and 23,000 pairs would take as long as the training.
PAIR_STEP = 10
PAIRS = {"BLiMP": Path("blimp/dev.jsonl.gz"), "Zorro": Path("zorro/dev.jsonl.gz")}
BATCH_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One row: ``settings`` on top of the base. ``budgets``: the numbers of tokens it is trained for, by name.

    ``predicted``: the held-out loss in sequences of 64 after ``PREDICTED_FOR`` tokens that was expected before any row
    had been run with three seeds. ``left_to_right``: the share of the tokens that the same weights first learn left to
    right from.
    """

    predicted: float
    settings: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ("2.5 M",)
    left_to_right: float = 0.0


_BASE: dict[str, Any] = {
    "model": "bert-mini",
    "data": {"instances": "documents", "length": 64},
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "optim": {"kind": "adamw", "learning_rate": 1e-3, "warmup_share": 0.05, "beta2": 0.99, "epsilon": 1e-8},
}
_BIAS = "init.output_bias=frequencies"
_TOKENS = "init.embeddings=cooccurrence"
_POSITIONS = "init.positions=sinusoids"
_NEIGHBOURS = "init.neighbour_heads=[-1, 1]"
_LENGTHS = ("data.long_length=128", "data.mixed_lengths=true", "data.long_share=0.3")
_START = (_BIAS, _TOKENS, _POSITIONS, _NEIGHBOURS)
_BEST = (*_START, *_LENGTHS, "masking.share=0.2")
VARIANTS: dict[str, Variant] = {
    "random start": Variant(predicted=6.6, budgets=("2.5 M", "12 M")),
    "bias from frequencies": Variant(predicted=6.6, settings=(_BIAS,)),
    "and token vectors": Variant(predicted=6.25, settings=(_BIAS, _TOKENS)),
    "and sinusoids": Variant(predicted=5.6, settings=(_BIAS, _TOKENS, _POSITIONS)),
    "and neighbour heads": Variant(predicted=4.75, settings=_START),
    "neighbour heads without token vectors": Variant(predicted=5.6, settings=(_BIAS, _POSITIONS, _NEIGHBOURS)),
    "four neighbour heads": Variant(predicted=4.75, settings=(*_START[:-1], "init.neighbour_heads=[-1, 1, -2, 2]")),
    "both lengths": Variant(predicted=4.75, settings=(*_START, *_LENGTHS)),
    "both lengths, 20 % masked": Variant(predicted=4.67, settings=_BEST, budgets=("2.5 M", "12 M")),
    "30 % masked": Variant(predicted=4.65, settings=(*_START, *_LENGTHS, "masking.share=0.3")),
    "never kept": Variant(predicted=4.9, settings=(*_BEST, "masking.mask=0.9", "masking.keep=0.0")),
    "whole words": Variant(predicted=4.75, settings=(*_BEST, "masking.whole_words=true")),
    "learning rate 2e-3": Variant(predicted=4.8, settings=(*_BEST, "optim.learning_rate=2e-3")),
    "learning rate 5e-4": Variant(predicted=4.85, settings=(*_BEST, "optim.learning_rate=5e-4")),
    "beta2 0.999": Variant(predicted=4.67, settings=(*_BEST, "optim.beta2=0.999")),
    "1,024 tokens a step": Variant(predicted=4.55, settings=(*_BEST, "train.batch_tokens=1024")),
    "Muon": Variant(
        predicted=4.48, settings=(*_BEST, "optim.kind=muon", "optim.matrix_scale=2.0"), budgets=("2.5 M", "12 M")
    ),
    "neighbour gain 2": Variant(predicted=4.65, settings=(*_BEST, "init.neighbour_gain=2.0")),
    "initial deviation 0.04": Variant(predicted=4.75, settings=(*_BEST, "encoder.init_range=0.04")),
    "lengths 32 and 128": Variant(predicted=4.75, settings=(*_BEST, "data.length=32")),
    "left to right first": Variant(predicted=4.65, settings=_BEST, left_to_right=0.25),
    "left to right first, no neighbour heads": Variant(
        predicted=4.9, settings=(*_BEST, "init.neighbour_heads=[]"), left_to_right=0.25
    ),
    "with next sentences": Variant(predicted=4.85, settings=(*_START, "data.instances=pairs", "masking.share=0.2")),
}


def study_cells(data: Path, models: Path, _out: Path) -> list[StudyCell]:
    """All cells. ``data``: has the minimal pairs. ``models``: has the English corpus."""
    corpus = models / "en" / "corpus"
    check_corpus(corpus)
    for path in PAIRS.values():
        if not (data / path).is_file():
            raise ConfigError(f"{data / path}: no such file (--data: the folder of the data sets)")
    return learning_cells(data, corpus)


def learning_cells(data: Path, corpus: Path) -> list[StudyCell]:
    """One cell per budget, variant and seed."""
    pairs = {name: str(data / path) for name, path in PAIRS.items()}
    cells = []
    for budget, n_tokens in TOKENS.items():
        for name, variant in VARIANTS.items():
            for seed in range(1, SEEDS + 1) if budget in variant.budgets else ():
                batch = next((int(s.rpartition("=")[2]) for s in variant.settings if "batch_tokens" in s), BATCH_TOKENS)
                steps = n_tokens // batch
                train = {
                    "steps": steps,
                    "batch_tokens": batch,
                    "micro_batches": 1,
                    "seed": seed,
                    "eval_batches": 10,
                    "eval_every": steps // 25,
                    "save_every": steps // 4,
                    "log_every": steps // 25,
                }
                plain = {**_BASE, "data": {**_BASE["data"], "corpus": str(corpus)}, "train": train}
                options: dict[str, Any] = {"recipe": plain, "settings": [*variant.settings], "pairs": pairs}
                work: Callable[..., dict[str, Any]] = learning_cell
                if variant.left_to_right:
                    work, options["share"] = left_to_right_first_cell, variant.left_to_right
                cells.append(StudyCell(f"{budget}/{name}/seed {seed}", work, options))
    return cells


def learning_cell(
    folder: Path, *, recipe: dict[str, Any], settings: list[str], pairs: Mapping[str, str]
) -> dict[str, Any]:
    """Pre-train one model; returns when its loss fell below ``LOSSES``, its final losses, and its score on pairs."""
    return _facts(_trained(folder / "run", recipe, settings), recipe, pairs)


def left_to_right_first_cell(
    folder: Path, *, recipe: dict[str, Any], settings: list[str], pairs: Mapping[str, str], share: float
) -> dict[str, Any]:
    """``learning_cell``, with ``share`` of the steps left to right first, at a constant rate after their warm-up."""
    train = recipe["train"]
    n_first = round(share * train["steps"])
    first_recipe = recipe | {
        "model": recipe["model"].replace("bert-", "bert-ltr-"),
        "optim": {**recipe["optim"], "schedule": "constant"},
        "train": {**train, "steps": n_first},
    }
    first = _trained(folder / "left-to-right", first_recipe, settings)
    start = folder / "start"
    if not start.is_dir():
        make_folder(start, lambda out: _write_masked(first.model, out))
    then_settings = [key for key in settings if not key.startswith("init.")]
    then_recipe = recipe | {"model": f"{start}/", "train": {**train, "steps": train["steps"] - n_first}}
    return _facts(_trained(folder / "run", then_recipe, then_settings), recipe, pairs, first)


@dataclass(frozen=True, slots=True)
class _Trained:
    """A finished run: its newest checkpoint's model folder, its steps, and its minutes."""

    run: Path
    model: Path
    steps: int
    minutes: float


def _trained(run: Path, recipe: dict[str, Any], settings: list[str]) -> _Trained:
    outcome = job.pretrain_or_resume(run, lambda: job.resolve(recipe, settings, str(run.parent)), processes=1)
    newest = run / "checkpoints" / f"step-{outcome.step}"
    return _Trained(run, newest, outcome.step, read_json(newest / "train" / "state.json")["elapsed_s"] / 60)


def _facts(
    last: _Trained, recipe: dict[str, Any], pairs: Mapping[str, str], first: _Trained | None = None
) -> dict[str, Any]:
    """What the table shows; the tokens and minutes of a ``first`` run are counted."""
    steps_before, minutes_before = (first.steps, first.minutes) if first else (0, 0.0)
    per_step = recipe["train"]["batch_tokens"]
    return {
        "below": {
            str(loss): None
            if step is None
            else {
                "tokens": (steps_before + step) * per_step,
                "minutes": minutes_before + last.minutes * step / last.steps,
            }
            for loss, step in _crossings(last.run / "log.jsonl").items()
        },
        "held_out": {str(length): held_out(last.run, last.model, length) for length in LENGTHS},
        "pairs": {name: preferred(last.model, Path(path)) for name, path in pairs.items()},
        "minutes": minutes_before + last.minutes,
    }


def _write_masked(left_to_right: Path, out: Path) -> None:
    """Write a model for masked language modelling with the weights of one that reads left to right."""
    loaded = read_model(left_to_right)
    encoder = loaded.objective.encoder
    assert isinstance(encoder, Bert)
    masked = MaskedLM(Bert(dataclasses.replace(encoder.config, causal=False)), MaskedLMConfig(next_sentence=False))
    weights = loaded.objective.state_dict()
    masked.load_state_dict({f"m{name}" if name.startswith("lm.") else name: t for name, t in weights.items()})
    write_model(out, "bert", PRETRAINING, masked, loaded.tokenizer, {})


def _crossings(log: Path) -> dict[float, int | None]:
    """The first step at which the held-out loss was below each of ``LOSSES``."""
    scores = [(event["step"], event["mlm_loss"]) for event in read_log(log) if event["event"] == "dev"]
    return {loss: next((step for step, found in scores if found < loss), None) for loss in LOSSES}


@torch.inference_mode()
def held_out(run: Path, model: Path, length: int) -> dict[str, float]:
    """Loss and accuracy on held-out text in sequences of ``length``."""
    recipe = job.recipe_of(run)
    recipe = dataclasses.replace(
        recipe,
        train=dataclasses.replace(recipe.train, batch_tokens=4096),
        objective=dataclasses.replace(recipe.objective, next_sentence=False),
        data=dataclasses.replace(recipe.data, instances="documents", length=length, long_length=0, mixed_lengths=False),
    )
    objective = load_model(model).loaded.objective
    assert isinstance(objective, MaskedLM)
    loss, correct, count = 0.0, 0.0, 0
    for batch in make_dev_loader(recipe, Corpus(recipe.data.corpus)).one_epoch(EVAL_BATCHES):
        target = batch.targets["mlm"]
        states = objective.encoder(batch.tokens).top.index_select(0, target.index)
        sums = objective.mlm.loss(states, objective.encoder.piece_embedding, target.label)
        loss, correct, count = loss + float(sums[0]), correct + float(sums[1]), count + len(target.label)
    return {"loss": loss / count, "accuracy": correct / count}


def preferred(model: Path, path: Path) -> float:
    """The share of minimal pairs in which the model prefers the good sentence, as the mean over paradigms."""
    return pair_accuracies(load_model(model).prefers_good(_pairs(path)))["all"]["accuracy"]


def _pairs(path: Path) -> Iterator[MinimalPair]:
    for number, row in read_jsonl(path, Problems()):
        if number % PAIR_STEP == 0:
            yield MinimalPair(row["sentence_good"], row["sentence_bad"], row["field"], row["UID"])
