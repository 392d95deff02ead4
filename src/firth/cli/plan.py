"""``firth plan``."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne, JsonFlag, Whole, print_json, print_next, print_table
from firth.errors import UsageError
from firth.progress import format_count, format_duration, say

if TYPE_CHECKING:
    from firth.plan import Suggestion
    from firth.run_cost import Device, RunCost


def plan(
    *texts: Annotated[str, Parameter(name="TEXT")],
    minutes: float | None = None,
    threads: AtLeastOne = None,
    devices: Annotated[list[Whole] | None, Parameter(consume_multiple=True)] = None,
    device: str | None = None,
    model: str | None = None,
    tokens: float | None = None,
    epochs: float | None = None,
    sequence_length: AtLeastOne = None,
    step_tokens: AtLeastOne = None,
    price_per_hour: float | None = None,
    per_node: AtLeastOne = None,
    network_gbits: float | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Suggest vocabulary, model size and length of a pre-training run; or estimate its cost on many devices.

    Measures for some seconds how fast each model size trains on this machine. With --devices it estimates time, memory,
    communication and money of a run instead, with a cost model fitted to measurements.

    Example: firth plan mytext.txt --minutes 60

    Example: firth plan --model bert-large --tokens 43e9 --device a100-40gb --devices 8 64 --price-per-hour 4

    Parameters
    ----------
    texts
        The text to pre-train on, as for firth prepare; or the corpus folder made from it.
    minutes
        Minutes of training (default 30).
    threads
        CPU threads that the run may use.
    devices
        Numbers of devices to estimate the cost for.
    device
        v100-16gb, v100-32gb, a100-40gb, a100-80gb, h100, h200, tpu-v2, tpu-v3; or here, which measures this machine.
    model
        The size to pre-train.
    tokens
        Tokens that the run reads.
    epochs
        Passes over TEXT, instead of --tokens (default 1).
    sequence_length
        Tokens per sequence (default 128).
    step_tokens
        Tokens per step on all devices together (default 32768).
    price_per_hour
        Price of one device.
    per_node
        Devices per node.
    network_gbits
        Network bandwidth of a node in Gbit/s.
    as_json
        Print the plan as one JSON object.
    """
    costs = {
        "--device": device,
        "--model": model,
        "--tokens": tokens,
        "--epochs": epochs,
        "--sequence-length": sequence_length,
        "--step-tokens": step_tokens,
        "--price-per-hour": price_per_hour,
        "--per-node": per_node,
        "--network-gbits": network_gbits,
    }
    if devices is None:
        if given := [flag for flag, value in costs.items() if value is not None]:
            raise UsageError(f"{given[0]} counts the cost on many devices: add --devices 8 64")
        if not texts:
            raise UsageError("TEXT is missing: the text to pre-train on, or a corpus folder")
    if threads is not None:
        from firth.workers import check_processors

        check_processors("--threads", threads)
        import torch

        torch.set_num_threads(threads)
    if devices is None:
        _suggest(texts, 30.0 if minutes is None else minutes, threads, as_json)
        return
    if minutes is not None:
        raise UsageError("--minutes is for this machine: with --devices give --tokens, or TEXT and --epochs")
    if model is None or device is None:
        raise UsageError(f"--devices also needs {'--model bert-large' if model is None else '--device a100-40gb'}")
    if (tokens is None) == (not texts):
        raise UsageError("give either --tokens, or TEXT (with --epochs)")
    if tokens is not None and epochs is not None:
        raise UsageError("--epochs counts passes over TEXT: leave it out beside --tokens")
    if network_gbits is not None and not network_gbits > 0:
        raise UsageError(f"--network-gbits={network_gbits:g}: expected more than 0")
    from firth.plan import text_tokens
    from firth.pretraining.length import check_asked
    from firth.run_cost import STEP_TOKENS, VOCAB_SIZE, find_device

    vocabulary = None
    if tokens is None:
        check_asked(None, epochs, None)
        text, vocabulary = text_tokens(texts)
        tokens = (1.0 if epochs is None else epochs) * text
    kind = find_device(device, say)
    if per_node is not None:
        kind = replace(kind, per_node=per_node)
    if network_gbits is not None:
        kind = replace(kind, network=network_gbits * 1e9 / 8)
    _count_cost(
        model,
        kind,
        devices,
        tokens=tokens,
        length=sequence_length or 128,
        step_tokens=step_tokens or STEP_TOKENS,
        vocab_size=vocabulary or VOCAB_SIZE,
        price=price_per_hour,
        as_json=as_json,
    )


def _suggest(texts: tuple[str, ...], minutes: float, threads: int | None, as_json: bool) -> None:
    """Print what to pre-train on the texts in ``minutes``."""
    from firth.plan import make_plan

    found = make_plan(texts, minutes)
    if as_json:
        print_json(found)
    else:
        _print(found, texts, threads)


def _count_cost(
    model: str,
    device: "Device",
    devices: list[int],
    *,
    tokens: float,
    length: int,
    step_tokens: int,
    vocab_size: int,
    price: float | None,
    as_json: bool,
) -> None:
    """Print the cost of a run on each number of devices."""
    from firth.run_cost import run_costs

    found = run_costs(
        model,
        device,
        tuple(devices),
        tokens=tokens,
        length=length,
        step_tokens=step_tokens,
        vocab_size=vocab_size,
        price=price,
    )
    if as_json:
        print_json({"device": asdict(device), "runs": [asdict(cost) for cost in found]})
        return
    print(f"{model}, {format_count(tokens)} tokens in sequences of {length}, on {_described(device)}")
    for cost in found:
        print(_count(cost.devices, "device"))
        print_table(_cost_rows(cost, device))
    print("estimates: benchmarks/cost_model.py compares them with measured and published runs (docs/benchmarks.md)")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('h') else 's'}"


def _described(device: "Device") -> str:
    return (
        f"{device.name}: {device.flops / 1e12:.3g} TFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s, "
        f"{device.memory / 1e9:.0f} GB{' for all of a node' if device.shares_memory else ''}; "
        f"{device.per_node} a node, {8 * device.network / 1e9:g} Gbit/s between nodes"
    )


def _cost_rows(cost: "RunCost", device: "Device") -> list[tuple[str, str]]:
    step = cost.step
    where = "node" if device.shares_memory else "device"
    divided = "divided among all (full sharding)" if cost.sharding == "full" else f"whole on each {where}"
    sent = f"each sends {step.exchanged / 1e9:.2f} GB a step" if cost.devices > 1 else "none"
    rows = [
        ("time", f"{format_duration(3600 * cost.hours)}, {cost.hours * cost.devices:,.1f} device-hours"),
        ("speed", f"{format_count(cost.tokens_per_s)} tokens/s, {cost.share:.0%} of peak"),
        (
            "step",
            f"{step.seconds:.3g} s: {_count(cost.micro_batches, 'micro-batch')} of {cost.batch_tokens:,} tokens a "
            f"device {step.compute_s / step.seconds:.0%}, exchange that they do not hide "
            f"{step.exchange_s / step.seconds:.0%}, update {step.update_s / step.seconds:.0%}",
        ),
        ("communication", sent),
        (
            "memory",
            f"about {cost.memory / 1e9:.1f} GB a {where}; weights, gradients and optimizer state {divided}"
            f"{'; blocks are recomputed' if cost.recompute else ''}",
        ),
        ("checkpoint", f"{cost.checkpoint / 1e9:.2f} GB"),
    ]
    return rows if cost.money is None else [*rows, ("money", f"{cost.money:,.2f}")]


def _print(plan: "Suggestion", texts: tuple[str, ...], threads: int | None) -> None:
    from firth.pretraining.length import MOST_EPOCHS

    chosen = plan.chosen
    how = "" if plan.counted else "about "
    print(f"{plan.source}: {how}{format_count(plan.text_tokens)} tokens; {plan.minutes:g} minutes; {plan.machine}")
    reads = f"{format_count(chosen.tokens)} tokens at {format_count(chosen.tokens_per_s)}/s, {plan.epochs:.2g} epochs"
    length = ["--minutes", f"{plan.minutes:g}"]
    used_s = chosen.tokens / chosen.tokens_per_s
    if used_s < 60 * plan.minutes * 0.99:
        reads += f": done after {format_duration(used_s)}, as more than {MOST_EPOCHS:g} epochs teach little"
        length = ["--epochs", f"{MOST_EPOCHS:g}"]
    free = "" if plan.free_memory is None else f" of {plan.free_memory / 1e9:.1f} GB free"
    vocabulary = "that of the corpus" if plan.counted else "chosen by the amount of text"
    rows = [
        ("vocabulary", f"{plan.vocabulary:,} tokens: {vocabulary}"),
        ("model", f"{chosen.model}, about {format_count(chosen.parameters)} parameters: {_why(plan)}"),
        ("sequences", "64 tokens, and 128 for 30 % of the documents (recipe small)"),
        ("reads", reads),
        ("memory", f"about {chosen.memory / 1e9:.1f} GB{free}"),
        ("loss", _expected(plan)),
    ]
    print_table(rows)
    if plan.free_memory is not None and chosen.memory > plan.free_memory:
        print("  warning: not even the smallest model fits into the free memory: end other programs first")
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
        *length,
        *([] if threads is None else ["--threads", str(threads)]),
    )


def _why(plan: "Suggestion") -> str:
    from firth.plan import TOKENS_PER_WEIGHT

    chosen = plan.chosen
    per_weight = f"{chosen.tokens_per_weight:.2g} tokens read for each weight of its blocks"
    larger = plan.sizes[plan.sizes.index(chosen) + 1 :]
    if larger and larger[0].tokens_per_weight >= TOKENS_PER_WEIGHT:
        return f"the largest that fits into memory; {per_weight}"
    if larger:
        least = f"at least {TOKENS_PER_WEIGHT} tokens for each weight of its blocks"
        return f"the largest with {least} (a rule of thumb); here {per_weight}"
    if chosen.tokens_per_weight < TOKENS_PER_WEIGHT:
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
