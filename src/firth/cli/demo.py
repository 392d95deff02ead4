"""``firth demo``."""

from pathlib import Path


def demo(*, out: Path = Path("demo"), seed: int = 12345) -> None:
    """Walk the whole road on the documentation that every Python carries, in about ten minutes.

    Trains a vocabulary, pre-trains a small BERT, fills blanks, finds nearest sentences, and fine-tunes a
    classifier from few labels next to what else one could do. Ends with a report. Ctrl-C at any time:
    the same command goes on from there.

    Example: firth demo --out demo/

    Parameters
    ----------
    out
        The folder for everything that is made.
    seed
        Of weights, data and the draws of labels; the same seed gives the same numbers.
    """
    from firth.demo.run import demo as job

    job(out, seed=seed)
