"""P1: texts to vectors with BERT-base on a CPU, Firth beside transformers, sentence-transformers, onnxruntime.

.venv/bin/python benchmarks/encode.py --texts sentences      # or mixed; --quick; --only bfloat16

All read one model folder with random weights and mean-pool the top layer. Timings include tokenisation, as in normal
use. To add a row, write a maker and put it into CONTESTANTS.
"""

import importlib.util
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import texts as material
import torch

import firth
from firth.bench.measure import Work, rates
from firth.files import make_folder
from firth.folder import PRETRAINING, write_model
from firth.formats.table import open_model
from firth.inference.fast import make_fast
from firth.inference.model import Model
from firth.machine import has_fast_bfloat16
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.systems import SIZES
from firth.text.tokenizer import Tokenizer

BATCH = 32
OURS = "Firth, precision auto"
PLAIN = "transformers, float32, as users run it"
Encode = Callable[[Sequence[str]], np.ndarray]


def firth_encoder(**options: Any) -> Callable[[Path], Encode]:
    """``firth.load`` with options, then ``embed``."""

    def make(folder: Path) -> Encode:
        model = firth.load(folder, **options)
        return lambda texts: model.embed(list(texts))

    return make


def firth_int8_encoder(folder: Path) -> Encode:
    """``firth.load(folder, precision="int8")``, which requires a passed quality gate that random weights lack."""
    loaded, place = open_model(folder), torch.device("cpu")
    loaded.objective.encoder, _ = make_fast(loaded.objective.encoder, "int8", place)
    model = Model(loaded, place)
    return lambda texts: model.embed(list(texts))


def transformers_encoder(dtype: torch.dtype, *, by_length: bool, compiled: bool = False) -> Callable[[Path], Encode]:
    """Padded batches of 32 through ``AutoModel``; ``by_length``: texts of similar length together."""

    def make(folder: Path) -> Encode:
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False).eval()
        forward = torch.compile(model, dynamic=True) if compiled else model

        @torch.inference_mode()
        def some(texts: list[str]) -> np.ndarray:
            given = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
            return pooled(forward(**given).last_hidden_state, given["attention_mask"]).numpy()

        return in_batches(some, by_length)

    return make


def pooled(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Means over real tokens, float32."""
    real = mask[..., None].float()
    return (hidden.float() * real).sum(1) / real.sum(1)


def in_batches(some: Callable[[list[str]], np.ndarray], by_length: bool) -> Encode:
    """Texts in batches of 32, in order or longest first (by characters, as in sentence-transformers)."""

    def encode(texts: Sequence[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i])) if by_length else list(range(len(texts)))
        parts = [some([texts[i] for i in order[a : a + BATCH]]) for a in range(0, len(order), BATCH)]
        found = np.concatenate(parts)
        return found[np.argsort(order)]

    return encode


def sentence_transformers_encoder(dtype: torch.dtype) -> Callable[[Path], Encode]:
    """``SentenceTransformer.encode``, which sorts by length itself."""

    def make(folder: Path) -> Encode:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        transformer = Transformer(str(folder), model_kwargs={"dtype": dtype})
        pooling = Pooling(transformer.get_embedding_dimension(), "mean")
        model = SentenceTransformer(modules=[transformer, pooling], device="cpu")

        def encode(texts: Sequence[str]) -> np.ndarray:
            found = model.encode(
                list(texts), batch_size=BATCH, show_progress_bar=False, convert_to_numpy=False, convert_to_tensor=True
            )
            return found.float().numpy()

        return encode

    return make


def onnx_encoder(*, int8: bool) -> Callable[[Path], Encode]:
    """onnxruntime on the graph that ``torch.onnx`` exports, unchanged or with dynamic int8 quantisation."""

    def make(folder: Path) -> Encode:
        import onnxruntime
        import transformers

        path = export_onnx(folder)
        if int8:
            path = quantised(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

        def some(texts: list[str]) -> np.ndarray:
            given = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="np")
            arrays = {name: given[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
            (hidden,) = session.run(None, arrays)
            return pooled(torch.from_numpy(hidden), torch.from_numpy(arrays["attention_mask"])).numpy()

        return in_batches(some, by_length=True)

    return make


class Top(torch.nn.Module):
    """The top layer of a transformers model with positional inputs, for the export."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        top: torch.Tensor = self.model(**given).last_hidden_state
        return top


def export_onnx(folder: Path) -> Path:
    """Export the folder's encoder to ``encoder.onnx`` beside it, for any number of sequences of any length."""
    import transformers

    path = folder / "encoder.onnx"
    if path.is_file():
        return path
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    # Three tensors: the export would merge a tensor that is given twice into one input.
    ids, mask, segments = torch.ones(3, 2, 9, dtype=torch.int64).unbind()
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", max=512)}
    torch.onnx.export(
        Top(model).eval(), (ids, mask, segments), path, dynamo=True, verbose=False,
        input_names=["input_ids", "attention_mask", "token_type_ids"], output_names=["top"],
        dynamic_shapes=(axes, axes, axes),
    )  # fmt: skip
    return path


def quantised(path: Path) -> Path:
    """The graph with int8 weights; inputs are quantised dynamically."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = path.with_name("encoder-int8.onnx")
    if not small.is_file():
        quantize_dynamic(path, small, weight_type=QuantType.QInt8)
    return small


@dataclass(frozen=True)
class Contestant:
    """``make(folder)`` returns a function from texts to vectors. ``tolerance``: the largest relative error of a vector.

    ``needs``: packages without which the row is left out. ``compiles``: takes a minute before the first text.
    """

    make: Callable[[Path], Encode]
    tolerance: float
    needs: tuple[str, ...] = ()
    compiles: bool = False


# The error of the worst vector against transformers in float32, relative to its length.
FLOAT32, BFLOAT16, INT8 = 1e-4, 2e-2, 0.1
_ST = ("transformers", "sentence_transformers")
_ONNX = ("transformers", "onnx", "onnxscript", "onnxruntime")
CONTESTANTS: Mapping[str, Contestant] = {
    OURS: Contestant(firth_encoder(precision="auto"), BFLOAT16),
    "Firth, precision auto, compiled": Contestant(
        firth_encoder(precision="auto", compile=True), BFLOAT16, compiles=True
    ),
    "Firth, float32 (the default)": Contestant(firth_encoder(), FLOAT32),
    "Firth, int8": Contestant(firth_int8_encoder, INT8),
    PLAIN: Contestant(transformers_encoder(torch.float32, by_length=False), FLOAT32, ("transformers",)),
    "transformers, float32, sorted": Contestant(
        transformers_encoder(torch.float32, by_length=True), FLOAT32, ("transformers",)
    ),
    "transformers, bfloat16, sorted": Contestant(
        transformers_encoder(torch.bfloat16, by_length=True), BFLOAT16, ("transformers",)
    ),
    "transformers, bfloat16, sorted, compiled": Contestant(
        transformers_encoder(torch.bfloat16, by_length=True, compiled=True), BFLOAT16, ("transformers",), compiles=True
    ),
    "sentence-transformers, float32": Contestant(sentence_transformers_encoder(torch.float32), FLOAT32, _ST),
    "sentence-transformers, bfloat16": Contestant(sentence_transformers_encoder(torch.bfloat16), BFLOAT16, _ST),
    "onnxruntime, float32, sorted": Contestant(onnx_encoder(int8=False), FLOAT32, _ONNX),
    "onnxruntime, dynamic int8, sorted": Contestant(onnx_encoder(int8=True), INT8, _ONNX),
}


def chosen(options: Namespace) -> tuple[dict[str, Contestant], list[str]]:
    """The contestants of this run, and why others are left out.

    Firth is always included; its vectors are compared with those of the plain row if that is.
    """
    found, notes = {}, []
    for name, contestant in CONTESTANTS.items():
        missing = [package for package in contestant.needs if importlib.util.find_spec(package) is None]
        if options.only and name != OURS and not any(part in name for part in options.only):
            continue
        if missing:
            notes.append(f"{name}: left out, not installed: {', '.join(missing)}.")
        elif contestant.compiles and options.quick and "compiled" not in options.only:
            notes.append(f"{name}: left out of a quick run, it compiles.")
        else:
            found[name] = contestant
    return found, notes


def write_folder(folder: Path, size: str, tokenizer: Tokenizer) -> BertConfig:
    """A model folder with random weights, and its sizes."""
    config = BertConfig(vocab_size=tokenizer.size, **SIZES[f"bert-{size}"][1])
    torch.manual_seed(1)
    objective = MaskedLM(Bert(config), MaskedLMConfig())
    make_folder(folder, lambda new: write_model(new, "bert", PRETRAINING, objective, tokenizer, {}))
    return config


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The error of the worst vector, relative to its length."""
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


def latencies(encoders: Mapping[str, Encode], some: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds for one text alone: contestants take turns at each text, and each reads it twice.

    The second time counts. During the first, threads of the previous contestant that busy-wait for more work (as
    onnxruntime's do) take a core away.
    """
    times: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(rounds):
        for text in some:
            for name, encode in encoders.items():
                encode([text])
                started_at_s = time.perf_counter()
                encode([text])
                times[name].append(1e3 * (time.perf_counter() - started_at_s))
    ours = float(np.median(times[OURS]))
    return [
        {"name": name, "p50": float(np.median(t)), "p99": float(np.percentile(t, 99)), "calls": len(t),
         "times": None if name == OURS else float(np.median(t)) / ours}
        for name, t in times.items()
    ]  # fmt: skip


def run(options: Namespace, folder: Path) -> Path:
    size = "tiny" if options.quick else options.size
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    config = write_folder(folder / "model", size, tokenizer)
    n = 40 if options.quick else options.n
    some = material.texts(options.data, options.texts, n, tokenizer)
    lengths = [len(ids) + 2 for ids in tokenizer.ids_many(some)]
    contestants, notes = chosen(options)
    encoders = {name: contestant.make(folder / "model") for name, contestant in contestants.items()}
    checks = []
    if PLAIN in encoders:
        expected = encoders[PLAIN](some)
        for name, encode in encoders.items():
            if name != PLAIN:
                checks.append(measure.check(name, error(encode(some), expected), contestants[name].tolerance))
    flops, n_tokens = measure.bert_flops(config, lengths), sum(lengths)
    works = {name: Work(lambda encode=encode: encode(some), n_tokens, flops) for name, encode in encoders.items()}
    measured = rates(works, options.repeats)
    single = latencies(encoders, some[: 5 if options.quick else 100], 1 if options.quick else 2)
    padded = [sum(max(part) * len(part) for part in cut(order)) for order in (lengths, sorted(lengths))]
    where = "SST-2 and SQuAD" if material.real(options.data) else "made-up words in the lengths of SST-2 and SQuAD"
    # Keeps the records of both kinds of CPU apart.
    plain = not has_fast_bfloat16()
    return measure.write(
        f"encode-{options.texts}{'-float32' if plain else ''}",
        title=f"Texts to vectors, BERT-{size}: {options.texts}{', a CPU without bfloat16' if plain else ''}",
        target="at least 12 times transformers as users run it, twice the best setting of any peer, and 60 % of "
        "peak" if size == "base" else "",
        about=f"{len(some)} texts ({options.texts}; {where}), {n_tokens:,} tokens, {n_tokens / len(some):.0f} a text; "
        f"batches of {BATCH} make {padded[0]:,} tokens with padding, {padded[1]:,} when sorted. Vectors are means of "
        "the top layer; tokenisation is timed too. Peak is the fastest matrix product of the same run; the "
        "model's operations are counted on real tokens.",
        arguments=options,
        settings={"size": size, "texts": options.texts, "n": len(some), "tokens": n_tokens, "batch": BATCH,
                  "padded": padded[0], "padded_sorted": padded[1], "real": material.real(options.data)},
        checks=checks,
        tables=[
            measure.rate_table("Many texts", measured, OURS),
            measure.table("One text alone, milliseconds", (
                ("name", "", "{}"), ("p50", "p50", "{:.1f}"), ("p99", "p99", "{:.1f}"), ("times", "Firth is", "{:.1f}×")
            ), single),
        ],
        notes=notes,
    )  # fmt: skip


def cut(lengths: Sequence[int]) -> list[Sequence[int]]:
    return [lengths[a : a + BATCH] for a in range(0, len(lengths), BATCH)]


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--texts", choices=("sentences", "mixed"), default="sentences")
    parser.add_argument("--n", type=int, default=256, help="texts")
    parser.add_argument("--size", default="base", help="tiny, mini, small, medium, base, large")
    parser.add_argument("--only", nargs="*", default=[], help="contestants besides Firth whose names have one of these")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-encode-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
