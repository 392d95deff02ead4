"""``firth average``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, print_next


def average(
    *models: Annotated[Path, Parameter(name="MODEL", required=True)],
    out: Path,
    last: AtLeastOne = None,
) -> None:
    """Average the weights of a run's last checkpoints, or of several models.

    A run keeps train.keep_checkpoints checkpoints, one every train.save_every steps.

    Example: firth average runs/t --last 5 --out runs/t-average

    Parameters
    ----------
    models
        Run folder; or several model folders of the same size, tokenizer and task.
    out
        Output model folder.
    last
        With a run: number of newest checkpoints to average (default 5).
    """
    from firth.baseline.folder import read_about
    from firth.errors import ConfigError
    from firth.pretraining.average import average as make_average
    from firth.systems import SYSTEMS

    if last is not None and len(models) > 1:
        raise ConfigError("--last is for the checkpoints of one run: leave it out, or give one folder")
    folders = make_average(models, out, last=last or 5)
    print(f"{out}: the mean of {len(folders)} models")
    for folder in folders:
        print(f"  {folder}")
    if SYSTEMS[read_about(out)["system"]].predict == "translation":
        print_next("firth", "translate", out)
