"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version


def firth_version() -> str:
    """The version of the installed package; ``source`` if the code runs from a source tree without installation."""
    try:
        return version("firth")
    except PackageNotFoundError:
        return "source"
