"""``report.html`` of a pre-training run: its curves, its numbers, its recipe."""

from pathlib import Path
from typing import Any

from firth.config import to_toml
from firth.jobs.recipe import Pretrain
from firth.jobs.report import Report
from firth.training.log import read_log

# Names of terms as readers know them.
_TERMS = {"mlm": "masked LM", "nsp": "next sentence", "lm": "language model"}


def write_run_report(run: Path, recipe: Pretrain) -> Path:
    """Write the report of a run from its log; needs the extra ``report`` (ConfigError without it)."""
    events = read_log(run / "log.jsonl")
    train = [e for e in events if e["event"] == "train"]
    dev = [e for e in events if e["event"] == "dev"]
    report = Report(f"{recipe.model} pre-trained: {run.name}")
    _numbers(report, train, dev)
    for term, title in _TERMS.items():
        for kind, label in (("loss", "loss per prediction, nats"), ("accuracy", "share right")):
            key = f"{term}_{kind}"
            curves = {
                name: ([e["step"] for e in some], [e[key] for e in some])
                for name, some in (("training", train), ("held-out", dev))
                if len(some) > 1 and key in some[0]
            }
            if curves:
                report.lines_plot(f"{title}: {kind}", curves, "step", label)
    if len(train) > 1:
        steps = [e["step"] for e in train]
        report.lines_plot("Speed", {"tokens/s": (steps, [e["tokens_per_s"] for e in train])}, "step", "tokens/s")
        report.lines_plot("Learning rate", {"rate": (steps, [e["rate"] for e in train])}, "step", "rate")
    report.heading("Recipe")
    report.pre(to_toml(recipe))
    path = run / "report.html"
    report.write(path)
    return path


def _numbers(report: Report, train: list[dict[str, Any]], dev: list[dict[str, Any]]) -> None:
    """The last and the best evaluation, and what the run took."""
    if dev:
        best = min(dev, key=lambda e: e["loss"])
        names = [name for name in dev[-1] if name not in ("event", "step", "loss")]
        report.heading("Held-out text")
        report.table(
            ["", *(_title(name) for name in names)],
            [
                [f"best (step {best['step']:,})", *(f"{best[n]:.4f}" for n in names)],
                [f"last (step {dev[-1]['step']:,})", *(f"{dev[-1][n]:.4f}" for n in names)],
            ],
        )
    if train:
        rates = sorted(e["tokens_per_s"] for e in train)
        report.text(
            f"{train[-1]['step']:,} steps in {train[-1]['elapsed_s'] / 60:.1f} minutes; "
            f"{rates[len(rates) // 2]:,.0f} tokens/s in the median."
        )


def _title(name: str) -> str:
    term, _, kind = name.partition("_")
    return f"{_TERMS.get(term, term)} {kind}"
