"""The results of a comparison: every fit scored, and all of them beside the baseline."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firth.baseline.config import TfidfConfig
from firth.baseline.folder import read_baseline
from firth.finetuning.label_check import label_conflicts, label_suspects
from firth.finetuning.labelled import LabelledData, shared_examples
from firth.finetuning.recommendation import BETTER, equal_labels, recommendation, verdict
from firth.inference.loading import load
from firth.metrics.bootstrap import paired_bootstrap, percentile_interval, sign_test
from firth.metrics.calibration import expected_calibration_error
from firth.tasks.predictions import Labelled, MultiLabelled, TaggedText, Valued
from firth.tasks.split import numbers_by, split_key
from firth.tasks.table import TASKS

# Scores shown side by side, whichever of them ranks: accuracy alone hides labels that are never predicted.
_BESIDE = {"classify": ("accuracy", "macro_f1"), "multilabel": ("micro_f1", "macro_f1")}
# Total number of resampled examples over all bootstrap samples.
_RESAMPLED, _FEWEST_DRAWS, _MOST_DRAWS = 2_000_000, 100, 1000


def score_fit(run: Path, kind: str, dev: Sequence[Any]) -> dict[str, Any]:
    """Predict the dev examples; record all scores, calibration, time, size, and how texts too long were read."""
    model = load(run)
    started_at_s = time.monotonic()
    noted = Counter[str]()
    answers = [answer for _, answer in model.answer_stream(dev, noted=noted)]
    predict_s = time.monotonic() - started_at_s
    labels = model.labels
    size = sum(path.stat().st_size for path in (run / "model").rglob("*") if path.is_file())
    return {
        "scores": TASKS[kind].score(dev, answers, labels),
        "calibration_error": _calibration_error(kind, dev, answers, labels),
        "answers": [_stored(answer) for answer in answers],
        "predict_ms": 1000 * predict_s / len(dev),
        "megabytes": size / 1e6,
        "noted": dict(noted),
    }


def _calibration_error(kind: str, dev: Sequence[Any], answers: Sequence[Any], labels: Sequence[str]) -> float | None:
    if kind != "classify":
        return None
    shares = np.array([[answer.probabilities[label] for label in labels] for answer in answers])
    gold = np.array([labels.index(str(record.label)) for record in dev])
    return expected_calibration_error(shares / shares.sum(1, keepdims=True), gold)


def compare_fits(
    task: str,
    labelled: LabelledData,
    names: Mapping[str, str],
    cells: Mapping[str, Mapping[int, dict[str, Any]]],
    skipped: Sequence[str],
    baseline: Path,
) -> dict[str, Any]:
    """The contents of ``compare.json``.

    ``names``: of the ways, by folder, in their order; ``cells``: their fits by number of labels; ``skipped``: what was
    not fitted, in words; ``baseline``: the run of the baseline's largest fit.
    """
    metric = labelled.metrics[0]
    split, dev = next(iter(labelled.dev.items()))
    last = {name: cells[name][max(cells[name])] for name in names if cells[name]}
    units = _units(dev)
    draws = _draws(labelled, dev, units, [cell["answers"] for cell in last.values()])
    best = max(last, key=lambda name: last[name]["scores"][metric])
    columns = dict(zip(last, draws.T, strict=True))
    rows = {}
    for name, cell in last.items():
        low, high = percentile_interval(columns[name])
        behind = columns[name] - columns["baseline"]
        rows[name] = {
            **{key: value for key, value in cell.items() if key not in ("answers", "notes", "noted")},
            "score": cell["scores"][metric],
            "interval": [low, high],
            "over_baseline": cell["scores"][metric] - last["baseline"]["scores"][metric],
            "over_baseline_interval": list(percentile_interval(behind)),
            "units": len(units),
            # It takes examples to be independent, which those of a group are not.
            "sign_test": _sign_test(dev, cell["answers"], last["baseline"]["answers"])
            if metric == "accuracy" and len(units) == len(dev)
            else None,
        }
    # A way that is not reliably better than the baseline is not worth its cost.
    better = [name for name in rows if verdict(rows[name]) == BETTER]
    winner = max(better, key=lambda name: rows[name]["score"], default="baseline")
    curve = {names[name]: [[n, c["scores"][metric]] for n, c in sorted(some.items())] for name, some in cells.items()}
    results = {
        "task": task,
        "kind": labelled.kind,
        "metric": metric,
        "beside": [name for name in _BESIDE.get(labelled.kind, ()) if name != metric],
        "split": split,
        "examples": {"train": len(labelled.train) + len(labelled.held), split: len(dev)},
        "ways": rows,
        "best": best,
        "winner": winner,
        "names": names,
        "majority": _majority(labelled, dev),
        "equal_labels": equal_labels(
            {way: {n: cell["scores"][metric] for n, cell in cells[way].items()} for way in last}
        ),
        "curve": curve,
        "skipped": list(skipped),
        "shared": shared_examples(dev, [*labelled.train, *labelled.held]),
        "notes": [*labelled.notes, *_notes_of(last.values(), labelled.notes, split)],
        "draws": len(draws),
    }
    return results | {"recommendation": recommendation(results)} | _doubts(labelled, baseline)


def _sign_test(dev: Sequence[Any], answers: Sequence[Any], baseline: Sequence[Any]) -> float:
    """The p-value of a model's right and wrong labels beside the baseline's."""
    pairs = [(a == record.label, b == record.label) for record, a, b in zip(dev, answers, baseline, strict=True)]
    return sign_test(pairs.count((True, False)), pairs.count((False, True)))


def _notes_of(cells: Iterable[Mapping[str, Any]], known: Sequence[str], split: str) -> list[str]:
    """What to know about ways beside what is ``known`` about the data: how they read texts, and cut long ones."""
    ways: dict[str, list[str]] = {}
    for cell in cells:
        counted = [f"{split}, {what}: {n:,}" for what, n in cell["noted"].items()]
        for note in (*cell["notes"], *counted):
            ways.setdefault(note, []).append(cell["way"])
    return [f"{', '.join(names)}: {note}" for note, names in ways.items() if note not in known]


def _majority(labelled: LabelledData, dev: Sequence[Any]) -> dict[str, Any] | None:
    """Scores of always predicting the commonest answer; None for values, and for tags, whose baseline does so."""
    labels = labelled.options.get("labels", ())
    constant: Labelled | MultiLabelled
    if labelled.kind == "classify":
        counts = Counter(record.label for record in dev)
        answer = max(labels, key=lambda label: counts[label])
        constant = Labelled(answer, 1.0, {})
    elif labelled.kind == "multilabel":
        commonest = Counter(frozenset(record.label) for record in dev).most_common(1)[0][0]
        answer = ", ".join(sorted(commonest)) or "no label"
        constant = MultiLabelled(tuple(sorted(commonest)), {})
    else:
        return None
    scores = TASKS[labelled.kind].score(dev, [constant] * len(dev), labels)
    return {"answer": answer, "scores": scores}


def _units(dev: Sequence[Any]) -> list[list[int]]:
    """The numbers of the dev examples by what is drawn together: those of a group, or each alone."""
    grouped = any(record.group for record in dev)
    return [*numbers_by(dev, split_key).values()] if grouped else [[number] for number in range(len(dev))]


def _draws(
    labelled: LabelledData, dev: Sequence[Any], units: Sequence[Sequence[int]], answers: Sequence[Sequence[Any]]
) -> np.ndarray:
    """Scores of every way on resampled dev examples; those of a unit are drawn together."""
    score, labels = TASKS[labelled.kind].score, labelled.options.get("labels", ())
    made = [[_answer(a) for a in some] for some in answers]

    def scores(drawn: np.ndarray) -> list[float]:
        numbers = [i for one in drawn for i in units[one]]
        records = [dev[i] for i in numbers]
        return [score(records, [some[i] for i in numbers], labels)[labelled.metrics[0]] for some in made]

    draws = min(max(_RESAMPLED // (len(dev) * len(made)), _FEWEST_DRAWS), _MOST_DRAWS)
    return paired_bootstrap(scores, len(units), seed=0, draws=draws)


def _doubts(labelled: LabelledData, baseline: Path) -> dict[str, Any]:
    """Training labels that may be wrong."""
    if labelled.kind != "classify":
        return {"suspects": [], "conflicts": []}
    every = [*labelled.train, *labelled.held]
    options = read_baseline(baseline).method.config
    assert isinstance(options, TfidfConfig)
    suspects = [dataclasses.asdict(suspect) for suspect in label_suspects(every, options)]
    return {"suspects": suspects, "conflicts": [dataclasses.asdict(c) for c in label_conflicts(every)]}


def _stored(answer: Any) -> Any:
    """The part of an answer that the scorers read, as plain data."""
    if isinstance(answer, Labelled):
        return answer.label
    if isinstance(answer, MultiLabelled):
        return {"labels": list(answer.labels)}
    return answer.value if isinstance(answer, Valued) else list(answer.tags)


def _answer(found: Any) -> Any:
    """Restore an answer from its stored part."""
    if isinstance(found, str):
        return Labelled(found, 1.0, {})
    if isinstance(found, dict):
        return MultiLabelled(tuple(found["labels"]), {})
    return Valued(found) if isinstance(found, float) else TaggedText(tuple(found), (), ())
