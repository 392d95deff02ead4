"""``firth study``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, JsonFlag, on_interrupt, print_json

StudyName = Literal["finetuning", "directionality", "translation", "unknown-words", "representations"]


def study(
    name: Annotated[StudyName, Parameter(name="NAME")],
    /,
    *,
    data: Path,
    models: Path = Path("models"),
    out: Path | None = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    workers: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: many trainings, their tables and plots.

    What is done is kept: the same command goes on where it was.

    Example: firth study finetuning --data data/ --models models/ --out studies/finetuning

    Parameters
    ----------
    name
        finetuning: what pre-training is worth on a dozen tasks, frozen features, and numbers of labels.
        directionality: BERT, BERT left to right and GPT at equal size and tokens, on four tasks.
        translation: the Transformer on Multi30k, with and without beam search and averaged checkpoints.
        unknown-words: names found on word vectors, by the rule for words that have none.
        representations: word vectors to BERT, the same minutes of pre-training each, on four tasks.
    data
        The folder of the data sets, each in the folder that docs/verbs/study.md names.
    models
        The folder that make models fills, with text and models.
    out
        The folder of the study; studies/NAME if not given.
    only
        Parts of names: only cells that have one of them.
    workers
        Trainings at a time; all processors if not given.
    as_json
        Print study.json.
    """
    from firth.studies import (
        directionality,
        directionality_report,
        finetuning,
        finetuning_report,
        representations,
        representations_report,
        translation,
        translation_report,
        unknown_words,
        unknown_words_report,
    )
    from firth.workers import cpu_count

    studies = {
        "finetuning": (finetuning.study, finetuning_report.write_study_report),
        "directionality": (directionality.study, directionality_report.write_study_report),
        "translation": (translation.study, translation_report.write_study_report),
        "representations": (representations.study, representations_report.write_study_report),
        "unknown-words": (unknown_words.study, unknown_words_report.write_study_report),
    }
    job, write_report = studies[name]
    place = out or Path("studies") / name
    with on_interrupt("what is done is kept; the same command goes on from there"):
        found = job(data, models, place, only=only or (), workers=workers or cpu_count())
    if as_json:
        print_json(found)
        return
    report = write_report(place, found)
    print(f"{place}: {len(found)} cells; tables and plots: {report}")
