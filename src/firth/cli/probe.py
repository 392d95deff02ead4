"""``firth probe``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.finetune import HEADERS, Header
from firth.cli.shared import AtLeastOne, JsonFlag, on_interrupt, print_json, print_table, shell
from firth.config import read_toml


def probe(
    recipe: Annotated[Path | None, Parameter(name="RECIPE")] = None,
    /,
    *,
    task: str | None = None,
    model: str | None = None,
    train: str | None = None,
    dev: str | None = None,
    columns: str | None = None,
    header: Header = None,
    form: Annotated[str | None, Parameter(name="--format")] = None,
    data: str | None = None,
    out: Path,
    seeds: AtLeastOne = None,
    limit: AtLeastOne = None,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the layer of a model, or the mix of layers, that suits labelled examples best.

    A linear head learns on each of them while the model stays as it is. Ends with a table and a plot.

    Example: firth probe --task ud-pos --data ud-english-ewt/ --model runs/a --out runs/probe

    Parameters
    ----------
    recipe
        A recipe file of a fine-tuning (.toml); the flags are laid over it.
    task
        A kind (classify, multilabel, regress, tag, answer, choose), or a data set such as glue/sst2, conll2003.
    model
        The folder of a run, or of a model.
    train
        The file to learn from, for a task that is a kind.
    dev
        The file that is scored too.
    columns
        Which column is what, such as text=2,label=0 or text=sentence,label=gold.
    header
        Whether the first line names the columns; found out if not given.
    form
        Such as tsv, csv, jsonl, conll, conllu, squad; by the file's name if not given.
    data
        The folder with the files of the data set, for a task that names one.
    out
        The folder for the table and the report; must be new.
    seeds
        Heads that differ in the seed alone; scores are their means.
    limit
        Learn from so many examples, drawn by hash.
    settings
        Any other key of the recipe, such as --set head.features.words=mean; may be given several times.
    as_json
        Print probe.json.
    """
    keys = {
        "task": task, "model": model, "data.train": train, "data.dev": dev, "data.columns": columns,
        "data.header": None if header is None else HEADERS[header], "data.format": form, "data.folder": data,
        "train.seeds": seeds, "data.limit": limit,
    }  # fmt: skip
    laid_over = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items() if value is not None]
    plain = {} if recipe is None else read_toml(recipe)
    from firth.jobs.probe import probe as job
    from firth.jobs.probe import shown

    with on_interrupt(f"nothing is left to go on with; delete {out} and start again"):
        result = job(plain, [*laid_over, *(settings or [])], str(recipe or "flags"), out)
    if as_json:
        print_json(result)
        return
    print(f"{out}: {result['metric']} of a linear head by what it reads, on held-out training examples")
    print_table([
        (name, shown(row["held_out"]) + " best" * (name == result["best"]))
        for name, row in result["readings"].items()
    ])  # fmt: skip
    features = result["readings"][result["best"]]["features"]
    layers = f"head.features.layers={json.dumps(features['layers'])}"
    settings = [*result["settings"], layers, f"head.features.mix={features['mix']}"]
    print("in a fine-tuning:", shell(*(part for setting in settings for part in ("--set", setting))))
    if (out / "report.html").is_file():
        print(f"table and plot: {out / 'report.html'}")
