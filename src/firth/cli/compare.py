"""``firth compare``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from firth.cli.labelled import HEADERS, Header, check_named
from firth.cli.shared import Flag, JsonFlag, OnFlag, print_json, print_next, print_table, shell
from firth.config import parse_override
from firth.errors import ConfigError


def compare(
    *,
    train: str | None = None,
    dev: str | None = None,
    task: str = "classify",
    models: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    minutes: float = 20.0,
    out: Path | None = None,
    data: str | None = None,
    columns: str | None = None,
    header: Header = None,
    form: Annotated[str, Parameter(name="--format")] = "auto",
    skip_bad: Flag = False,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    verbose: Flag = False,
    on: OnFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare TF-IDF, frozen features, fine-tuning, and TF-IDF with fine-tuning on your labels; keep the winner.

    The same command resumes a comparison that was stopped.

    Example: firth compare --train t.tsv --dev d.tsv --models runs/a --minutes 20 --out c

    Parameters
    ----------
    train
        File of labelled examples to learn from.
    dev
        File of labelled examples that every candidate is scored on.
    task
        classify, multilabel or regress (texts or pairs), tag, or a data set such as glue/sst2.
    models
        Pre-trained models: names such as firth-mini-en, folders, or hub:org/name; without any, only the baseline is
        trained.
    minutes
        Time budget of all training runs; runs that would exceed it are skipped and listed.
    out
        Folder for the comparison; the winner is in its model/.
    data
        Folder with the files of the data set, for a task that names one.
    columns
        Columns by number or name, such as text=2,label=0.
    header
        Whether the first line names the columns; detected automatically if not given.
    form
        File format, such as tsv, csv, jsonl, conll; default: by the file's name.
    skip_bad
        Skip malformed rows and list them.
    settings
        A recipe key for the fine-tunings, such as --set optim.learning_rate=1e-4; repeatable.
    verbose
        Show the messages and evaluations of every training run.
    on
        A Ray cluster whose nodes share the training runs: ray, or ray://HOST:10001 (needs the cluster extra).
    as_json
        Print compare.json.
    """
    if out is None:
        raise ConfigError("--out is missing: give a folder for the comparison, such as --out compare")
    if data is None and train is None:
        raise ConfigError("--train is missing: the file of labelled examples to learn from")
    check_named(task, train, dev, data)
    from firth.finetuning.compare import compare as run
    from firth.finetuning.recipe import LabelledConfig

    config = LabelledConfig(
        folder=data or "",
        train=train or "",
        dev=dev or "",
        columns=columns or "",
        header=HEADERS[header],
        format=form,
        skip_bad=skip_bad,
    )
    keys: dict[str, Any] = {".".join(path): value for path, value in map(parse_override, settings or [])}
    found = run(task, config, out, models=models or (), minutes=minutes, settings=keys, verbose=verbose, on=on or "")
    if as_json:
        print_json(found.results)
        return
    results = found.results
    metric, beside = results["metric"], results["beside"]
    print_table(
        [
            (
                results["names"][name],
                f"{row['labels']:>7,} labels  {metric} {row['score']:.4f} ({row['interval'][0]:.4f} to "
                f"{row['interval'][1]:.4f}){_beside(row['scores'], beside)}  {row['seconds']:.0f} s  "
                f"{row['megabytes']:.1f} MB",
            )
            for name, row in results["ways"].items()
        ]
    )
    if majority := results["majority"]:
        scores = majority["scores"]
        print(
            f"  majority baseline: always {majority['answer']}: {metric} {scores[metric]:.4f}{_beside(scores, beside)}"
        )
    print(results["recommendation"])
    if results["suspects"] or results["conflicts"]:
        print(
            f"the {len(results['suspects'])} most doubtful labels, and {len(results['conflicts'])} equal texts with "
            "different labels: see the report"
        )
    print(f"the report: {out / 'report.html'}; the model: {out / 'model'}")
    if results["pairs"]:
        print_next("firth", "predict", out / "model", "--input", "PAIRS.tsv")
    else:
        print(f"next: {shell('firth', 'predict', out / 'model')} < lines.txt")


def _beside(scores: Mapping[str, float], names: Sequence[str]) -> str:
    return "".join(f"  {name} {scores[name]:.4f}" for name in names)
