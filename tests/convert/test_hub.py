"""Models from the Hugging Face Hub, read from a disk cache without network access."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from published_folders import masked, publish, weights

from firth.convert import hub
from firth.convert.hub import fetch_model
from firth.errors import CheckpointError, ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, repository: str) -> Path:
    """A repository in the layout of the Hub's cache: files by content, links by commit, commits by name."""
    home = cache / f"models--{repository.replace('/', '--')}"
    for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (home / part).mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    made = publish(cache / "made", weights(masked()))
    for number, path in enumerate(sorted(made.iterdir())):
        os.rename(path, home / "blobs" / str(number))
        os.symlink(f"../../blobs/{number}", home / "snapshots" / COMMIT / path.name)
    return home / "snapshots" / COMMIT


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_model_in_the_cache(offline: Path) -> None:
    snapshot = cached(offline, "org/name")
    assert fetch_model("hub:org/name") == snapshot
    assert fetch_model(f"hub:org/name@{COMMIT}") == snapshot


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:org/other", "hub:org/other could not be fetched: Cannot find an appropriate cached snapshot"),
        ("hub:org/name@v9", "hub:org/name@v9 could not be fetched: "),
        ("hub:a/b/c", "could not be fetched: Repo id must be in the form"),
        ("hub:../x", "could not be fetched: Repo id must use"),
        ("hub:", "could not be fetched: "),
    ],
)
def test_what_cannot_be_fetched_is_one_line(name: str, message: str, offline: Path) -> None:
    cached(offline, "org/name")
    with pytest.raises(CheckpointError, match=message) as caught:
        fetch_model(name)
    assert "\n" not in str(caught.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"hub:a/b needs the extra hub: pip install 'firth\[hub\]'"):
        fetch_model("hub:a/b")


def test_a_pickle_is_fetched_only_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("huggingface_hub")
    asked: list[list[str]] = []

    def fetch(repository: str, *, allow_patterns: list[str], **_: object) -> str:
        asked.append(allow_patterns)
        (tmp_path / repository.replace("/", "-")).mkdir(exist_ok=True)
        if repository == "a/new" or "*.bin" in allow_patterns:
            (tmp_path / repository.replace("/", "-") / ("x.safetensors" if repository == "a/new" else "x.bin")).touch()
        return str(tmp_path / repository.replace("/", "-"))

    monkeypatch.setattr(library, "snapshot_download", fetch)
    fetch_model("hub:a/new")
    assert len(asked) == 1 and "*.bin" not in asked[0]
    assert (fetch_model("hub:a/old") / "x.bin").is_file() and len(asked) == 3
    assert not any(pattern in patterns for patterns in asked for pattern in ("*.h5", "*.msgpack", "*.onnx"))
    assert {"*.h5", "*.msgpack", "onnx/*"} <= set(hub._NEVER)


def test_the_command_line_reads_the_cache_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    cached(tmp_path / "cache", "org/name")
    settings = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "firth", "fill-mask", "hub:org/name", "a [MASK].", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    assert done.returncode == 0, done.stderr
    assert '"masks": [{"start": 2' in done.stdout
