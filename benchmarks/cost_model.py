"""The cost model of `firth plan --devices`: fitted to steps of this machine, and compared with published figures.

.venv/bin/python benchmarks/cost_model.py
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import measure
import numpy as np
import torch
from scipy.optimize import nnls

from firth.bench.measure import in_turn
from firth.bench.run import bench_recipe, step_work
from firth.bench.synthetic import plain_corpus, plain_tokenizer
from firth.run_cost import (
    DEVICES,
    NVIDIA_2020,
    NVIDIA_2021,
    Device,
    Shape,
    Software,
    model_shape,
    step_cost,
    this_machine,
    token_seconds,
)  # fmt: skip

# Sizes, lengths and tokens per micro-batch of the measured steps; every other one is excluded from the fit.
GRID = (
    ("bert-tiny", 64, 4096), ("bert-tiny", 256, 4096), ("bert-tiny", 128, 2048), ("bert-mini", 64, 2048),
    ("bert-mini", 128, 4096), ("bert-mini", 256, 4096), ("bert-small", 64, 2048), ("bert-small", 128, 2048),
    ("bert-small", 256, 4096), ("bert-medium", 128, 2048), ("bert-base", 64, 1024), ("bert-base", 128, 1024),
    ("bert-base", 256, 1024), ("bert-medium", 256, 2048),
)  # fmt: skip
QUICK = (("bert-tiny", 32, 256), ("bert-tiny", 64, 256), ("bert-tiny", 64, 512), ("bert-tiny", 32, 512))

# NVIDIA, DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md: BERT-large in mixed precision, sequences/s.
# Figures of 2020 (container 20.06; DGX-2H: 19.07) and of 2021 (21.11; without length 512: its sequences are cut into
# bins by length, so their token count is unknown). The model is fitted to the first rows of each year, on one A100.
# Year, device, devices, devices per node, Gbit/s per node, sequences/micro-batch, micro-batches, length, sequences/s.
PUBLISHED: tuple[tuple[int, str, int, int, float, int, int, int, float], ...] = (
    (2020, "a100-40gb", 1, 8, 1600, 64, 1024, 128, 415),
    (2020, "a100-40gb", 1, 8, 1600, 16, 2048, 512, 78),
    (2020, "a100-40gb", 8, 8, 1600, 64, 128, 128, 3231),
    (2020, "a100-40gb", 8, 8, 1600, 16, 256, 512, 620),
    (2020, "v100-32gb", 1, 16, 800, 16, 4096, 128, 173),
    (2020, "v100-32gb", 1, 16, 800, 4, 8192, 512, 36),
    (2020, "v100-32gb", 16, 16, 800, 16, 256, 128, 2557),
    (2020, "v100-32gb", 16, 16, 800, 4, 512, 512, 551),
    (2020, "v100-16gb", 8, 8, 400, 8, 1024, 128, 1236),
    (2020, "v100-32gb", 64, 16, 800, 64, 16, 128, 12709.88),
    (2020, "v100-32gb", 1024, 16, 800, 64, 1, 128, 188088.32),
    (2021, "a100-80gb", 1, 8, 1600, 256, 32, 128, 580),
    (2021, "a100-80gb", 8, 8, 1600, 256, 32, 128, 4591),
    (2021, "a100-80gb", 64, 8, 1600, 256, 4, 128, 35774),
    (2021, "a100-80gb", 256, 8, 1600, 256, 1, 128, 138294),
    (2021, "v100-32gb", 1, 8, 400, 64, 64, 128, 224),
    (2021, "v100-32gb", 8, 8, 400, 64, 64, 128, 1746),
)
# Whole runs: hours; software; device, devices; for each phase: steps, sequences per step, length, sequences per device.
RUNS: tuple[tuple[str, float, Software, str, int, int, float, tuple[tuple[int, int, int, int], ...]], ...] = (
    (
        "NVIDIA 2021: BERT-large on 256 A100", 1.2, NVIDIA_2021, "a100-80gb", 256, 8, 1600,
        ((7038, 65_536, 128, 256), (1563, 32_768, 512, 32)),
    ),
    (
        "You et al. 2020: BERT-large on 1,024 TPU v3", 76 / 60, NVIDIA_2020, "tpu-v3", 1024, 1024, 2600,
        ((7038, 65_536, 128, 64), (1561, 32_768, 512, 32)),
    ),
    (
        "Devlin et al. 2018: BERT-large on 64 TPU v2", 96.0, NVIDIA_2020, "tpu-v2", 64, 64, 2000,
        ((900_000, 256, 128, 4), (100_000, 256, 512, 4)),
    ),
)  # fmt: skip
SHARE = 0.7
FITTED = {2020: (0, 1), 2021: (11,)}
COLUMNS: measure.Columns = (
    ("name", "", "{}"),
    ("kept", "", "{}"),
    ("measured", "measured", "{:,.0f}"),
    ("model", "model", "{:,.0f}"),
    ("error", "error", "{:+.0%}"),
)


def moved(shape: Shape, device: Device) -> tuple[float, float, float]:
    """Seconds per token of one pass over what is kept, of one over attention scores, and of products at peak."""
    nothing = Software(matrix_share=float("inf"), passes=0.0)
    scores = token_seconds(shape, device, replace(nothing, attention_passes=1.0))
    kept = token_seconds(shape, device, replace(nothing, passes=1.0))
    return kept, scores, token_seconds(shape, device, Software(matrix_share=1.0, passes=0.0))


def fit(points: Sequence[tuple[Shape, Device, float]], share: float | None = None) -> Software:
    """Fit relative errors of seconds per token. Given ``share`` of peak of matrix products, fit only data movement."""
    rows, targets = [], []
    for shape, device, seconds in points:
        kept, scores, products = moved(shape, device)
        fixed = 0.0 if share is None else products / share
        rows.append([(0.0 if share else products) / seconds, kept / seconds, scores / seconds])
        targets.append(1.0 - fixed / seconds)
    inverse, passes, attention = nnls(np.array(rows), np.array(targets))[0]
    return Software(
        matrix_share=share or float(1 / max(inverse, 1e-9)), passes=float(passes), attention_passes=float(attention)
    )


def measured(options: Namespace, device: Device) -> tuple[list[dict[str, Any]], Software]:
    """Steps of this machine beside the model, which was fitted to every other one of them."""
    grid = QUICK if options.quick else GRID
    with TemporaryDirectory(prefix="firth-cost-") as place:
        folder = Path(place)
        tokenizer = plain_tokenizer(1000 if options.quick else 30_522)
        corpus = plain_corpus(folder / "corpus", tokenizer, 40_000 if options.quick else 400_000)
        works = {}
        for model, length, tokens in grid:
            recipe = bench_recipe(model, corpus, tokens)
            data = replace(recipe.data, length=length, instances="documents")
            recipe = replace(
                recipe, data=data, objective=replace(recipe.objective, next_sentence=False),
                encoder=replace(recipe.encoder, dropout=0.0, attention_dropout=0.0),
            )  # fmt: skip
            name = f"{model}, length {length}, {tokens:,} tokens"
            works[name] = step_work(recipe, folder / name)
        spreads = in_turn({name: work.run for name, work in works.items()}, options.repeats)
    seconds = [spreads[name].median / work.tokens for name, work in works.items()]
    shapes = [model_shape(model, length, tokenizer.size) for model, length, _ in grid]
    ours = fit([(shape, device, s) for shape, s in list(zip(shapes, seconds, strict=True))[::2]])
    rows = []
    for number, (name, shape, s) in enumerate(zip(works, shapes, seconds, strict=True)):
        expected = 1 / token_seconds(shape, device, ours)
        rows.append(
            {
                "name": name, "kept": "fitted" if number % 2 == 0 else "held out", "measured": 1 / s,
                "model": expected, "error": expected * s - 1,
            }
        )  # fmt: skip
    return rows, ours


def device_of(name: str, per_node: int, gbits: float) -> Device:
    return replace(DEVICES[name], per_node=per_node, network=gbits * 1e9 / 8)


def published() -> tuple[list[dict[str, Any]], dict[int, Software]]:
    """Published sequences/s beside the model, which was fitted to one A100's figures of a year."""
    software, rows = {}, []
    for year, numbers in FITTED.items():
        points = []
        for number in numbers:
            _, name, _, per_node, gbits, _, _, length, rate = PUBLISHED[number]
            device = device_of(name, per_node, gbits)
            points.append((model_shape("bert-large", length), device, 1 / (rate * length)))
        base = NVIDIA_2020 if year == 2020 else NVIDIA_2021
        found = fit(points, SHARE) if len(points) > 1 else _passes(points[0])
        software[year] = replace(base, **{k: getattr(found, k) for k in ("matrix_share", "passes", "attention_passes")})
    for number, (year, name, n, per_node, gbits, rows_each, micro_batches, length, rate) in enumerate(PUBLISHED):
        shape = model_shape("bert-large", length)
        step = step_cost(shape, device_of(name, per_node, gbits), software[year], n, rows_each * length, micro_batches)
        expected = n * rows_each * micro_batches / step.seconds
        rows.append(
            {
                "name": f"{year}: {n} × {name}, length {length}, {micro_batches} × {rows_each} sequences a device",
                "kept": "fitted" if number in FITTED[year] else "held out", "measured": rate, "model": expected,
                "error": expected / rate - 1,
            }
        )  # fmt: skip
    return rows, software


def _passes(point: tuple[Shape, Device, float]) -> Software:
    """Passes of one figure, without attention scores, which were fused in 2021."""
    shape, device, seconds = point
    kept, _, products = moved(shape, device)
    return Software(matrix_share=SHARE, passes=(seconds - products / SHARE) / kept)


def runs() -> list[dict[str, Any]]:
    found = []
    for name, hours, software, kind, n, per_node, gbits, phases in RUNS:
        device, seconds = device_of(kind, per_node, gbits), 0.0
        for steps, sequences, length, most in phases:
            each = max(sequences // n, 1)
            micro = min(each, most)
            cost = step_cost(model_shape("bert-large", length), device, software, n, micro * length, each // micro)
            seconds += steps * cost.seconds
        found.append({"name": name, "measured": hours, "model": seconds / 3600, "error": seconds / 3600 / hours - 1})
    return found


def main(given: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), given)
    device = replace(this_machine(lambda text: None), per_node=1)
    # One process on all cores, as in the measured steps.
    whole = replace(device, flops=device.flops * _cores(device), bandwidth=device.bandwidth * _cores(device))
    steps, ours = measured(options, whole)
    others, software = published()
    held = [abs(row["error"]) for row in steps if row["kept"] == "held out"]
    held_published = [abs(row["error"]) for row in others if row["kept"] == "held out"]
    hours = [*COLUMNS[:1], ("measured", "published hours", "{:.3g}"), ("model", "model", "{:.3g}"), COLUMNS[-1]]
    return measure.write(
        "cost-model",
        title="The cost model of plans",
        target="median error of held-out steps at most 20 %, published figures within 35 %",
        about="`firth plan --devices` counts matrix products, what is moved between them, communication and the "
        "update. Here it is fitted to every other step of `firth pretrain` on this machine (one process on "
        "all cores, no dropout) and to the figures of one A100, and compared with the others. "
        f"Median error of held-out steps {median(held):.0%}, of held-out published figures "
        f"{median(held_published):.0%} (largest {max(held_published):.0%}).",
        arguments=options,
        settings={
            "device": {"flops": whole.flops, "bandwidth": whole.bandwidth},
            "ours": _facts(ours),
            **{f"nvidia_{year}": _facts(found) for year, found in software.items()},
        },
        checks=[],
        tables=[
            measure.table("Tokens/s of this machine", COLUMNS, steps),
            measure.table("Sequences/s that NVIDIA published", COLUMNS, others),
            measure.table("Whole runs that were published", hours, runs()),
        ],
        notes=[
            "The hours of Devlin et al. are those of the first implementation; with the steps and lengths of the "
            "paper they are a tenth of the chips' peak, far below what any later software reaches, and the model does "
            "not foresee that."
        ],
    )  # fmt: skip


def _cores(device: Device) -> int:
    return torch.get_num_threads() if "cores" in device.name else 1


def _facts(software: Software) -> dict[str, float]:
    return {
        "matrix_share": round(software.matrix_share, 3), "passes": round(software.passes, 2),
        "attention_passes": round(software.attention_passes, 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()
