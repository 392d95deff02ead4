"""Encoding on one GPU: BERT-base and BERT-large on packed rows, Firth's encoder beside transformers.

PYTHONPATH=src python benchmarks/gpu_encode.py      # --sizes base --lengths 512 0; --device cpu --quick

From ids to the top layer's states; weights are bfloat16 on both sides. A length of 0 means rows with the lengths of
sentences of articles. Needs what gpu_pretrain_step.py needs. To add a row for Firth, put it into OURS.
"""

import importlib.util
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import card
import measure
import numpy as np
import torch
from gpu_pretrain_step import config_of, their_step, trainer_of
from torch import Tensor, nn

from firth.bench.measure import Work, rates
from firth.bench.synthetic import ARTICLE_SENTENCES
from firth.data.rows import pack_lists
from firth.models.config import BertConfig
from firth.packed import Rows, Tokens, to_padded

# The error of the worst token's state against transformers in float32, relative to its length.
TOLERANCE = 3e-2
PEER_BATCH_TOKENS = 32_768
# Forward passes per timing.
_ROUNDS = 8
THEIRS = ("transformers, bfloat16, sorted", "transformers, bfloat16, sorted, compiled")


def encoder_of(config: BertConfig, device: str, folder: Path, *, compiled: bool) -> nn.Module:
    """Our encoder with weights in bfloat16."""
    encoder: nn.Module = trainer_of(config, device, folder, compiled=False).objective.encoder.eval().to(torch.bfloat16)
    if compiled:
        encoder.compile()
    return encoder


# A row's name, and how its encoder is made.
OURS: dict[str, Callable[[BertConfig, str, Path], nn.Module]] = {
    "Firth, bfloat16": lambda config, device, folder: encoder_of(config, device, folder, compiled=False),
    "Firth, bfloat16, compiled": lambda config, device, folder: encoder_of(config, device, folder, compiled=True),
}


def rows_of(length: int, n_tokens: int, vocab_size: int) -> list[list[int]]:
    """Rows of one length, or of sentence lengths plus two special tokens; longest first, as both sides expect."""
    rng = np.random.default_rng(1)
    lengths = [length] * max(n_tokens // length, 1) if length else []
    while sum(lengths) < n_tokens and not length:
        lengths.append(int(rng.choice(ARTICLE_SENTENCES)) + 2)
    return [rng.integers(5, vocab_size, n).tolist() for n in sorted(lengths, reverse=True)]


@torch.inference_mode()
def ours_of(encoder: nn.Module, tokens: Tokens) -> Tensor:
    """States of all tokens, from ids on the host."""
    top: Tensor = encoder(tokens.to(next(encoder.parameters()).device)).top
    return top


@torch.inference_mode()
def theirs_of(model: nn.Module, given: Sequence[dict[str, Tensor]]) -> list[Tensor]:
    """States of all tokens and of the padding, from ids on the host."""
    device = next(model.parameters()).device
    return [model(**{name: x.to(device) for name, x in each.items()}).last_hidden_state for each in given]


def padded(rows: Sequence[Sequence[int]], batch_tokens: int) -> list[dict[str, Tensor]]:
    """Padded batches of limited size, rows of similar length together."""
    parts, part = list[list[Sequence[int]]](), list[Sequence[int]]()
    for row in rows:
        if part and (len(part) + 1) * len(part[0]) > batch_tokens:
            parts.append(part)
            part = []
        part.append(row)
    found = []
    for each in [*parts, part]:
        ids, real = to_padded(torch.tensor([i for row in each for i in row]), Rows.from_lengths(list(map(len, each))))
        found.append({"input_ids": ids, "attention_mask": real.long()})
    return found


def error(found: Tensor, expected: Tensor) -> float:
    difference = (found.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
    return float(difference.max())


def run(options: Namespace, size: str, length: int, folder: Path) -> Path:
    config = config_of(size, 2000 if options.quick else 30_522)
    rows = rows_of(length, options.batch_tokens, config.vocab_size)
    # Their segments are all 0; so are ours where none are given.
    tokens, given = pack_lists(rows, [[0] * len(row) for row in rows]), padded(rows, PEER_BATCH_TOKENS)
    lengths = [len(row) for row in rows]
    flops = measure.bert_flops(config, lengths)
    field = card.Field(options.device)
    checks, expected = list[dict[str, Any]](), None

    def model_of(dtype: torch.dtype) -> nn.Module:
        whole = their_step(config, torch.float32, options.device, folder).model
        return whole.get_submodule("bert").eval().to(dtype)

    if importlib.util.find_spec("transformers") is None:
        field.notes.append("transformers is not installed: nothing was compared, nor checked.")
    else:
        states = theirs_of(model_of(torch.float32), given)
        real = [each["attention_mask"].bool() for each in given]
        expected = torch.cat([state[mask.to(state.device)] for state, mask in zip(states, real, strict=True)])

    def work(forward: Callable[[], object]) -> Work:
        return Work(lambda: [forward() for _ in range(_ROUNDS)], _ROUNDS * sum(lengths), _ROUNDS * flops)

    def ours(name: str) -> Work:
        encoder = OURS[name](config, options.device, folder)
        if expected is not None:
            checks.append(measure.check(name, error(ours_of(encoder, tokens), expected), TOLERANCE))
        return work(lambda: ours_of(encoder, tokens))

    def theirs(name: str) -> Work:
        model = model_of(torch.bfloat16)
        if "compiled" in name:
            model.compile()
        return work(lambda: theirs_of(model, given))

    for name in (*OURS, *(THEIRS if expected is not None else ())):
        make = ours if name in OURS else theirs
        if not (options.eager and "compiled" in name):
            field.add(name, lambda name=name, make=make: make(name))
    if not any(name in OURS for name in field.works):
        sys.exit(f"error: nothing of ours ran: {' '.join(field.notes)}")
    measured = rates(field.works, options.repeats, device=options.device)
    best = max((r for r in measured if r.name in OURS), key=lambda r: r.tokens_per_s or 0.0).name
    what = f"sequences of {length}" if length else "sequences as long as sentences"
    return measure.write(
        f"gpu-encode-{size}-{length}",
        title=f"States of ids on a GPU, BERT-{size}, {what}",
        target="",
        about=f"{len(rows)} sequences, {sum(lengths):,} tokens in one batch without padding, {_ROUNDS} times; the "
        f"other side in rectangles of at most {PEER_BATCH_TOKENS:,} slots, sorted by length. From ids on the host to "
        "states on the GPU. Peak is the fastest matrix product (8192×8192×8192) of the same run; memory is what each "
        "contestant adds, at its highest.",
        arguments=options,
        settings={"size": size, "length": length, "tokens": sum(lengths), "rows": len(rows)},
        checks=checks,
        tables=[field.table("", measured, best),
                card.top_kernels(f"Where the time of {best} goes", field.works[best].run, options.device)],
        notes=field.notes,
        device=options.device,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    options = card.parsed(card.arguments(str(__doc__).splitlines()[0]), arguments)
    with tempfile.TemporaryDirectory(prefix="firth-gpu-") as place:
        return [run(options, size, length, Path(place)) for size in options.sizes for length in options.lengths]


if __name__ == "__main__":
    main()
