"""What ``results.json`` of a fine-tuning holds: every score by split, over seeds and settings."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from firth.finetuning.labelled import LabelledData
from firth.finetuning.recipe import Finetune
from firth.metrics.bootstrap import mean_interval
from firth.tasks.learnt import reads_pairs

RESULTS = "results.json"
# Instead of a seed: the model whose weights are the mean of all seeds' weights.
AVERAGE: Literal["average"] = "average"
# A run has collapsed if its held-out score is this far below the median of the other seeds.
_COLLAPSE = 0.15


def run_name(run: Mapping[str, Any]) -> str:
    """A run's settings and seed in words."""
    return ", ".join([*run["settings"], seed_name(run["seed"])])


def seed_name(seed: int | str) -> str:
    return "mean of the seeds' weights" if seed == AVERAGE else f"seed {seed}"


def best_of(scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run with the highest held-out score; ties go to the first seed."""
    return max(scored, key=lambda run: run["best"])


def results_of(
    recipe: Finetune,
    labelled: LabelledData,
    settings: Sequence[tuple[str, ...]],
    chosen: int,
    by_setting: Sequence[Sequence[dict[str, Any]]],
    scored: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The results of all runs. ``by_setting``: the runs of each combination; ``scored``: those of the chosen one."""
    dev = {
        name: {m: summary(m, [run["dev"][name][m] for run in scored]) for m in scored[0]["dev"][name]}
        for name in labelled.dev
    }
    held = {m: summary(m, [run["held_out"][m] for run in scored]) for m in scored[0]["held_out"]}
    best = best_of(scored)
    return {
        "task": recipe.task,
        "kind": recipe.kind,
        "pairs": reads_pairs(labelled.train),
        "metric": recipe.metric,
        "metrics": list(labelled.metrics),
        "chosen_on": "the dev file" if recipe.data.choose_on == "dev" else "held-out training examples",
        "examples": {
            "train": len(labelled.train),
            "held_out": len(labelled.held),
            **{name: len(records) for name, records in labelled.dev.items()},
        },
        "settings": [list(one) for one in settings],
        "chosen": chosen,
        "held_out": held,
        "dev": dev,
        "best_seed": best["seed"],
        "calibration": best["calibration"],
        "breakdown": best["breakdown"],
        "mistakes": best.get("mistakes", {}),  # of classifiers
        "runs": [run | {"collapsed": collapsed(run, runs)} for runs in by_setting for run in runs],
        "scored": [
            {key: value for key, value in run.items() if key not in ("breakdown", "mistakes")} for run in scored
        ],
        "notes": labelled.notes,
    }


def summary(metric: str, values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and 95 % interval of a score over seeds, the best (of errors the least), and all."""
    mean, deviation, half_width = mean_interval(values)
    best = min(values) if metric == "mean_absolute_error" else max(values)
    return {"mean": mean, "sd": deviation, "interval": half_width, "best": best, "values": list(values)}


def format_score(score: Mapping[str, Any]) -> str:
    """Format a score: ``0.9120``; over several seeds ``0.9120 ± 0.0041``, mean and standard deviation."""
    return f"{score['mean']:.4f}" + (f" ± {score['sd']:.4f}" if len(score["values"]) > 1 else "")


def collapsed(run: Mapping[str, Any], like: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run scored far below the others, which differ only in the seed."""
    scores = sorted(other["best"] for other in like)
    return len(scores) > 2 and run["best"] < scores[len(scores) // 2] - _COLLAPSE
