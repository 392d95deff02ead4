"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version


def firth_version() -> str:
    """That of the installed package; ``source`` where the code runs from a source tree that nothing has installed."""
    try:
        return version("firth")
    except PackageNotFoundError:
        return "source"
