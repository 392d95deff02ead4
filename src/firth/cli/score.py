"""``firth score``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.breakdown import print_breakdown
from firth.cli.evaluate import print_translation_scores, refuse, score_table
from firth.cli.finetune import say_notes
from firth.cli.labelled import HEADERS, Header, check_split
from firth.cli.shared import Flag, JsonFlag, counted, print_json, print_table
from firth.inference.defaults import TRANSLATE


def score(
    *,
    predictions: str,
    gold: str,
    task: str,
    split: str | None = None,
    columns: str | None = None,
    header: Header = None,
    form: Annotated[str, Parameter(name="--format")] = "auto",
    skip_bad: Flag = False,
    na_prob_file: str | None = None,
    na_prob_thresh: float | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Score a file of any system's predictions against gold answers.

    Example: firth score --predictions answers.json --gold dev-v2.0.json --task squad2

    Parameters
    ----------
    predictions
        The predictions: in the order of the examples, or with their ids.
    gold
        The file with the gold answers, or the folder of a data set; for translate, reference translations line by line.
    task
        A kind (classify, multilabel, regress, tag, answer, choose, translate), or a data set such as squad2.
    split
        Split of the data set to use (default dev).
    columns
        Columns of --gold by number or name, such as text=2,label=0.
    header
        Whether the first line of --gold names the columns; detected automatically if not given.
    form
        Format of --gold, such as tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream; by file name if not given.
    skip_bad
        Skip malformed lines of --gold and list them; otherwise the first one stops the run.
    na_prob_file
        SQuAD 2.0: a JSON object of no-answer scores by question id (na_prob.json, null_odds.json).
    na_prob_thresh
        SQuAD 2.0: a prediction with a higher no-answer score counts as "no answer"; default 1.0, if scores are given.
    as_json
        Print one JSON object.
    """
    from firth.finetuning.prediction_files import score_predictions
    from firth.finetuning.recipe import LabelledConfig
    from firth.tasks.kinds import metrics_of

    if task == TRANSLATE:
        given = {
            "--split": split,
            "--columns": columns,
            "--header": header,
            "--format": None if form == "auto" else form,
            "--skip-bad": skip_bad or None,
        }
        refuse(given, "labelled examples")
    split = check_split(split, gold)
    config = LabelledConfig(columns=columns or "", header=HEADERS[header], format=form, skip_bad=skip_bad)
    found = score_predictions(
        task, gold, predictions, config, split=split, na_prob_file=na_prob_file or "", na_prob_threshold=na_prob_thresh
    )
    if as_json:
        print_json(found)
        return
    say_notes(found["notes"])
    if task == TRANSLATE:
        print_translation_scores(found, gold)
        return
    where = f"{gold}, {split}" if Path(gold).is_dir() else gold
    print(f"{where}: {task}, {counted(found['examples'], 'example')}")
    print_table(score_table(found["scores"], metrics_of(task)))
    print_breakdown(found["breakdown"], found["scores"])
