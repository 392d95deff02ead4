"""``firth probe``: compare layers of a frozen encoder, and scalar mixes of them, on a task.

For each way to read the layers a linear head is trained on stored features; the encoder runs over the examples
once. Scores are on held-out training examples and, if given, on the dev file.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.config import to_dict
from firth.errors import ConfigError, FirthError
from firth.files import check_new, new_folder, write_json
from firth.finetuning.base import Base
from firth.finetuning.calibrate import calibrate
from firth.finetuning.labelled import LabelledData
from firth.finetuning.recipe import Finetune, build, plain_recipe
from firth.finetuning.resolve import resolve
from firth.finetuning.results import format_score, summary
from firth.finetuning.train import Run, split_of, tune
from firth.folder import read_model
from firth.inference.outputs import row_outputs
from firth.inference.score import EncodedSplit, score_split
from firth.layers.mixing import WeightedSum
from firth.machine import deterministic, find_machine
from firth.page import Report
from firth.progress import say
from firth.recipes import laid_over
from firth.tasks.config import LinearConfig
from firth.tasks.model import TaskModel

# A linear head on frozen features takes a far higher learning rate than an encoder.
_HEAD_RATE = 5e-3
_EPOCHS = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A way to read layers: its name in the table, and its feature options."""

    name: str
    features: dict[str, Any]


def readings(widths: Sequence[int]) -> list[Reading]:
    """Every single layer; all summed, in a scalar mix, concatenated; the last four concatenated.

    ``widths``: hidden sizes of the layers, the embeddings first. Layers of different sizes are only concatenated.
    """
    every, n_layers = list(range(len(widths))), len(widths) - 1
    mixes = [Reading("all concatenated", {"layers": every, "mix": "concat"})]
    if len(set(widths)) == 1:
        mixes = [
            Reading("scalar mix of all", {"layers": every, "mix": "scalar"}),
            Reading("sum of all", {"layers": every, "mix": "sum"}),
            *mixes,
        ]
    if n_layers > 4:
        mixes.append(Reading("last four concatenated", {"layers": every[-4:], "mix": "concat"}))
    names = {0: "embeddings", n_layers: f"layer {n_layers} (top)"}
    single = [Reading(names.get(n, f"layer {n}"), {"layers": [n], "mix": "one"}) for n in every]
    # Mixes first: the first needs all layers, which are then stored for the others.
    return mixes + single


def probe(
    data: dict[str, Any], overrides: Sequence[str], where: str, out: str | Path, tell: Callable[[str], None] = say
) -> dict[str, Any]:
    """Compare the readings; the folder ``out`` appears once all are done. Returns the contents of ``out/probe.json``.

    ``data`` and ``overrides``: a fine-tuning recipe. ConfigError for options that contradict probing.
    """
    check_new(Path(out))
    plain = plain_recipe(data, overrides, where)
    if plain["adapt"].setdefault("frozen_groups", -1) != -1:
        raise ConfigError(
            "adapt.frozen_groups: probing always freezes the encoder; leave it out, or use firth finetune"
        )
    settings: dict[str, dict[str, Any]] = {
        "optim": {"kind": "adamw", "learning_rate": _HEAD_RATE},
        "train": {"epochs": _EPOCHS, "evaluations_per_epoch": 0},
    }
    if not plain.get("head_preset"):  # else pairs of a small encoder would get a preset of their own
        settings["head"] = {"network": {"kind": "linear"}}
    merged = laid_over(settings, plain)
    recipe, base, labelled = resolve(merged, [], where)
    if not isinstance(recipe.head.network, LinearConfig) or plain["head"].get("network", {}).get("hidden_width"):
        raise ConfigError("head.network: probing always uses a linear head; leave it out, or use firth finetune")
    if recipe.grid:
        raise ConfigError("probing varies only the layers: leave out --grid")
    with new_folder(Path(out)) as folder, deterministic():
        return _probe(recipe, base, labelled, folder, tell)


def _probe(
    recipe: Finetune, base: Base, labelled: LabelledData, out: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    machine = find_machine(recipe.train.precision)
    for note in labelled.notes:
        tell(note)
    every = readings(base.encoder(recipe.train.seed, None).widths)
    seeds = range(recipe.train.seed, recipe.train.seed + recipe.train.seeds)
    train, held = split_of(base, recipe, labelled.train).examples, split_of(base, recipe, labelled.held)
    dev = {name: split_of(base, recipe, records) for name, records in labelled.dev.items()}
    found: dict[str, dict[str, Any]] = {}
    try:
        for number, reading in enumerate(every):
            tell(f"reading {number + 1} of {len(every)}: {reading.name}")
            variant = _read_as(recipe, reading)
            runs = []
            for seed in seeds:
                folder = out / "runs" / f"{number}-seed-{seed}"
                run = Run(base, variant, seed, train, held, machine, out / "features")
                best = tune(run, folder, _quiet)["best"]
                model = read_model(folder / "model").objective
                assert isinstance(model, TaskModel)
                runs.append({"held_out": best, "mix": _mix(model), **_scores(variant, model, held, dev)})
                shutil.rmtree(folder)
            found[reading.name] = {
                "features": reading.features,
                "mix": runs[0]["mix"],
                **{split: summary(recipe.metric, [run[split] for run in runs]) for split in ("held_out", *dev)},
            }
            tell(f"  {recipe.metric} held out: {found[reading.name]['held_out']['mean']:.4f}")
    finally:
        shutil.rmtree(out / "features", ignore_errors=True)
        shutil.rmtree(out / "runs", ignore_errors=True)
    # Single layers from the bottom up, then mixes.
    order = sorted(found, key=lambda name: len(found[name]["features"]["layers"]) > 1)
    result = {
        "task": recipe.task,
        "metric": recipe.metric,
        "seeds": recipe.train.seeds,
        "readings": {name: found[name] for name in order},
        "settings": _settings(recipe),
        "best": max(order, key=lambda name: found[name]["held_out"]["mean"]),
    }
    write_json(out / "probe.json", result)
    try:
        _write_report(out, recipe, result)
    except FirthError as error:
        tell(f"no report.html: {error}")
    return result


def _read_as(recipe: Finetune, reading: Reading) -> Finetune:
    """The recipe with another way to read the layers; texts are mean-pooled unless a pool is given."""
    plain = to_dict(recipe)
    network = plain["head"]["network"] | {"hidden_width": 0}
    if network["pool"] == "summary" and recipe.kind not in ("tag", "answer"):
        network["pool"] = "mean"
    plain["head"]["network"] = network | reading.features
    return build(plain, "probe")


def _settings(recipe: Finetune) -> list[str]:
    """The settings, layers aside, that make a fine-tuning equal to a probe's runs."""
    pool = recipe.head.network.pool
    reads_texts = recipe.kind not in ("tag", "answer")
    hidden = recipe.head.network.hidden_width
    return [
        "adapt.frozen_groups=-1",
        f"optim.kind={recipe.optim.kind}",
        f"optim.learning_rate={recipe.optim.learning_rate:g}",
        f"train.epochs={recipe.train.epochs:g}",
        *([f"head.network.pool={'mean' if pool == 'summary' else pool}"] if reads_texts else []),
        *(["head.network.hidden_width=0"] if hidden else []),
        # Otherwise a small encoder would read the two texts of a pair separately.
        *(["head.network.kind=linear"] if recipe.kind in ("classify", "regress") else []),
    ]


def _quiet(text: str) -> None:
    """Drop the messages of runs: they are short and many."""


def _mix(model: TaskModel) -> list[float] | None:
    """The learned weights of the scalar mix."""
    mix = model.features.mix
    return mix.weights().tolist() if isinstance(mix, WeightedSum) else None


def _scores(recipe: Finetune, model: TaskModel, held: EncodedSplit, dev: dict[str, EncodedSplit]) -> dict[str, float]:
    """The recipe's metric on each dev file, with the threshold that is best on the held-out examples."""
    found, options, budget = {}, recipe.head, recipe.train.batch_tokens
    if dev and recipe.kind in ("multilabel", "answer"):
        outputs = row_outputs(model, held.examples, budget_tokens=budget)
        options, _ = calibrate(recipe.kind, options, held, outputs)
    for name, split in dev.items():
        outputs = row_outputs(model, split.examples, budget_tokens=budget)
        found[name] = score_split(recipe.task, split, outputs, options).scores[recipe.metric]
    return found


def _write_report(out: Path, recipe: Finetune, result: dict[str, Any]) -> None:
    """Write the report: one table, one plot, and the learned weights."""
    report = Report(f"{recipe.task}: which layer of {recipe.model}?")
    report.text(
        f"A linear head on a frozen encoder; {result['metric']}, seeds: {result['seeds']}. Best on held-out examples: "
        f"{result['best']}."
    )
    splits = [key for key in next(iter(result["readings"].values())) if key not in ("features", "mix")]
    report.table(
        ["reading", *splits],
        [[name, *(format_score(row[split]) for split in splits)] for name, row in result["readings"].items()],
    )
    names, rows = list(result["readings"]), list(result["readings"].values())
    means, spreads = [r["held_out"]["mean"] for r in rows], [r["held_out"]["sd"] for r in rows]
    report.bars_plot("Held-out score by reading", names, means, spreads, result["metric"])
    weights = next((row["mix"] for row in rows if row["mix"]), None)
    if weights:
        report.bars_plot(
            "Learned weights of the scalar mix",
            [str(i) for i in range(len(weights))],
            weights,
            [0.0] * len(weights),
            "share",
        )
    report.write(out / "report.html")
