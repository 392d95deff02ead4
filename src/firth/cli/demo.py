"""``firth demo``."""

from pathlib import Path

from firth.cli.shared import Whole


def demo(*, out: Path = Path("demo"), seed: Whole = 12345) -> None:
    """Run the end-to-end pipeline on Python's own documentation, in about eleven minutes.

    Fine-tunes the shipped models with few labels beside baselines; then trains a tokenizer, pre-trains a small
    BERT, fine-tunes it as well, predicts masked tokens and finds nearest sentences. Writes a report. After
    Ctrl-C the same command resumes.

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
