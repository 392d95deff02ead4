"""``report.html`` of the translation study: the scores of models and searches, and the training curve."""

import math
from pathlib import Path

from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.translation import BEST, MEAN, NEWEST, SEARCHES, TRAINING

TranslationCurve = tuple[list[float], list[float]]


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("The Transformer, English to German")
    report.text("Multi30k, validation captions; BLEU and chrF as sacreBLEU computes them.")
    report.heading("Models and searches")
    report.table(*score_table(facts))
    report.text(score_signatures(facts))
    if TRAINING in facts:
        report.heading("Training")
        report.text(training_text(facts[TRAINING]))
        report.lines_plot("Perplexity of held-out captions, per token", perplexity_curve(facts), "steps", "perplexity")
    return report.write(out / "report.html")


def score_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """One row per model and search: BLEU and chrF."""
    rows: list[list[TableCell]] = []
    for model in (BEST, NEWEST, MEAN):
        for search in SEARCHES:
            if cell := facts.get(f"scores/{model}/{search}"):
                rows.append([model, search, *(f"{cell['scores'][name]:.2f}" for name in ("bleu", "chrf"))])
    return ["model", "search", "BLEU", "chrF"], rows


def score_signatures(facts: Facts) -> str:
    """How the scores were computed."""
    found: dict[str, str] = next((cell["signatures"] for name, cell in facts.items() if name.startswith("scores/")), {})
    return "; ".join(f"{name}: {signature}" for name, signature in found.items())


def training_text(facts: Facts) -> str:
    """Summarise the training in a sentence."""
    last = facts["dev"][-1]
    return (
        f"{facts['steps']:,} steps in {facts['seconds'] / 60:.0f} minutes; the held-out loss was lowest at step "
        f"{facts['best_step']:,}; the final perplexity was {math.exp(last[1]):.2f}, with {last[2]:.1%} token accuracy."
    )


def perplexity_curve(facts: Facts) -> dict[str, TranslationCurve]:
    """Perplexity of held-out text by step."""
    points = facts[TRAINING]["dev"]
    return {"held out": ([float(step) for step, *_ in points], [math.exp(loss) for _, loss, _ in points])}
