"""``firth bench``."""

from typing import TYPE_CHECKING

from firth.cli.shared import AtLeastOne, JsonFlag, on_interrupt, print_json
from firth.progress import format_count

if TYPE_CHECKING:
    from firth.bench.measure import Rate


def bench(*, model: str = "bert-mini", repeats: AtLeastOne = 5, as_json: JsonFlag = False) -> None:
    """Measure training and inference speed on this machine, and the share of peak.

    Takes about half a minute. Peak is the fastest matrix product of the same run. Uses synthetic
    texts with realistic lengths; writes nothing.

    Example: firth bench --model bert-base

    Parameters
    ----------
    model
        Size such as bert-mini or bert-base; or a run or model folder.
    repeats
        Measurements per part, interleaved; the median is reported.
    as_json
        Print every measurement and the machine's facts as one JSON object.
    """
    from firth.bench.run import bench as job

    with on_interrupt("no result"):
        result = job(model, repeats=repeats or 5)
    if as_json:
        print_json(result.facts())
        return
    machine = result.machine
    place = machine["card"] or f"{machine['processor']}, {machine['threads']} of {machine['cores']} CPU cores in use"
    print(f"{model} on {place}; torch {machine['torch']}")
    print(_line("", "tokens/s", "FLOP/s", "% of peak", "spread"))
    for rate in result.rates:
        print(_line(*_cells(rate)))


def _cells(rate: "Rate") -> tuple[str, str, str, str, str]:
    spread = rate.spread
    return (
        rate.name,
        "" if rate.tokens_per_s is None else format_count(rate.tokens_per_s),
        "" if rate.flops_per_s is None else format_count(rate.flops_per_s),
        "" if rate.share is None else f"{rate.share:.0%}",
        f"{spread.least / spread.median - 1:+.0%} {spread.most / spread.median - 1:+.0%}",
    )


def _line(name: str, tokens: str, flops: str, share: str, spread: str) -> str:
    return f"  {name:26} {tokens:>9} {flops:>9} {share:>13} {spread:>11}".rstrip()
