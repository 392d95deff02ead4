"""``firth study``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, JsonFlag, on_interrupt, print_json


def study(
    name: Annotated[Literal["finetuning"], Parameter(name="NAME")],
    /,
    *,
    data: Path,
    models: Path = Path("models"),
    out: Path | None = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    workers: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: many fine-tunings, their tables and plots.

    What is done is kept: the same command goes on where it was.

    Example: firth study finetuning --data data/ --models models/ --out studies/finetuning

    Parameters
    ----------
    name
        finetuning: what pre-training is worth on a dozen tasks, frozen features, and numbers of labels.
    data
        The folder of the data sets, each in the folder that docs/verbs/study.md names.
    models
        The folder that make models fills.
    out
        The folder of the study; studies/NAME if not given.
    only
        Parts of names: only cells that have one of them.
    workers
        Fine-tunings at a time; all processors if not given.
    as_json
        Print study.json.
    """
    from firth.jobs.workers import cpu_count
    from firth.studies.finetuning import study as job
    from firth.studies.finetuning_report import write_study_report

    place = out or Path("studies") / name
    with on_interrupt("what is done is kept; the same command goes on from there"):
        found = job(data, models, place, only=only or (), workers=workers or cpu_count())
    if as_json:
        print_json(found)
        return
    report = write_study_report(place, found)
    print(f"{place}: {len(found)} cells; tables and plots: {report}")
