"""``firth plan``."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, JsonFlag, Texts, print_json, print_next, print_table
from firth.progress import format_count, format_duration

if TYPE_CHECKING:
    from firth.plan import Suggestion


def plan(
    *texts: Annotated[Texts, Parameter(name="TEXT")],
    minutes: float = 30.0,
    threads: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Suggest vocabulary, model size and length of a pre-training run, with the reasons.

    Measures for some seconds how fast each model size trains on this machine.

    Example: firth plan mytext.txt --minutes 60

    Parameters
    ----------
    texts
        The text to pre-train on, as for firth prepare; or the corpus folder made of it.
    minutes
        Minutes of training.
    threads
        CPU threads that the run may use.
    as_json
        Print the plan as one JSON object.
    """
    if threads is not None:
        from firth.workers import check_processors

        check_processors("--threads", threads)
        import torch

        torch.set_num_threads(threads)
    from firth.plan import make_plan

    found = make_plan(texts, minutes)
    if as_json:
        print_json(found)
        return
    _print(found, texts)


def _print(plan: "Suggestion", texts: tuple[str, ...]) -> None:
    chosen = plan.chosen
    how = "" if plan.counted else "about "
    print(f"{plan.source}: {how}{format_count(plan.text_tokens)} tokens; {plan.minutes:g} minutes; {plan.machine}")
    reads = f"{format_count(chosen.tokens)} tokens at {format_count(chosen.tokens_per_s)}/s, {plan.epochs:.2g} epochs"
    used_s = chosen.tokens / chosen.tokens_per_s
    if used_s < 60 * plan.minutes * 0.99:
        reads += f": done after {format_duration(used_s)}, as more than 40 epochs teach little"
    free = "" if plan.free_memory is None else f" of {plan.free_memory / 1e9:.1f} GB free"
    vocabulary = (
        "that of the corpus"
        if plan.counted
        else "rare enough tokens for so much text: most occur a hundred times or more"
    )
    rows = [
        ("vocabulary", f"{plan.vocabulary:,} tokens: {vocabulary}"),
        ("model", f"{chosen.model}, about {format_count(chosen.parameters)} parameters: {_why(plan)}"),
        ("sequences", "64 tokens, and 128 for 30 % of the documents (recipe small)"),
        ("reads", reads),
        ("memory", f"about {chosen.memory / 1e9:.1f} GB{free}"),
        ("loss", _expected(plan)),
    ]
    print_table(rows)
    for size in plan.sizes:
        print(
            f"  {size.model:11}  {format_count(size.tokens_per_s):>6} tokens/s  {format_count(size.tokens):>6} tokens, "
            f"{size.tokens_per_weight:.2g} for each weight of its blocks"
        )
    if not plan.counted:
        print_next("firth", "vocab", *texts, "--size", str(plan.vocabulary), "--out", "vocab")
        print_next("firth", "prepare", *texts, "--tokenizer", "vocab", "--out", "corpus")
    corpus = texts[0] if plan.counted else "corpus"
    print_next(
        "firth",
        "pretrain",
        "--recipe",
        "small",
        "--model",
        chosen.model,
        "--corpus",
        corpus,
        "--out",
        "runs/a",
        "--minutes",
        f"{plan.minutes:g}",
    )


def _why(plan: "Suggestion") -> str:
    chosen = plan.chosen
    per_weight = f"{chosen.tokens_per_weight:.2g} tokens read for each weight of its blocks"
    if chosen is not plan.sizes[-1]:
        return f"the largest with at least 4 tokens for each weight of its blocks (a rule of thumb); here {per_weight}"
    if chosen.tokens_per_weight < 4:
        return f"the smallest; {per_weight}, which is little: more minutes or more text help"
    return f"the largest that is tried here; {per_weight}"


def _expected(plan: "Suggestion") -> str:
    if plan.recorded is None:
        return "no run of this size and length is recorded; docs/results.md has that of firth-mini-en"
    from firth.plan import CURVE

    tokens, loss, accuracy = plan.recorded
    return (
        f"firth-mini-en had masked-LM loss {loss:.2f}, accuracy {accuracy:.0%} after {format_count(tokens)} of its "
        f"{format_count(1e6 * CURVE[-1][0])} tokens of English (docs/results.md)"
    )
