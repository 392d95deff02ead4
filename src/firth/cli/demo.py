"""``firth demo``."""

from pathlib import Path


def demo(*, out: Path = Path("demo"), seed: int = 12345) -> None:
    """Run the end-to-end pipeline on Python's own documentation, in about ten minutes.

    Trains a tokenizer, pre-trains a small BERT, predicts masked tokens, finds nearest sentences, and
    fine-tunes a classifier with few labels beside two baselines. Writes a report. After Ctrl-C the same
    command resumes.

    Example: firth demo --out demo/

    Parameters
    ----------
    out
        Output folder.
    seed
        Random seed of weights, data order and label samples; the same seed gives the same numbers.
    """
    from firth.demo.run import demo as job

    job(out, seed=seed)
