"""The version, whether or not the package is installed."""

import importlib.metadata

import pytest

from firth import version


def test_it_is_that_of_the_installed_package() -> None:
    assert version.firth_version() == importlib.metadata.version("firth")


def test_a_source_tree_that_nothing_has_installed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert version.firth_version() == "source"
