"""``firth evaluate``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from firth.cli.breakdown import print_breakdown
from firth.cli.finetune import say_notes
from firth.cli.labelled import HEADERS, Header, check_named, check_split
from firth.cli.shared import (
    AtLeastOne,
    Flag,
    JsonFlag,
    Others,
    RecoverText,
    counted,
    print_json,
    print_table,
)
from firth.errors import ConfigError
from firth.inference.defaults import BEAM, LENGTH_PENALTY, TRANSLATE
from firth.inference.precision import Precision
from firth.progress import say


def evaluate(
    model: Annotated[Path | None, Parameter(name="MODEL")] = None,
    /,
    *,
    data: str | None = None,
    task: str | None = None,
    split: str | None = None,
    columns: str | None = None,
    header: Header = None,
    form: Annotated[str, Parameter(name="--format")] = "auto",
    skip_bad: Flag = False,
    gold: str | None = None,
    others: Others = None,
    recover_text: RecoverText = "exact",
    precision: Precision = "float32",
    max_drop: float | None = None,
    beam: AtLeastOne = None,
    length_penalty: float | None = None,
    as_json: JsonFlag = False,
) -> int:
    """Evaluate a model on labelled examples or reference translations.

    Example: firth evaluate runs/b --data test.tsv

    Parameters
    ----------
    model
        Fine-tuning or model folder, also of another tool, or hub:org/name.
    data
        The file of labelled examples; with --task NAME the folder of a data set; for a translation model, source lines.
    task
        A data set such as glue/sst2.
    split
        Split of the data set; dev if not given.
    columns
        Columns by number or name, such as text=2,label=0.
    header
        Whether the first line names the columns; detected automatically if not given.
    form
        File format: tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream, arc; by file name if not given.
    skip_bad
        Skip malformed rows and list them; otherwise the first one stops the run.
    gold
        For a translation model: reference translations, line by line.
    recover_text
        Question answering: published gives answer texts as google-research/bert recovers them from tokens.
    others
        Another model of the same task and labels: their mean probabilities are scored; repeatable.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights. Quality gate:
        int8 is refused by other commands until this evaluation shows that it matches float32.
    max_drop
        Largest allowed drop of the main score against float32, in points; default 0.5 for int8.
    beam
        Beam width for translation (default 4; 1 is greedy).
    length_penalty
        Length penalty exponent for translation (default 0.6).
    as_json
        Print one JSON object.
    """
    if gold is not None or task == TRANSLATE:
        given = {
            "--task": None if task == TRANSLATE else task,
            "--split": split,
            "--columns": columns,
            "--header": header,
            "--format": None if form == "auto" else form,
            "--skip-bad": skip_bad or None,
            "--precision": None if precision == "float32" else precision,
            "--max-drop": max_drop,
            "--with": others,
            "--recover-text": None if recover_text == "exact" else recover_text,
        }
        refuse(given, "labelled examples")
        return _evaluate_translations(model, data, gold, beam, length_penalty, as_json)
    refuse({"--beam": beam, "--length-penalty": length_penalty}, "translations (a model with --data and --gold)")
    if model is None:
        raise ConfigError("give a model, such as firth evaluate runs/b --data test.tsv; files: firth score")
    if data is None:
        raise ConfigError("--data is missing: the file of labelled examples, or the folder of a data set")
    check_named(task, data)
    split = check_split(split, data)
    from firth.finetuning import evaluate as job
    from firth.finetuning.recipe import LabelledConfig
    from firth.tasks.kinds import metrics_of

    config = LabelledConfig(columns=columns or "", header=HEADERS[header], format=form, skip_bad=skip_bad)
    found = job.evaluate(
        model,
        data,
        config,
        task=task or "",
        split=split,
        precision=precision,
        max_drop=max_drop,
        others=others or (),
        published_text=recover_text == "published",
    )
    if precision != "float32":
        say(found["path"])
    compared = found.get("compared")
    if as_json:
        print_json(found)
    else:
        say_notes(found["notes"])
        known, what = found["task"], data
        what += f", {split}" if Path(what).is_dir() else ""
        print(f"{what}: {known}, {counted(found['examples'], 'example')}")
        first = metrics_of(known)
        if compared is None:
            print_table(score_table(found["scores"], first))
        else:
            print_table(_side_by_side(compared["float32"], found["scores"], precision, first))
        print_breakdown(found["breakdown"], found["scores"])
    return 0 if compared is None else _judged(compared, found["scores"], precision, say if as_json else print)


def refuse(flags: dict[str, Any], what: str) -> None:
    """Raise ConfigError for flags that are only for something else, ``what``."""
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)}: only for {what}; leave out")


def _evaluate_translations(
    model: Path | None,
    data: str | None,
    gold: str | None,
    beam: int | None,
    length_penalty: float | None,
    as_json: bool,
) -> int:
    """Print BLEU and chrF of a model's translations."""
    if model is None or data is None or gold is None:
        raise ConfigError(
            "translations are scored by firth evaluate MODEL --data FILE --gold FILE; a file of them by firth score"
        )
    from firth.inference.translating import Search
    from firth.inference.translation_scores import evaluate_translation

    search = Search(beam=beam or BEAM, length_penalty=LENGTH_PENALTY if length_penalty is None else length_penalty)
    found = evaluate_translation(model, data, gold, search)
    if as_json:
        print_json(found)
        return 0
    say_notes(found["notes"])
    print_translation_scores(found, gold)
    return 0


def print_translation_scores(found: Mapping[str, Any], gold: str) -> None:
    """Print how many lines were scored, and each score with its signature."""
    print(f"{gold}: {counted(found['examples'], 'line')}")
    print_table([(name, f"{score:.2f}  {found['signatures'][name]}") for name, score in found["scores"].items()])


def _judged(compared: dict[str, Any], scores: dict[str, float], precision: str, tell: Callable[[str], None]) -> int:
    """Report what the lower precision costs, and return the exit code: 1 if that is too much."""
    metric, drop = compared["metric"], compared["drop"]
    both = f"{metric} {100 * compared['float32'][metric]:.2f} in float32, {100 * scores[metric]:.2f} in {precision}"
    limit = f"{compared['max_drop']:g} points"
    if not compared["passed"]:
        advice = "; int8 stays refused" if precision == "int8" else ""
        say(f"firth: {both}: a drop of {drop:.2f}, more than the {limit} of --max-drop{advice}")
        return 1
    recorded = ", recorded in the model's folder" if precision == "int8" else ""
    tell(f"{both}: a drop of {drop:.2f}, within {limit}{recorded}")
    return 0


def _side_by_side(
    plain: dict[str, float], scores: dict[str, float], precision: str, first: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Rows of names and scores, in float32 and in another precision."""
    names = [name for name, _ in score_table(plain, first)]
    columns = [("", f"{'float32':>8}  {precision:>8}")]
    return columns + [(name, f"{plain[name]:8.4f}  {scores[name]:8.4f}") for name in names]


def score_table(scores: Mapping[str, Any], first: Sequence[str]) -> list[tuple[str, str]]:
    """Rows of names and scores, the main scores of the task first."""
    names = dict.fromkeys([*(name for name in first if name in scores), *scores])
    return [(name, f"{scores[name]:.4f}") for name in names]
