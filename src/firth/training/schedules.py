"""Learning rates over steps. Steps count from 0: the rate of the first update is ``rate(0)``."""


def warmup_linear(step: int, *, peak_rate: float, warmup_steps: int, total_steps: int) -> float:
    """Linear from 0 over the warm-up, then on the line that falls from the peak at step 0 to 0 at the end.

    Source: google-research/bert optimization.py. The first update has rate 0, and the rate jumps down
    a little where the warm-up meets the line: both are as published.
    """
    if step < warmup_steps:
        return peak_rate * step / warmup_steps
    return peak_rate * (1 - min(step, total_steps) / total_steps)
