"""``report.html`` of the learning study: losses, speed of learning and minimal pairs, one row per variant."""

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.learning import LENGTHS, LOSSES, PAIRS, PREDICTED_FOR, TOKENS, VARIANTS
from firth.studies.score_figure import draw_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("What makes a small BERT learn")
    report.text(
        "Held-out masked-LM loss with the published masks (15 % of single tokens, 80/10/10), tokens until it fell "
        "below some values, and the share of minimal pairs of which the grammatical sentence is preferred. Mean and "
        "standard deviation over seeds; tokens are those that pass through the encoder."
    )
    for budget in TOKENS:
        header, rows = learning_table(facts, budget)
        if rows:
            report.heading(f"{budget} tokens")
            report.table(header, rows)
            report.plot("Each seed; the line is the mean", seed_figure(facts, budget))
    return report.write(out / "report.html")


def learning_table(facts: Facts, budget: str) -> tuple[list[str], list[list[TableCell]]]:
    """One row for each variant that has a finished seed."""
    rows: list[list[TableCell]] = []
    for name in VARIANTS:
        if not (seeds := _seeds(facts, budget, name)):
            continue
        row: list[TableCell] = [name, str(len(seeds))]
        if budget == PREDICTED_FOR:
            row.append(f"{VARIANTS[name].predicted:.2f}")
        row += [spread([seed["held_out"][str(length)]["loss"] for seed in seeds], 2) for length in LENGTHS]
        row.append(spread([100 * seed["held_out"][str(LENGTHS[0])]["accuracy"] for seed in seeds], 1))
        row += [_tokens([seed["below"][str(loss)] for seed in seeds]) for loss in LOSSES]
        row += [spread([100 * seed["pairs"][pairs] for seed in seeds], 1) for pairs in PAIRS]
        row.append(f"{fmean(seed['minutes'] for seed in seeds):.1f}")
        rows.append(row)
    header = ["variant", "seeds", *(["predicted"] if budget == PREDICTED_FOR else [])]
    header += [*(f"loss, {length}" for length in LENGTHS), f"accuracy, {LENGTHS[0]}, %"]
    header += [f"tokens until {loss}" for loss in LOSSES]
    return [*header, *(f"{pairs}, %" for pairs in PAIRS), "minutes"], rows


def seed_figure(facts: Facts, budget: str) -> "Figure":
    """Plot the losses and minimal pairs of each seed, by variant. ConfigError without matplotlib."""
    found = {name: seeds for name in VARIANTS if (seeds := _seeds(facts, budget, name))}
    panels = {
        f"loss, {length}": {
            name: [seed["held_out"][str(length)]["loss"] for seed in seeds] for name, seeds in found.items()
        }
        for length in LENGTHS
    }
    panels |= {
        f"{pairs}, %": {name: [100 * seed["pairs"][pairs] for seed in seeds] for name, seeds in found.items()}
        for pairs in PAIRS
    }
    return draw_seeds(list(found), panels)


def _seeds(facts: Facts, budget: str, name: str) -> list[dict[str, Any]]:
    return [found for key, found in sorted(facts.items()) if key.startswith(f"{budget}/{name}/seed ")]


def spread(values: list[float], digits: int) -> str:
    """Mean and standard deviation; a single value alone."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _tokens(crossings: list[dict[str, float] | None]) -> str:
    reached = [found["tokens"] / 1e6 for found in crossings if found is not None]
    if not reached:
        return "–"
    text = f"{fmean(reached):.2f} M"
    return text if len(reached) == len(crossings) else f"{text} ({len(reached)} of {len(crossings)})"
