"""fastai's released language models, of both generations: a file of weights and a list of words.

fwd_wt103.h5, bwd_wt103.h5       fastai 0.7: a torch pickle, despite its suffix; itos_wt103.pkl
lstm_fwd.pth, lstm_bwd.pth       fastai 1 and 2: the same, possibly with the optimizer's state; itos_wt103.pkl

Source: specification of checkpoint formats §6. Nothing in the files is executed: the weights are read as tensors
only, and in the pickle of words only the operations needed for a list of text are accepted, each by name.
"""

import json
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.config import read_whole
from firth.convert.hf_mapping import Findings
from firth.convert.weights import FILES, read_pickle
from firth.errors import CheckpointError
from firth.models.config import AwdLstmConfig

SUFFIXES = (".h5", ".pth")
_KERAS = "tf_model.h5"  # transformers' weights for TensorFlow, which are not read here

_WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
_LAYER = re.compile(r"rnns\.(\d+)\.(?:module\.)?(\w+?)(_raw)?")
# Copies of the embedding, under the names of both generations.
_COPIES = ("encoder_with_dropout.embed.weight", "encoder_dp.emb.weight", "decoder.weight")


def find_fastai(path: Path) -> Path | None:
    """Find the weights of a released model: ``path`` itself, or the only such file in that folder; None otherwise.

    One or more lists of words (``itos…``) are next to them.
    """
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    found = [file for file in files if file.suffix in SUFFIXES and _lists_beside(file)]
    return found[0] if len(found) == 1 else None


def missing_words(folder: Path) -> str:
    """Describe what a folder with weights but no list of words lacks; empty for any other folder."""
    weights = [file.name for file in sorted(folder.glob("*")) if file.suffix in SUFFIXES and file.name != _KERAS]
    if not weights or any(folder.glob("*itos*")) or any((folder / file).is_file() for file in FILES):
        return ""
    return (
        f"has {weights[0]}, but no list of words (itos….pkl, .json or .txt): put fastai's beside it; of CoVe's encoder "
        "give the file itself"
    )


def find_words(weights: Path) -> Path:
    """Find the list of words for a file of weights: the only one next to it, or the one with the most similar name.

    Parts of a name are compared, such as ``fwd`` and ``bwd``. CheckpointError if there is none, or it is ambiguous.
    """
    lists = _lists_beside(weights)
    common = [len(_parts(weights) & _parts(file)) for file in lists]
    found = [file for file, n in zip(lists, common, strict=True) if n == max(common)]
    if len(found) != 1:
        beside = ", ".join(file.name for file in lists) or "none"
        raise CheckpointError(
            f"{weights}: which list of words is its own? Beside it: {beside}; say it with firth convert {weights} "
            "--vocab FILE --out DIR"
        )
    return found[0]


def _lists_beside(weights: Path) -> list[Path]:
    """Find all lists of words in a file's folder; if one has several forms, text or JSON is preferred to a pickle."""
    forms = {file.stem: file for suffix in (".pkl", ".json", ".txt") for file in weights.parent.glob(f"*itos*{suffix}")}
    return [forms[name] for name in sorted(forms)]


def _parts(file: Path) -> set[str]:
    """``lstm_fwd.pth`` -> lstm and fwd."""
    return set(re.findall(r"[a-z0-9]+", file.stem.lower()))


def read_fastai(weights: Path) -> tuple[AwdLstmConfig, dict[str, Tensor], Findings]:
    """Read the sizes, the tensors under our names, and findings; CheckpointError for anything that does not fit.

    Only the file's name tells in which direction a model reads.
    """
    found = _plain_names(read_pickle(weights), str(weights))
    layers = _layers(found, str(weights))
    embedding = _take(found, "encoder.weight", str(weights))
    for name in _COPIES:
        if name in found and not torch.equal(found.pop(name), embedding):
            raise CheckpointError(f"{weights}: {name} is not the embedding: expected a tied model")
    bias = found.pop("decoder.bias", None)
    if found:
        raise CheckpointError(f"{weights} has unknown {', '.join(list(found)[:5])} ({len(found)} unknown tensors)")
    backward = "bwd" in weights.name.lower()
    config = _config(embedding, layers, backward, str(weights))
    ours = {
        "encoder.embeddings.weight": embedding,
        "bias": embedding.new_zeros(len(embedding)) if bias is None else bias,
    }
    ours |= {f"encoder.layers.{i}.{name}": layer[name] for i, layer in enumerate(layers) for name in _WEIGHTS}
    facts = [("weights", f"{weights.name}, {'backward' if backward else 'forward'} by its name")]
    if bias is None:
        facts.append(("new", "the bias of the softmax: this generation has none, so it begins at 0"))
    return config, {name: tensor.float() for name, tensor in ours.items()}, facts


def _plain_names(found: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Return the tensors under the names of an encoder alone: a whole model prefixes them with ``0.`` and ``1.``."""
    state = found.get("model", found)
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise CheckpointError(f"{where}: expected tensors by name, or such a table under 'model'")
    return {re.sub(r"^[01]\.", "", str(name)): tensor for name, tensor in state.items()}


def _layers(found: dict[str, Tensor], where: str) -> list[dict[str, Tensor]]:
    """Take the weights of each LSTM layer out of ``found``; the raw recurrent matrix is the trained one."""
    layers: dict[int, dict[str, Tensor]] = {}
    for name in list(found):
        match = _LAYER.fullmatch(name)
        if match and match[2] in _WEIGHTS:
            layer, tensor = layers.setdefault(int(match[1]), {}), found.pop(name)
            if match[3] or match[2] not in layer:
                layer[match[2]] = tensor
    missing = [
        f"rnns.{i}.{name}"
        for i in range(max(layers, default=0) + 1)
        for name in _WEIGHTS
        if name not in layers.get(i, {})
    ]
    if missing:
        raise CheckpointError(f"{where} lacks {', '.join(missing[:5])}: expected an AWD-LSTM of fastai")
    return [layers[i] for i in sorted(layers)]


def _take(found: dict[str, Tensor], name: str, where: str) -> Tensor:
    if name not in found:
        raise CheckpointError(f"{where} lacks {name}: expected an AWD-LSTM of fastai")
    return found.pop(name)


def _config(embedding: Tensor, layers: list[dict[str, Tensor]], backward: bool, where: str) -> AwdLstmConfig:
    """Infer the sizes from the shapes, and check every shape."""
    if embedding.dim() != 2:
        raise CheckpointError(f"{where}: encoder.weight has shape {tuple(embedding.shape)}, expected (words, width)")
    (n_words, width), hidden_width = embedding.shape, layers[0]["weight_hh_l0"].shape[-1]
    config = AwdLstmConfig(
        vocab_size=n_words, width=width, hidden_width=hidden_width, n_layers=len(layers), backward=backward
    )
    widths = config.layer_widths
    for i, layer in enumerate(layers):
        below, own = widths[i], widths[i + 1]
        shapes = dict(zip(_WEIGHTS, ((4 * own, below), (4 * own, own), (4 * own,), (4 * own,)), strict=True))
        for name, shape in shapes.items():
            if tuple(layer[name].shape) != shape:
                raise CheckpointError(
                    f"{where}: rnns.{i}.{name} has shape {tuple(layer[name].shape)}, expected {shape}"
                )
    return config


def read_words_file(file: Path) -> list[str]:
    """Read the list of words: one word per line (.txt), a JSON list, or a pickle of only a list of text."""
    try:
        data = read_whole(file)
        if file.suffix == ".pkl":
            words: Any = _unpickled(data, file)
        else:
            # A Windows editor may have added a byte order mark and carriage returns.
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
            words = json.loads(text) if file.suffix == ".json" else text.removesuffix("\n").split("\n")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as a list of words: {error}") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{file}: expected a list of words, all of them text")
    return words


_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_REMEMBER = {"PUT", "BINPUT", "LONG_BINPUT"}
_RECALL = {"GET", "BINGET", "LONG_BINGET"}
_IDLE = {"PROTO", "FRAME"}


def _unpickled(data: bytes, file: Path) -> list[Any]:
    """Interpret a pickle of a list of text; any operation not needed for lists and text is refused, not executed."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(data):
            name = operation.name
            if name in _TEXT:
                stack.append(argument)
            elif name in _REMEMBER:
                memo[int(argument or 0)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in _RECALL:
                stack.append(memo[int(argument or 0)])
            elif name == "EMPTY_LIST":
                stack.append([])
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("APPENDS", "LIST"):
                begin = marks.pop()
                items, stack[begin:] = stack[begin:], []
                if name == "LIST":
                    stack.append(items)
                else:
                    stack[-1].extend(items)
            elif name == "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            elif name == "STOP":
                return stack.pop()
            elif name not in _IDLE:
                raise CheckpointError(
                    f"{file} holds more than a list of text ({name} {argument or ''}".rstrip() + "): nothing of it was "
                    "run; give the words as a .txt, one a line, or as a JSON list"
                )
    except (IndexError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as a pickled list of words: {error}") from None
    raise CheckpointError(f"{file} cannot be read as a pickled list of words: it has no end")
