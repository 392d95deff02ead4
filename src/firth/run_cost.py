"""``firth plan --devices``: time, memory, communication and money of a pre-training run on 1 to 1,024 devices.

The time of a Transformer's step is the sum of its matrix products at a share of the device's peak, the memory traffic
between them at the device's bandwidth, the exchange of gradients that the backward pass does not hide, and the update.
Constants are fitted: ``OURS`` to steps measured on a CPU, the others to published figures (benchmarks/cost_model.py,
docs/benchmarks.md).
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from firth.bench.measure import in_turn, matrix_products
from firth.costs import block_weights
from firth.data.config import SHORTEST
from firth.errors import ConfigError
from firth.machine import Machine, find_machine, free_memory
from firth.packed import Encoder
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.pretraining.several import memory_of, outline
from firth.systems import SIZES
from firth.training.sharding import exchanged_bytes

# Devlin et al. 2018, App. A.2: 256 sequences of 128 tokens per step, and a vocabulary of 30,522.
STEP_TOKENS, VOCAB_SIZE, _POSITIONS = 32_768, 30_522, 512
MOST_DEVICES = 1024
# Far beyond any run: more is a slip of the keyboard.
_MOST_TOKENS = 1e18
# Devlin et al. 2018, §3.1; left-to-right models predict every token.
_MASKED_SHARE = 0.15
_FLOAT_BYTES, _HALF_BYTES = 4, 2
# Per parameter, Adam's update reads the parameter, its gradient and both means, and writes three of them and a cast.
_UPDATE_BYTES = 30
# A checkpoint has the weights and both means; the model folder beside it has the weights again.
_CHECKPOINT_BYTES = 16
# The backward pass is two thirds of a step, and the last bucket of gradients (DDP: 25 MB) is complete only at its end.
_BACKWARD, _BUCKET_BYTES = 2 / 3, 25e6
# Usable share of a device's memory; libraries and fragmentation take the rest.
_USABLE = 0.9
_SYSTEMS = ("bert", "bert-ltr", "gpt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """The efficiency of an implementation. ``matrix_share``: the share of peak that its matrix products reach;
    ``passes``: how often it reads or writes each number kept for the backward pass; ``attention_passes``: the same for
    attention scores, 0 for fused attention. ``gradient_bytes``: bytes per gradient; ``overlaps``: whether gradients are
    exchanged during the backward pass."""

    matrix_share: float
    passes: float
    attention_passes: float = 0.0
    gradient_bytes: int = _FLOAT_BYTES
    overlaps: bool = True


# Fitted by benchmarks/cost_model.py: to steps of this package on a CPU; to NVIDIA's figures of 2020 and 2021 for one
# A100. What this package reaches on a GPU was not measured: there, plans use the figures of 2021.
OURS = Software(matrix_share=0.879, passes=57.32, attention_passes=15.08)
NVIDIA_2020 = Software(
    matrix_share=0.7, passes=16.08, attention_passes=30.03, gradient_bytes=_HALF_BYTES, overlaps=False
)
NVIDIA_2021 = Software(matrix_share=0.7, passes=12.33, gradient_bytes=_HALF_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device. ``flops``: peak FLOP/s of dense matrix products in half precision. ``bandwidth``: of memory, bytes/s.

    ``memory`` in bytes. ``link``: bytes/s to the other devices of its node, each way; ``network``: bytes/s of the whole
    node, shared by ``per_node`` devices. ``software``: the implementation assumed to run on it. ``shares_memory``:
    ``memory`` is the node's, whose devices (CPU cores) have one copy of the weights.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    per_node: int
    link: float
    network: float
    software: Software = NVIDIA_2021
    shares_memory: bool = False


def _device(name: str, tflops: float, tb_s: float, gb: float, per_node: int, link_gb_s: float, gbit_s: float) -> Device:
    return Device(
        name=name, flops=tflops * 1e12, bandwidth=tb_s * 1e12, memory=gb * 1e9, per_node=per_node,
        link=link_gb_s * 1e9, network=gbit_s * 1e9 / 8,
    )  # fmt: skip


# From data sheets: half precision without sparsity, memory, and links of the usual node; networks of cloud instances.
DEVICES = {
    device.name: device
    for device in (
        _device("v100-16gb", 125, 0.900, 16, 8, 150, 100),
        _device("v100-32gb", 125, 0.900, 32, 8, 150, 100),
        _device("a100-40gb", 312, 1.555, 40, 8, 300, 400),
        _device("a100-80gb", 312, 2.039, 80, 8, 300, 800),
        _device("h100", 989, 3.35, 80, 8, 450, 3200),
        _device("h200", 989, 4.8, 141, 8, 450, 3200),
        _device("tpu-v2", 45, 0.6, 16, 4, 62, 2000),
        _device("tpu-v3", 123, 0.9, 32, 4, 82, 2600),
    )
}
HERE = "here"
# Between GPUs whose links are unknown: PCI Express 4.0, 16 lanes, less its overhead.
_PCIE_BYTES_S = 25e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Per-token counts of a run. ``flops``: forward and backward. ``numbers``: those kept for the backward pass between
    matrix products; ``scores``: of attention; ``logits``: over the vocabulary, in float32."""

    flops: float
    numbers: float
    scores: float
    logits: float
    blocks: int
    others: int
    recipe: Pretrain

    @property
    def parameters(self) -> int:
        return self.blocks + self.others


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """Seconds of one step: computation, communication that it does not hide, and the update. ``exchanged``: bytes that
    each device sends."""

    compute_s: float
    exchange_s: float
    update_s: float
    exchanged: float

    @property
    def seconds(self) -> float:
        return self.compute_s + self.exchange_s + self.update_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """One run on ``devices``: how it is divided, and what it costs. ``share``: share of peak, by model FLOPs only.

    ``memory`` and ``checkpoint`` in bytes, per device and per checkpoint. ``money``: None without a price.
    """

    devices: int
    sharding: str
    recompute: bool
    batch_tokens: int
    micro_batches: int
    step: StepCost
    tokens_per_s: float
    share: float
    memory: float
    checkpoint: float
    hours: float
    money: float | None


def model_shape(model: str, length: int, vocab_size: int = VOCAB_SIZE) -> Shape:
    """Count a model size on sequences of ``length`` tokens. ConfigError for a name that is not a Transformer size."""
    system = SIZES[model][0] if model in SIZES else ""
    if system not in _SYSTEMS:
        names = [name for name, (of, _) in SIZES.items() if of in _SYSTEMS]
        near = difflib.get_close_matches(model, names, 1)
        hint = f"did you mean {near[0]}?" if near else "give one of " + ", ".join(names)
        raise ConfigError(f"--model={model}: costs are counted for sizes of BERT and GPT: {hint}")
    # A model has as many positions as its sequences need: their number costs nothing.
    longer = {"encoder": {"max_positions": length}} if length > _POSITIONS else {}
    plain = {"model": model, "data": {"corpus": "", "length": length}, **longer}
    recipe = read_recipe(plain, (), "firth plan", vocab_size=vocab_size)
    config: Any = recipe.encoder
    share = _MASKED_SHARE if recipe.row.predict == "masked" else 1.0
    module = outline(recipe)
    encoder = module.encoder
    assert isinstance(encoder, Encoder)
    blocks = sum(p.numel() for block in encoder.regions() for p in block.parameters())
    # As in firth.costs, for one token of a sequence of this length.
    block = block_weights(config)
    head = config.width * (config.vocab_size + (0 if recipe.system == "gpt" else config.width))
    return Shape(
        flops=6.0 * (config.n_layers * (block + 2 * config.width * length) + share * head),
        numbers=float(config.n_layers * (8 * config.width + 2 * config.feed_forward_width)),
        scores=float(config.n_layers * config.n_heads * length),
        logits=share * config.vocab_size,
        blocks=blocks,
        others=sum(p.numel() for p in module.parameters()) - blocks,
        recipe=recipe,
    )


def token_seconds(shape: Shape, device: Device, software: Software, *, recompute: bool = False) -> float:
    """Seconds that one device takes for a token, forward and backward."""
    products = shape.flops * (4 / 3 if recompute else 1) / (device.flops * software.matrix_share)
    moved = software.passes * (_HALF_BYTES * shape.numbers + _FLOAT_BYTES * shape.logits)
    moved += software.attention_passes * _HALF_BYTES * shape.scores
    return products + moved / device.bandwidth


def step_cost(
    shape: Shape,
    device: Device,
    software: Software,
    n: int,
    batch_tokens: int,
    micro_batches: int,
    *,
    sharded: bool = False,
    recompute: bool = False,
) -> StepCost:
    """The cost of one step on ``n`` devices, each of which reads ``micro_batches`` of ``batch_tokens``."""
    micro_s = batch_tokens * token_seconds(shape, device, software, recompute=recompute)
    compute_s = micro_batches * micro_s
    exchanged = exchange_s = 0.0
    if n > 1:
        floats = exchanged_bytes(shape.blocks, shape.others, micro_batches, sharded=sharded) / _FLOAT_BYTES
        volume = floats * software.gradient_bytes * (1 if sharded else 2)
        exchanged = (n - 1) / n * volume
        exchange_s = _exchange_s(volume, device, n)
        if software.overlaps:
            hidden = compute_s if sharded else _BACKWARD * micro_s
            whole = shape.parameters * software.gradient_bytes
            exchange_s = max(exchange_s - hidden, exchange_s * min(_BUCKET_BYTES / whole, 1.0))
    update_s = shape.parameters / (n if sharded else 1) * _UPDATE_BYTES / device.bandwidth
    return StepCost(compute_s=compute_s, exchange_s=exchange_s, update_s=update_s, exchanged=exchanged)


def _exchange_s(volume: float, device: Device, n: int) -> float:
    """Seconds of an exchange by a ring in each node, and rings of equal parts across the nodes."""
    local, nodes = min(n, device.per_node), math.ceil(n / device.per_node)
    within = (local - 1) / local * volume / device.link
    return within + (nodes - 1) / nodes * volume / device.network


def run_costs(
    model: str,
    device: Device,
    counts: tuple[int, ...],
    *,
    tokens: float,
    length: int = 128,
    step_tokens: int = STEP_TOKENS,
    vocab_size: int = VOCAB_SIZE,
    price: float | None = None,
) -> list[RunCost]:
    """The cost of reading ``tokens`` on each number of devices. ``price``: per device and hour.

    Weights, gradients and optimizer state are divided (full sharding) only if one device has too little memory for all
    of them; blocks are recomputed only if that is not enough. ConfigError for an impossible run.
    """
    if not 0 < tokens <= _MOST_TOKENS:
        raise ConfigError(f"--tokens={tokens:g}: expected more than 0 and at most {_MOST_TOKENS:g}")
    if price is not None and not (price >= 0 and math.isfinite(price)):
        raise ConfigError(f"--price-per-hour={price:g}: expected 0 or more")
    if length < SHORTEST:
        raise ConfigError(f"--sequence-length={length}: expected at least {SHORTEST}")
    if step_tokens < length:
        raise ConfigError(f"--step-tokens={step_tokens}: expected at least a sequence of --sequence-length={length}")
    shape = model_shape(model, length, vocab_size)
    return [_run_cost(shape, device, n, tokens, length, step_tokens, price) for n in counts]


def _run_cost(
    shape: Shape, device: Device, n: int, tokens: float, length: int, step_tokens: int, price: float | None
) -> RunCost:
    if not 1 <= n <= MOST_DEVICES:
        raise ConfigError(f"--devices={n}: expected 1 to {MOST_DEVICES:,}")
    sequences = step_tokens // length
    if sequences < n:
        raise ConfigError(
            f"--devices={n}: a step of {step_tokens:,} tokens has {sequences:,} sequences of {length}, fewer than one "
            f"for each device: give --step-tokens {n * length} or more"
        )
    each = math.ceil(sequences / n)
    ways = [(False, False), (True, False), (True, True)]
    if n == 1 or device.shares_memory:  # nothing to divide
        ways = [(False, False), (False, True)]
    for sharded, recompute in ways:
        rows = _fitting(shape, device, n, each, length, sharded=sharded, recompute=recompute)
        if rows:
            break
    else:
        message = f"--devices={n}: a sequence of {length} tokens does not fit into {device.memory / 1e9:.0f} GB a "
        if device.shares_memory:
            raise ConfigError(f"{message}node, even with recomputation: give fewer devices, or a smaller model")
        raise ConfigError(f"{message}device, even with full sharding and recomputation: give more devices")
    micro_batches = math.ceil(each / rows)
    rows = math.ceil(each / micro_batches)
    step = step_cost(
        shape, device, device.software, n, rows * length, micro_batches, sharded=sharded, recompute=recompute
    )
    tokens_per_s = sequences * length / step.seconds
    hours = tokens / tokens_per_s / 3600
    return RunCost(
        devices=n,
        sharding="full" if sharded else "none",
        recompute=recompute,
        batch_tokens=rows * length,
        micro_batches=micro_batches,
        step=step,
        tokens_per_s=tokens_per_s,
        share=tokens_per_s * shape.flops / (n * device.flops),
        memory=_memory(shape, device, n, rows * length, sharded=sharded, recompute=recompute),
        checkpoint=float(_CHECKPOINT_BYTES * shape.parameters),
        hours=hours,
        money=None if price is None else hours * n * price,
    )


def _fitting(shape: Shape, device: Device, n: int, most: int, length: int, *, sharded: bool, recompute: bool) -> int:
    """The largest number of sequences per micro-batch that fits, at most ``most``; 0 if not even one does."""

    def fits(rows: int) -> bool:
        need = _memory(shape, device, n, rows * length, sharded=sharded, recompute=recompute)
        return need <= _USABLE * device.memory

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _memory(shape: Shape, device: Device, n: int, batch_tokens: int, *, sharded: bool, recompute: bool) -> float:
    """Bytes on a device, or on a node whose devices share its memory."""
    train = replace(shape.recipe.train, batch_tokens=batch_tokens, recompute=recompute)
    half = Machine(torch.device("cpu"), torch.bfloat16, "")
    processes = min(n, device.per_node) if device.shares_memory else 1
    return memory_of(replace(shape.recipe, train=train), half, processes, shares=n if sharded else 1).total


def this_machine(tell: Callable[[str], None]) -> Device:
    """Measure this machine's GPU, or one of its CPU cores while all are busy."""
    machine = find_machine("auto")
    tell("measuring matrix products and memory bandwidth")
    kind, on_cpu = str(machine.device), machine.device.type == "cpu"
    n = torch.get_num_threads() if on_cpu else 1
    numbers = torch.ones(1 << 25, device=machine.device)
    sums = torch.empty_like(numbers)
    products = matrix_products(kind)
    spreads = in_turn(
        {name: work.run for name, work in products.items()}
        | {"memory": lambda: torch.add(numbers, numbers, out=sums)},
        3,
        device=kind,
    )  # fmt: skip
    bandwidth = 3 * _FLOAT_BYTES * numbers.numel() / spreads["memory"].median
    flops = max(work.flops / spreads[name].median for name, work in products.items())
    name = f"{HERE}: {machine.path}" if n == 1 else f"{HERE}: one of {n} cores"
    return Device(
        name=name, flops=flops / n, bandwidth=bandwidth / n, memory=free_memory(machine.device) or 1e12,
        per_node=n if on_cpu else torch.cuda.device_count(), link=bandwidth / n / 2 if on_cpu else _PCIE_BYTES_S,
        network=10e9 / 8, software=OURS if on_cpu else NVIDIA_2021, shares_memory=on_cpu,
    )  # fmt: skip


def find_device(name: str, tell: Callable[[str], None]) -> Device:
    """Look up a device in ``DEVICES``, or measure this machine. ConfigError for any other name."""
    if name == HERE:
        return this_machine(tell)
    if name in DEVICES:
        return DEVICES[name]
    near = [known for known in DEVICES if known.startswith(name.lower())]
    near = near or difflib.get_close_matches(name.lower(), DEVICES, 1)
    hint = f"did you mean {' or '.join(near)}?" if near else f"give {HERE}, {', '.join(DEVICES)}"
    raise ConfigError(f"--device={name}: {hint}")
