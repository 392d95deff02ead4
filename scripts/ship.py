"""Put a finished pre-training run into the package: weights in bfloat16, and a model card with their origin.

    .venv/bin/python scripts/ship.py firth-mini-ko models/ko-large/firth-mini-ko
    .venv/bin/python scripts/ship.py firth-mini-en models/en-large/firth-mini-en-long docs/results/firth-mini-en.json

The card is made from the run's recipe and log, the data card beside its corpus, and docs/results/finetuning.json. Use
the second form for a run that continued from earlier ones; their records (scripts/record.py) follow in order. Runs,
records and recipes have the same names.
"""

import json
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from firth.config import read_json, read_toml
from firth.errors import FirthError
from firth.export.convert import convert
from firth.names import SHIPPED, WEIGHTS
from firth.studies.finetuning import BASELINE, PRETRAINED, ROWS
from firth.studies.finetuning_report import with_labels
from firth.training.log import read_log

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "results" / "finetuning.json"
LANGUAGES = {"firth-mini-en": "en", "firth-mini-ko": "ko"}
EXAMPLES = {
    "firth-mini-en": "The capital of France is [MASK].",
    "firth-mini-ko": "한강은 서울을 [MASK] 강이다.",
}
# The curve has a point for every this many of the run's evaluations.
CURVE_POINTS = 10
_MEASURED = (
    "Medians on dev sets, of three seeds, or of eight draws where the record has them. The baseline is TF-IDF + a "
    "linear model, or each word's commonest tag."
)


def main(name: str, run: Path, *earlier: Path) -> None:
    if name not in SHIPPED:
        sys.exit(f"error: {name}: expected one of {', '.join(SHIPPED)}")
    recipe, log = read_toml(run / "recipe.toml"), read_log(run / "log.jsonl")
    evaluations = [event for event in log if event["event"] == "dev"]
    if not evaluations or evaluations[-1]["step"] < recipe["train"]["steps"]:
        sys.exit(f"error: {run} is not finished: firth pretrain --resume {run}")
    folder = WEIGHTS / name
    made = folder.with_name(f".{name}.new")
    shutil.rmtree(made, ignore_errors=True)
    convert(run, made, dtype="bfloat16")
    before = {path.stem: read_json(path) for path in earlier}
    (made / "README.md").write_text(card(name, run.name, recipe, evaluations, before), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB")


def card(
    name: str,
    run: str,
    recipe: dict[str, Any],
    evaluations: list[dict[str, Any]],
    before: Mapping[str, Mapping[str, Any]],
) -> str:
    """The model card: data, licences, recipe, curve, scores, limits. ``before``: records of earlier runs by name."""
    language, last, corpus = LANGUAGES[name], evaluations[-1], Path(recipe["data"]["corpus"])
    # The data card's statement about lower case, if any.
    said = re.search(r"\d+% of the training documents are lower-cased\.", (corpus / "README.md").read_text("utf-8"))
    lowered = f" {said[0]}" if said else ""
    runs = [*((record["recipe"], record["curve"]) for record in before.values()), (recipe, evaluations)]
    points, steps, n_tokens = list[str](), list[str](), 0
    for options, curve_of_it in runs:
        points += curve(curve_of_it, options, n_tokens)
        n_tokens += tokens_of(options)
        steps.append(f"up to {n_tokens / 1e6:.0f} M tokens in sequences of {lengths(options)} tokens")
    recipes = ", then ".join(f"`recipes/{one}.toml`" for one in (*before, run))
    change = ""
    if before:
        change = (
            f"\n\nIt was trained {', then '.join(steps)}, each time with a new rise and fall of the learning rate."
            f"{lowered} Each run is scored on its own mix of lengths, so the parts of the table do not compare."
        )
    parts = [
        f"---\nlanguage: {language}\nlibrary_name: transformers\ntags: [firth, bert, fill-mask]\n---",
        f"# {name}",
        f"{SHIPPED[name]}. {n_tokens / 1e6:.0f} M tokens; weights in bfloat16. It is made for "
        "fine-tuning and features where a model of 15 MB has to do, and as a starting point for text of your own.",
        f'```python\nimport firth\n\nmodel = firth.load("{name}")\nmodel.fill_mask("{EXAMPLES[name]}")\n```',
        f"`firth finetune --model {name}` starts from it; `transformers.AutoModel.from_pretrained` opens the folder.",
        "## Data",
        data_table(corpus),
        "What was removed, and the share of each file, is in the data card of the corpus, which "
        f"`scripts/models {name}` builds again.",
        "## Training",
        "Loss and accuracy of masked tokens (15 % of tokens, 80/10/10) in held-out documents:",
        "\n".join(["| tokens | loss | accuracy |", "| ---: | ---: | ---: |", *points]),
        f"At the end: loss {last['mlm_loss']:.3f}, accuracy {last['mlm_accuracy']:.3f}. Recipe: "
        f"{recipes}; why it is as it is: `docs/learning.md`.{change}",
        "## Scores",
        scores(name, RECORD),
        "## Limits",
        "It has four layers of 256 dimensions and has read little text by today's measure: it knows the common words "
        "and grammar of that text, and is no source of facts. It repeats the biases of that text. A fine-tuned model "
        "should be compared with a baseline on your own labels first: `firth compare`.",
    ]
    return "\n\n".join(parts) + "\n"


def data_table(corpus: Path) -> str:
    """Licences with their files, documents and characters, from the source table in the corpus's data card."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    rows = [line.split("|")[1:-1] for line in (corpus / "README.md").read_text("utf-8").splitlines() if "|" in line]
    start = next(at for at, row in enumerate(rows) if [cell.strip() for cell in row[:2]] == ["file", "licence"])
    for row in rows[start + 2 :]:
        cells = [cell.strip() for cell in row]
        if len(cells) < 6 or not cells[2].replace(",", "").isdigit():
            break
        if not cells[4]:  # held out
            continue
        for at, cell in enumerate(("1", cells[4], cells[5])):
            total[cells[1]][at] += int(cell.replace(",", ""))
    lines = [f"| {licence} | {a:,} | {b:,} | {c / 1e6:,.0f} M |" for licence, (a, b, c) in total.items()]
    return "\n".join(["| licence | files | documents | characters |", "| --- | ---: | ---: | ---: |", *lines])


def tokens_of(recipe: Mapping[str, Any]) -> int:
    """The maximum number of tokens that a run reads."""
    train = recipe["train"]
    return int(train["steps"] * train["batch_tokens"] * train["micro_batches"])


def lengths(recipe: Mapping[str, Any]) -> str:
    """``64 and 128``."""
    data = recipe["data"]
    return " and ".join(str(n) for n in (data["length"], data["long_length"]) if n)


def curve(evaluations: list[dict[str, Any]], recipe: Mapping[str, Any], start: int) -> list[str]:
    """Loss and accuracy over tokens, as table rows; ``start``: tokens read before the run."""
    every = max(len(evaluations) // CURVE_POINTS, 1)
    shown = evaluations[every - 1 :: every]
    shown = shown if shown[-1] is evaluations[-1] else [*shown, evaluations[-1]]
    batch = tokens_of(recipe) / recipe["train"]["steps"]
    return [
        f"| {(start + event['step'] * batch) / 1e6:.0f} M | {event['mlm_loss']:.3f} | {event['mlm_accuracy']:.3f} |"
        for event in shown
    ]


def scores(name: str, path: Path) -> str:
    """Medians of the recorded scores in percent; scores without a record are omitted."""
    facts = read_json(path)["facts"] if path.is_file() else {}
    lines, earlier = [], False
    for row in (row for row in ROWS if row.base == name):
        for n in (*row.labels, 0):
            tuned, baseline = (with_labels(facts, row.name, n, start) for start in (PRETRAINED, BASELINE))
            earlier = earlier or bool(tuned and "weights" in tuned)
            if tuned and "weights" not in tuned:  # if named, the weights are an earlier run's
                labels = tuned["examples"]["train"] + tuned["examples"]["held_out"]
                found = [_median(cell, tuned["metric"]) for cell in (tuned, baseline)]
                lines.append(f"| {row.name} | {tuned['metric']} | {labels:,} | {' | '.join(found)} |")
    if not lines and earlier:
        return "Fine-tuning has been measured with the weights of earlier runs only: docs/results.md."
    if not lines:
        return "Not recorded yet."
    head = ["| task | score | labels | this model | baseline |", "| --- | --- | ---: | ---: | ---: |"]
    return "\n".join([*head, *lines, "", _MEASURED])


def renewed(name: str, text: str) -> str:
    """The text of a model card, with the scores that are recorded now."""
    before, heading, rest = text.partition("## Scores\n\n")
    if not heading:
        raise FirthError(f"the card of {name} has no section of scores")
    return f"{before}{heading}{scores(name, RECORD)}\n\n{rest[rest.index('## Limits') :]}"


def _median(cell: Mapping[str, Any] | None, metric: str) -> str:
    return f"{100 * median(cell['dev']['dev'][metric]['values']):.1f}" if cell else "–"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], *map(Path, sys.argv[2:]))
    except (FirthError, OSError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")
