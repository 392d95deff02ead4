"""``firth probe``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.labelled import NOT_GIVEN, LabelledFlags, settings_of
from firth.cli.shared import AtLeastOne, JsonFlag, on_interrupt, print_json, print_table, shell
from firth.config import read_toml


def probe(
    recipe: Annotated[Path | None, Parameter(name="RECIPE")] = None,
    /,
    *,
    labelled: LabelledFlags = NOT_GIVEN,
    out: Path,
    seeds: AtLeastOne = None,
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
    out
        The folder for the table and the report; must be new.
    seeds
        Heads that differ in the seed alone; scores are their means.
    settings
        Any other key of the recipe, such as --set head.features.words=mean; may be given several times.
    as_json
        Print probe.json.
    """
    laid_over = settings_of({**labelled.keys(), "--seeds": ("train.seeds", seeds)})
    plain = {} if recipe is None else read_toml(recipe)
    from firth.finetuning.probe import probe as job
    from firth.finetuning.probe import shown

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
