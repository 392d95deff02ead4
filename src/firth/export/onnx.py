"""``firth convert --as onnx``: export a model to ONNX, and check that onnxruntime agrees with PyTorch.

model.onnx                 ids, mask and segments of padded sequences in, the outputs of the model's heads out
model_int8.onnx            the same with 8-bit weights, only if it scores as well on labelled data
config.json, tokenizer.json, tokenizer_config.json, vocab.txt
onnx.json                  system, task and its options; inputs, outputs; what was measured, by which versions
README.md                  the same in words
"""

import copy
import importlib.metadata
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firth.baseline.folder import origin_lines
from firth.config import to_dict
from firth.convert import hf_bert
from firth.convert.hf_mapping import Findings
from firth.convert.padded import make_padded, naming, vocabulary_head
from firth.errors import CheckpointError, ConfigError
from firth.files import write_json, write_text
from firth.finetuning.evaluate import compare_precisions, read_gold_of
from firth.finetuning.recipe import LabelledConfig
from firth.folder import PRETRAINING, Loaded, save_tokenizer, tensor_names
from firth.formats.table import BY_KEY, ONNX_ABOUT, ONNX_GRAPH
from firth.inference.answering import answer_records, task_model
from firth.inference.gate import MAX_DROP
from firth.inference.onnx import import_onnxruntime, open_session, padded_inputs, padded_pairs, session_outputs
from firth.inference.score import score_records
from firth.packed import from_padded
from firth.tasks.kinds import kind_of_task
from firth.tasks.model import TaskModel
from firth.tasks.readers.files import Problems
from firth.tasks.rows import Example, Outputs, Row, RowWords, collate, make_row
from firth.version import firth_version

GRAPH, ABOUT, INT8_GRAPH = ONNX_GRAPH, ONNX_ABOUT, "model_int8.onnx"
SYSTEMS = ("bert", "bert-ltr")
# LayerNorm is a single node from 17 on; software that reads 18 has existed for two years and more.
OPSET = 18
# Largest allowed difference of any output from PyTorch's in float64. Outputs above 10 may differ by RELATIVE times the
# largest: PyTorch's own logits in the thirties, in float32, differ from float64 by 4e-6 times that.
TOLERANCE, RELATIVE = 1e-4, 1e-5
PACKAGES = BY_KEY["onnx"].packages
# A protocol buffers file holds at most 2 GiB: the weights of larger models go into a file beside it.
_MOST_BYTES = 2**31 - 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8:
    """An additional graph in int8, if its main score is at most ``max_drop`` points below that in float32.

    The labelled examples are given as for ``firth.finetuning.evaluate.evaluate``.
    """

    data: str
    config: LabelledConfig = LabelledConfig()
    task: str = ""
    split: str = "dev"
    max_drop: float = MAX_DROP


def check_exportable(loaded: Loaded, name: str, int8: Int8 | None) -> None:
    """Raise ConfigError for a model without an ONNX form, and for int8 whose cost could not be measured."""
    if loaded.system_name not in SYSTEMS:
        raise ConfigError(f"{name} is {loaded.system_name}: only models of {' and '.join(SYSTEMS)} become ONNX")
    try:
        make_padded(loaded.objective, loaded.never_learnt)
    except ConfigError as error:
        raise ConfigError(f"{name} cannot become ONNX: {error}") from None
    if int8 is None:
        return
    if loaded.task == PRETRAINING:
        raise ConfigError(f"--int8: {name} is not fine-tuned, so no score can show what int8 costs")
    if int8.task and kind_of_task(int8.task) != loaded.task:
        raise ConfigError(f"{name} is a model for {loaded.task}, but {int8.task} is of kind {kind_of_task(int8.task)}")
    if not 0 <= int8.max_drop <= 100:
        raise ConfigError(f"--max-drop {int8.max_drop}: expected points from 0 to 100, such as {MAX_DROP}")


def write_onnx(folder: Path, loaded: Loaded, int8: Int8 | None = None) -> Findings:
    """Write the files into an existing empty folder; returns a description of the measurements.

    CheckpointError if onnxruntime's numbers differ from PyTorch's, or int8 costs more than allowed.
    """
    gold = None if int8 is None else _read_gold(loaded, int8)
    module, inputs = make_padded(loaded.objective, loaded.never_learnt)
    _export(module, inputs, folder / GRAPH, loaded.max_length or 0)
    session = open_session(folder / GRAPH)
    checked = _compare(session, loaded)
    largest = max(value for shape in checked for value in shape["differences"].values())
    facts = [("checked", f"at most {largest:.1e} from PyTorch in {', '.join(_shape(shape) for shape in checked)}")]
    about: dict[str, Any] = {
        "format": "firth-onnx",
        "version": 1,
        "system": loaded.system_name,
        "task": loaded.task,
        "options": to_dict(loaded.objective.config),
        "max_length": loaded.max_length,
        "inputs": {node.name: node.shape for node in session.get_inputs()},
        "outputs": {node.name: node.shape for node in session.get_outputs()},
        "opset": OPSET,
        "tolerance": TOLERANCE,
        "checked": checked,
        "versions": {"firth": firth_version(), "torch": torch.__version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "provenance": loaded.provenance,
    }
    if int8 is not None and gold is not None:
        about["int8"], words = _int8(folder, loaded, int8, gold, session)
        facts.append(("int8", words))
    write_json(folder / "config.json", _config(loaded))
    save_tokenizer(folder, loaded.system_name, loaded.task, loaded.tokenizer, loaded.max_length)
    write_json(folder / ABOUT, about)
    write_text(folder / "README.md", _card(about, facts))
    return facts


def _export(module: nn.Module, inputs: Sequence[str], path: Path, max_length: int) -> None:
    # A separate tensor for each input: the export would turn one given twice into a single input.
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=max_length)
    second_length = torch.export.Dim("second_length", max=max_length)
    of_second = [name.startswith("second_") for name in inputs]
    example = tuple(
        # Segment 0, since there may be one only.
        torch.full((2, min(8 if second else 9, max_length)), int("token_type" not in name), dtype=torch.int64)
        for name, second in zip(inputs, of_second, strict=True)
    )
    axes = tuple({0: batch, 1: second_length if second else length} for second in of_second)
    with torch.no_grad():
        outputs = list(module(*example))
    n_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
    import_onnxruntime()  # PyTorch's exporter may import it too
    with _quiet_exporter():
        program: Any = torch.onnx.export(
            module,
            example,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=axes,
        )
        program.save(path, external_data=n_bytes > _MOST_BYTES)
    _strip(path)


def _strip(path: Path) -> None:
    """Strip source locations, which contain local paths, and intermediate shapes from the graph.

    Every reader infers the shapes; the quantiser would wrongly rely on them where it transposes weights."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        node.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    onnx.save(model, path)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """A context without the exporter's messages about PyTorch's internals, and about a package not needed here."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # The three inputs share their axes, as they should.
            warnings.filterwarnings("ignore", "# The axis name: .* will not be used", UserWarning)
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        registry.setLevel(level)


# -- float32 against PyTorch -----------------------------------------------------------------------------------


def _compare(session: Any, loaded: Loaded) -> list[dict[str, Any]]:
    """The largest difference of each output from the packed model's, at three shapes; CheckpointError above
    ``TOLERANCE``.

    The packed model computes in float64: in float32 it rounds too, and two roundings may differ by more than a correct
    graph may be off.
    """
    loaded = replace(loaded, objective=copy.deepcopy(loaded.objective).double())
    most = loaded.max_length or 0
    found = []
    for batch, length in ((1, 7), (3, 20), (5, most)):
        length = min(length, most)
        compared = _differences(session, loaded, _drawn_rows(loaded, batch, length))
        differences = {name: difference for name, (difference, _) in compared.items()}
        found.append({"batch": batch, "length": length, "differences": differences})
        for name, (difference, largest) in compared.items():
            most_off = max(TOLERANCE, RELATIVE * largest)
            if not difference <= most_off:  # also for NaN
                raise CheckpointError(
                    f"{name} of the exported graph is {difference:.1e} from PyTorch's at {batch}×{length}, more than "
                    f"{most_off:.1e}: nothing was written"
                )
    return found


def _drawn_rows(loaded: Loaded, batch: int, length: int) -> list[Row]:
    """Random sequences in which each token is a word, from the full length down to one token."""
    config = loaded.objective.encoder.config
    rng = np.random.default_rng(batch * length)
    lengths = [length] if batch == 1 else np.linspace(length, 1, batch).astype(int).tolist()
    rows = []
    if _in_pairs(loaded):
        # The second texts, marked by their segment, are as long as the first in reverse order.
        for n, m in zip(lengths, lengths[::-1], strict=True):
            rows.append(make_row(rng.integers(config.vocab_size, size=n), [0] * n))
            rows.append(make_row(rng.integers(config.vocab_size, size=m), [1] * m))
        return rows
    for n in lengths:
        every = np.arange(n)
        words = RowWords(np.stack((every, every), 1), every)
        # Of a pair too where both texts have the same segment embedding.
        segments = rng.integers(max(config.n_segments, 2), size=n).tolist()
        rows.append(make_row(rng.integers(config.vocab_size, size=n), segments, words))
    return rows


def _in_pairs(loaded: Loaded) -> bool:
    """Whether the model, and therefore its graph, encodes the texts of a pair separately."""
    return isinstance(loaded.objective, TaskModel) and loaded.objective.joins_rows


def _differences(session: Any, loaded: Loaded, rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """For each output, its largest difference from the packed model's, and the largest magnitude of the latter."""
    given = (padded_pairs if _in_pairs(loaded) else padded_inputs)(rows, loaded.tokenizer.pad_id)
    mask = torch.from_numpy(given["attention_mask"]).bool()
    expected, found = _packed_outputs(loaded, rows), {}
    for node, values in zip(session.get_outputs(), session.run(None, given), strict=True):
        theirs = torch.from_numpy(values)
        if node.shape[1:2] == ["length"]:
            theirs, _ = from_padded(theirs, mask)
        ours = expected[node.name]
        found[node.name] = float((theirs - ours).abs().max()), float(ours.abs().max())
    return found


@torch.inference_mode()
def _packed_outputs(loaded: Loaded, rows: Sequence[Row]) -> Mapping[str, Tensor]:
    """The model's own outputs, under the graph's names."""
    tokens, objective = collate([Example((row,), (1,), {}) for row in rows]).tokens, loaded.objective
    if isinstance(objective, TaskModel):
        outputs = naming(objective)(objective.logits(objective.read(tokens), tokens))
        return {name: values[::2] for name, values in outputs.items()} if _in_pairs(loaded) else outputs
    hidden = objective.encoder(tokens)
    found = {"last_hidden_state": hidden.top, "pooler_output": hidden.summary}
    if head := vocabulary_head(objective):
        found["logits"] = head.logits(hidden.top, objective.encoder.piece_embedding)
    return found


# -- int8 against float32 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gold:
    records: list[Any]
    task: str
    notes: list[str]


def _read_gold(loaded: Loaded, int8: Int8) -> _Gold:
    problems = Problems(skip_bad=int8.config.skip_bad)
    records = read_gold_of(loaded, int8.task, int8.data, int8.config, problems, int8.split)
    return _Gold(records, int8.task or loaded.task, problems.report())


def _int8(folder: Path, loaded: Loaded, int8: Int8, gold: _Gold, session: Any) -> tuple[dict[str, Any], str]:
    """Write the graph in int8; returns what it costs, as data and in words. CheckpointError if that is too much."""
    _quantise(folder / GRAPH, folder / INT8_GRAPH)
    plain = _scores(loaded, gold, session, "scoring float32")
    scores = _scores(loaded, gold, open_session(folder / INT8_GRAPH), "scoring int8")
    compared = compare_precisions(gold.task, plain, scores, int8.max_drop)
    metric, limit = compared["metric"], f"{int8.max_drop:g} points"
    both = f"{metric} {100 * plain[metric]:.2f} in float32, {100 * scores[metric]:.2f} in int8"
    if not compared["passed"]:
        raise CheckpointError(
            f"{both}: a drop of {compared['drop']:.2f}, more than the {limit} of --max-drop: nothing was written; "
            "leave out --int8, or allow more"
        )
    facts = {
        "task": gold.task,
        "data": Path(int8.data).name,
        "examples": len(gold.records),
        "metric": metric,
        "float32": plain,
        "int8": scores,
        "drop": compared["drop"],
        "max_drop": int8.max_drop,
        "notes": gold.notes,
    }
    return facts, f"{both}: a drop of {compared['drop']:.2f}, within {limit}"


def _quantise(path: Path, small: Path) -> None:
    """Quantise weights to 8-bit integers, scaled per output; inputs are quantised dynamically.

    Weights use only 7 bits: with 8, sums overflow on CPUs without VNNI, and the measured scores would not hold there.
    """
    import_onnxruntime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet_root():
        quantize_dynamic(path, small, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


@contextmanager
def _quiet_root() -> Iterator[None]:
    """A context without the quantiser's advice by the root logger, which would also keep a handler if it has none."""
    root, handler = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _scores(loaded: Loaded, gold: _Gold, session: Any, what: str) -> dict[str, float]:
    """Score a graph as ``firth evaluate`` does."""
    config = task_model(loaded).config

    def run(examples: Sequence[Example]) -> list[Outputs]:
        return session_outputs(session, config, examples, loaded.tokenizer.pad_id)

    answer = partial(answer_records, loaded, run=run)
    return score_records(gold.task, gold.records, getattr(config, "labels", ()), answer, what).scores


# -- files beside the graph ------------------------------------------------------------------------------------


def _config(loaded: Loaded) -> dict[str, Any]:
    """config.json as in a model folder: in the form of other tools if they support such a model."""
    config, options = loaded.objective.encoder.config, loaded.objective.config
    if tensor_names(loaded.system_name, loaded.task, options) is None:
        return {"model_type": f"firth-{loaded.system_name}", **to_dict(config)}
    usual = "BertLMHeadModel" if config.causal else "BertForMaskedLM"
    bare = bool({"mlm", "lm"} & set(loaded.untrained))
    architecture = hf_bert.ARCHITECTURES.get(loaded.task, "BertModel" if bare else usual)
    sizes = hf_bert.config_to_hf(config, architecture, loaded.tokenizer.pad_id)
    return sizes | hf_bert.task_to_hf(loaded.task, options)


def _shape(shape: Mapping[str, Any]) -> str:
    return f"{shape['batch']}×{shape['length']}"


def _card(about: Mapping[str, Any], facts: Findings) -> str:
    nodes = [
        f"| {kind} | `{name}` | {' × '.join(map(str, shape))} |"
        for kind in ("inputs", "outputs")
        for name, shape in about[kind].items()
    ]
    measured = [
        f"| {_shape(shape)} | `{name}` | {value:.1e} |"
        for shape in about["checked"]
        for name, value in shape["differences"].items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return "\n".join(
        [
            f"# A {about['system']} model ({about['task']}) as ONNX, made by Firth",
            "",
            f"`{GRAPH}`, opset {about['opset']}, float32. Rows are padded on the right, `attention_mask` is 1 at real "
            f"tokens and 0 at pads; rows of up to {about['max_length']} tokens. All inputs are int64.",
            *(["The two texts of a pair are rows of their own."] if "second_input_ids" in about["inputs"] else []),
            *(
                ["A pair is two rows, one with its texts in the other order: add the `logits` of the two."]
                if about["options"].get("both_orders")
                else []
            ),
            "",
            "| | name | shape |",
            "|---|---|---|",
            *nodes,
            "",
            "## How it was checked",
            "",
            f"Largest differences from PyTorch in onnxruntime ({versions}), at most {about['tolerance']:g} allowed:",
            "",
            "| rows × tokens | output | difference |",
            "|---|---|---|",
            *measured,
            "",
            *(line for name, words in facts if name == "int8" for line in (f"`{INT8_GRAPH}`: {words}.", "")),
            *origin_lines(about["provenance"]),
        ]
    )
