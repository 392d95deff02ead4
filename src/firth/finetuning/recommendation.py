"""What a comparison recommends: two sentences on which model to use and why, and what else to know."""

from collections.abc import Mapping
from typing import Any

from firth.finetuning.labelled import MUCH_SHARED
from firth.metrics.bootstrap import CONFIDENCE

# With fewer independent examples no difference is significant: of five, all of one sign, p is 2 x 0.5^5 = 0.06.
FEWEST_UNITS = 6
BETTER, WORSE, UNSURE = "better", "worse", "not reliably better"


def verdict(row: Mapping[str, Any]) -> str:
    """Whether a way is reliably better or worse than the baseline, by bootstrap and, where there is one, sign test."""
    low, high = row["over_baseline_interval"]
    significant = row["sign_test"] is None or row["sign_test"] <= 1 - CONFIDENCE
    if row["units"] < FEWEST_UNITS or not significant:
        return UNSURE
    return BETTER if low > 0 else WORSE if high < 0 else UNSURE


def equal_labels(curve: Mapping[str, Mapping[int, float]]) -> dict[str, Any] | None:
    """The score of every way at the largest number of labels that all were fitted to; None if all have equally many,
    or there is no such number.

    ``curve``: each way's scores by number of labels.
    """
    common = set[int].intersection(*map(set, curve.values()))
    if not common or len({max(scores) for scores in curve.values()}) == 1:
        return None
    n = max(common)
    return {"labels": n, "scores": {way: scores[n] for way, scores in curve.items()}}


def recommendation(results: Mapping[str, Any]) -> str:
    """Recommend in two sentences what to use, and why.

    Others follow where they apply: the scores at an equal number of labels if the time ended before all ways had the
    same, the ways that were not fitted at all, that there are too few dev examples, and that nothing is better than the
    commonest answer.
    """
    parts = (_recommended, _shared, _few, _at_equal_labels, _not_fitted, _of_majority)
    sentences = [part(results) for part in parts]
    return " ".join(filter(None, sentences))


def _shared(results: Mapping[str, Any]) -> str:
    shared, n = results["shared"], results["examples"][results["split"]]
    if shared < MUCH_SHARED * n:
        return ""
    return f"But {shared:,} of {n:,} {results['split']} examples are training examples too: all scores are too high."


def _few(results: Mapping[str, Any]) -> str:
    ways, split, units = results["ways"], results["split"], results["ways"]["baseline"]["units"]
    if units >= FEWEST_UNITS or len(ways) == 1:
        return ""
    group = "" if units == results["examples"][split] else "group of " if units == 1 else "groups of "
    return f"No difference on {units} {group}{split} examples is reliable: give at least {FEWEST_UNITS} with --dev."


def _at_equal_labels(results: Mapping[str, Any]) -> str:
    equal, ways, names = results["equal_labels"], results["ways"], results["names"]
    if equal is None:
        return ""
    fitted = ", ".join(f"{names[way]} {row['labels']:,}" for way, row in ways.items())
    scores = ", ".join(f"{names[way]} {score:.4f}" for way, score in equal["scores"].items())
    return (
        f"The time ended before all had the same labels ({fitted}): with {equal['labels']:,} labels each, "
        f"{results['metric']} is {scores}; more --minutes fits all of them to {results['examples']['train']:,}."
    )


def _not_fitted(results: Mapping[str, Any]) -> str:
    ways, names = results["ways"], results["names"]
    missing = [name for way, name in names.items() if way not in ways]
    # If the baseline alone was fitted, the first sentence has said so.
    if not missing or len(ways) == 1:
        return ""
    return f"Not fitted in the time: {', '.join(missing)}; more --minutes may change the recommendation."


def _of_majority(results: Mapping[str, Any]) -> str:
    majority, metric = results["majority"], results["metric"]
    if majority is None or max(row["score"] for row in results["ways"].values()) > majority["scores"][metric]:
        return ""
    return f"Nothing is better than always {majority['answer']} ({metric} {majority['scores'][metric]:.4f})."


def _recommended(results: Mapping[str, Any]) -> str:
    ways, best, winner, names = results["ways"], results["best"], results["winner"], results["names"]
    metric, n = results["metric"], results["examples"]["train"]
    base = ways["baseline"]
    if len(ways) == 1:
        wanted = "more --minutes" if len(names) > 1 else "--models, and enough --minutes for them,"
        short = base["labels"] < n
        fewer = f" with {base['labels']:,} of {n:,} labels" if short else ""
        aims = "to fit it to all of them and to measure" if short else "to measure"
        return (
            f"Use the baseline ({metric} {base['score']:.4f}{fewer}): nothing else was fitted. Give {wanted} {aims} "
            "what pre-training adds here."
        )
    others = [name for name in ways if name != "baseline"]
    row = ways[winner if winner != "baseline" else max(others, key=lambda name: ways[name]["score"])]
    low, high = (100 * bound for bound in row["over_baseline_interval"])
    points, side = 100 * abs(row["over_baseline"]), "above" if row["over_baseline"] >= 0 else "below"
    test = "" if row["sign_test"] is None else f"; exact sign test p = {row['sign_test']:.2g}"
    margin = (
        f"{points:.1f} points {side} the baseline (95 % interval of the difference {low:+.1f} to {high:+.1f}{test})"
    )
    if winner != "baseline":
        unsure = f"{names[best]} scores {ways[best]['score']:.4f}, which is not reliably above the baseline. "
        higher = unsure if best != winner else ""
        fewer = f", with {row['labels']:,} of {n:,} labels" if row["labels"] < n else ""
        return (
            f"Use {names[winner]}: {metric} {row['score']:.4f}{fewer}, {margin}. {higher}It takes "
            f"{row['predict_ms']:.1f} ms per example and {row['megabytes']:.1f} MB, the baseline "
            f"{base['predict_ms']:.1f} ms and {base['megabytes']:.1f} MB."
        )
    fewer = f" with {row['labels']:,} labels" if row["labels"] < base["labels"] else ""
    more = f" with {base['labels']:,} labels" if fewer else ""
    return (
        f"Use the baseline ({metric} {base['score']:.4f}{more}): {row['way']}{fewer} is {verdict(row)}, {margin}. The "
        f"baseline takes {base['predict_ms']:.1f} ms per example and {base['megabytes']:.1f} MB instead of "
        f"{row['predict_ms']:.1f} ms and {row['megabytes']:.1f} MB."
    )
