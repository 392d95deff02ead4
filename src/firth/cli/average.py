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
    """Make one model whose weights are the mean of a run's last checkpoints, or of several models.

    A run keeps as many as train.keep_checkpoints says, one each train.save_every steps.

    Example: firth average runs/t --last 5 --out runs/t-average

    Parameters
    ----------
    models
        The folder of a run; or several folders of models of the same sizes, tokenizer and task.
    out
        The model folder to make.
    last
        With a run: how many of its checkpoints, the newest ones; 5 if not given.
    """
    from firth.errors import ConfigError
    from firth.folder import read_about
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
