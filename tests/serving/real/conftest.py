"""A running server: ``firth serve`` on a free port, with small models of every kind and ``firth-mini-en``."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import PATIENT, Server, serving

from firth.baseline.folder import write_baseline
from firth.baseline.model import Baseline
from firth.files import write_folder
from firth.folder import write_model
from firth.inference.loading import load
from firth.inference.model import Model


def write(folder: Path, predictor: Model | Baseline) -> None:
    """Write a model in memory to a model folder."""
    if isinstance(predictor, Baseline):
        write_folder(folder, lambda new: write_baseline(new, predictor))
        return
    made = predictor.loaded
    write_folder(folder, lambda new: write_model(new, made.system_name, made.task, made.objective, made.tokenizer, {}))


@pytest.fixture(scope="session")
def served_folders(
    predictors: dict[str, Model | Baseline], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The folder of each model of ``predictors``."""
    place = tmp_path_factory.mktemp("served")
    folders = {name: place / name for name in predictors}
    for name, folder in folders.items():
        write(folder, predictors[name])
    return folders


@pytest.fixture(scope="session")
def server(served_folders: dict[str, Path]) -> Iterator[Server]:
    """A server of ``en`` (firth-mini-en, the default), ``ko`` (firth-mini-ko) and the models of ``predictors``."""
    models = [f"{name}={folder}" for name, folder in served_folders.items()]
    with serving("en=firth-mini-en", "ko=firth-mini-ko", *models, *PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def mini() -> Model:
    """firth-mini-en, loaded by the library."""
    found = load("firth-mini-en", device="cpu")
    assert isinstance(found, Model)
    return found
