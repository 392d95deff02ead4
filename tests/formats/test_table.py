"""The table of formats: which row recognises which folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_folders import PIECES, encoder_alone, masked, publish, weights

from firth.errors import CheckpointError, ConfigError
from firth.files import make_folder
from firth.folder import PRETRAINING, write_model
from firth.formats.table import find_format, open_model
from firth.manifest import MANIFEST
from firth.text.tokenizer import Tokenizer


def ours(folder: Path) -> Path:
    folder.mkdir(parents=True)
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=False)
    write_model(folder, "bert", PRETRAINING, masked(), tokenizer, {"seed": 1})
    return folder


def test_what_a_path_is(tmp_path: Path, shared_data: Path) -> None:
    model = ours(tmp_path / "run" / "model")
    published = publish(tmp_path / "hf", weights(masked()))
    sentences = publish(tmp_path / "st", encoder_alone(masked()))
    (sentences / "modules.json").write_text("[]")
    google = shared_data / "tf-bert-fixture"
    assert find_format(model).format.key == find_format(tmp_path / "run").format.key == "firth"
    assert (find_format(published).format.key, find_format(published).path) == ("hf", published)
    assert find_format(sentences).format.key == "st"
    for path in (google, google / "bert_model.ckpt", google / "bert_model.ckpt.index"):
        assert (find_format(path).format.key, find_format(path).path) == ("google", google / "bert_model.ckpt")
    # One of our model folders that other tools can read too is still ours.
    (model / "modules.json").write_text("[]")
    assert find_format(model).format.key == "firth"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: None, ConfigError, "no such model folder"),
        (lambda path: path.mkdir(), CheckpointError, "it has no config.json"),
        (lambda path: path.write_text("x"), CheckpointError, "is a file: a model is a folder"),
    ],
)
def test_what_is_no_model(make: Callable[[Path], Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(error, match=message):
        open_model(tmp_path / "x")


def test_a_damaged_folder_that_was_written_for_another_tool_is_refused(tmp_path: Path) -> None:
    make_folder(
        tmp_path / "hf",
        lambda folder: shutil.copytree(publish(tmp_path / "a", weights(masked())), folder, dirs_exist_ok=True),
    )
    assert open_model(tmp_path / "hf").task == PRETRAINING
    config = tmp_path / "hf" / "config.json"
    config.write_text(config.read_text().replace("{", "{ ", 1))
    with pytest.raises(
        CheckpointError, match=r"config\.json does not match its checksum.* if the change is meant, delete"
    ):
        open_model(tmp_path / "hf")
    (tmp_path / "hf" / MANIFEST).write_text('{"made": "by another tool"}')
    assert open_model(tmp_path / "hf").task == PRETRAINING


def test_a_damaged_manifest_of_a_folder_that_was_written_for_another_tool_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    make_folder(
        folder, lambda new: shutil.copytree(publish(tmp_path / "a", weights(masked())), new, dirs_exist_ok=True)
    )
    manifest = folder / MANIFEST
    whole = manifest.read_bytes()
    damages = {
        "cut": (whole[:-20], r"manifest\.json is damaged or another tool's \(not JSON\).* delete it"),
        "nothing": (b"", "not JSON"),
        "zeros": (bytes(len(whole)), "not JSON"),
        "brackets": (b"[" * 100_000, "not JSON"),
        "a key": (whole.replace(b"sha256", b"sha257", 1), r"manifest\.json cannot be read: 'sha256'.* delete"),
        "a size": (whole.replace(b'"bytes": ', b'"bytes": 1', 1), "does not match its checksum"),
        "outside": (whole.replace(b"config.json", b"../c/config", 1), "outside its folder"),
    }
    for data, message in damages.values():
        manifest.write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            open_model(folder)
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_model(folder)
    manifest.unlink()
    assert open_model(folder).task == PRETRAINING
    for foreign in ("[]", "{}", '"text"', '{"files": ["config.json"]}'):
        manifest.write_text(foreign)
        assert open_model(folder).task == PRETRAINING
