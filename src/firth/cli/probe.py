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
    """Find the layer of a frozen encoder, or the scalar mix of layers, that suits a task best.

    Trains a linear head on each while the encoder stays frozen. Writes a table and a plot.

    Example: firth probe --task ud-pos --data ud-english-ewt/ --model runs/a --out runs/probe

    Parameters
    ----------
    recipe
        Fine-tuning recipe file (.toml); flags override it.
    out
        Output folder for table and report; must be new.
    seeds
        Number of heads with different seeds; scores are means.
    settings
        Any other recipe key, such as --set head.network.words=mean; repeatable.
    as_json
        Print probe.json.
    """
    laid_over = settings_of({**labelled.keys(), "--seeds": ("train.seeds", seeds)})
    plain = {} if recipe is None else read_toml(recipe)
    from firth.finetuning.probe import probe as job
    from firth.finetuning.probe import shown

    with on_interrupt(f"nothing can be resumed; delete {out} and start again"):
        result = job(plain, [*laid_over, *(settings or [])], str(recipe or "flags"), out)
    if as_json:
        print_json(result)
        return
    print(f"{out}: {result['metric']} of a linear head per layer, on held-out training examples")
    print_table(
        [
            (name, shown(row["held_out"]) + " best" * (name == result["best"]))
            for name, row in result["readings"].items()
        ]
    )
    features = result["readings"][result["best"]]["features"]
    layers = f"head.network.layers={json.dumps(features['layers'])}"
    settings = [*result["settings"], layers, f"head.network.mix={features['mix']}"]
    print("in a fine-tuning:", shell(*(part for setting in settings for part in ("--set", setting))))
    if (out / "report.html").is_file():
        print(f"table and plot: {out / 'report.html'}")
