"""``firth study``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, JsonFlag, OnFlag, on_interrupt, print_json
from firth.progress import say
from firth.workers import WORKERS_EACH, check_processors

StudyName = Literal[
    "learning", "finetuning", "directionality", "translation", "unknown-words", "representations", "senses", "ablations"
]


def study(
    name: Annotated[StudyName, Parameter(name="NAME")],
    /,
    *,
    data: Path,
    models: Path = Path("models"),
    out: Path | None = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    workers: AtLeastOne = None,
    on: OnFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a study: many training runs, with tables and plots.

    Finished parts are kept: the same command resumes.

    Example: firth study finetuning --data data/ --out studies/finetuning

    Parameters
    ----------
    name
        learning: what makes a small BERT learn from 2.5 M and 12 M tokens, one change at a time.
        finetuning: pre-training against from scratch on seventeen tasks; frozen features; label counts.
        directionality: BERT, left-to-right BERT and GPT at equal size and tokens, on four tasks.
        translation: Transformer on Multi30k, with and without beam search and checkpoint averaging.
        unknown-words: named entity recognition on word vectors, by the rule for unknown words.
        representations: word vectors to BERT, equal pre-training minutes each, on four tasks.
        senses: telling the senses of ambiguous words apart by vectors in context, beside word vectors and TF-IDF.
        ablations: findings of TagLM, ULMFiT, GPT and others, each part left out, beside the papers' numbers.
    data
        Folder of the data sets; docs/verbs/study.md names their subfolders.
    models
        Folder filled by make models, with text and models.
    out
        Output folder; default studies/NAME.
    only
        Run only cells whose names contain one of these strings.
    workers
        Parallel training runs; default: all CPU cores.
    on
        Run the cells on a Ray cluster: ray (RAY_ADDRESS, or this machine) or ray://HOST:10001.
    as_json
        Print study.json.
    """
    if workers is not None and on is None:
        check_processors("--workers", workers, WORKERS_EACH)
    from firth.studies import (
        ablations,
        ablations_report,
        directionality,
        directionality_report,
        finetuning,
        finetuning_report,
        learning,
        learning_report,
        representations,
        representations_report,
        senses,
        senses_report,
        translation,
        translation_report,
        unknown_words,
        unknown_words_report,
    )
    from firth.studies.cells import run_study

    studies = {
        "learning": (learning.study_cells, learning_report.write_study_report),
        "finetuning": (finetuning.study_cells, finetuning_report.write_study_report),
        "directionality": (directionality.study_cells, directionality_report.write_study_report),
        "translation": (translation.study_cells, translation_report.write_study_report),
        "representations": (representations.study_cells, representations_report.write_study_report),
        "senses": (senses.study_cells, senses_report.write_study_report),
        "ablations": (ablations.study_cells, ablations_report.write_study_report),
        "unknown-words": (unknown_words.study_cells, unknown_words_report.write_study_report),
    }
    study_cells, write_report = studies[name]
    place = out or Path("studies") / name
    with on_interrupt("finished parts are kept; the same command resumes"):
        cells = study_cells(data, models, place)
        found = run_study(cells, place, only=only or (), workers=workers or 0, tell=say, on=on or "")
    if as_json:
        print_json(found)
        return
    report = write_report(place, found)
    print(f"{place}: {len(found)} cells; tables and plots: {report}")
