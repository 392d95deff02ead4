"""``firth convert``: any model that Firth reads -> a model folder, or the layout of another tool."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from firth.convert import elmo, google_bert
from firth.convert.huggingface import Facts
from firth.convert.openai_gpt import read_openai, write_openai
from firth.convert.sentence_transformers import write_sentence_model
from firth.convert.tf_bundle import read_bundle, write_bundle
from firth.errors import CheckpointError, ConfigError
from firth.export.onnx import Int8, check_exportable, check_packages, write_onnx
from firth.files import check_new, make_folder, write_json, write_text
from firth.folder import PRETRAINING, Loaded, read_model, tensor_names, write_model
from firth.formats.foreign import Gelu, describe, read_cove, read_foreign
from firth.formats.recognise import Kind, Source, recognise
from firth.text.tokenizer import Tokenizer
from firth.vectors.fixed_words import over_words

Target = Literal["firth", "google", "openai", "elmo", "sentence-transformers", "onnx"]
GOOGLE_PREFIX = "bert_model.ckpt"
# The systems that other tools know, besides transformers.
_HOLDS: dict[str, tuple[str, ...]] = {
    "google": ("bert", "bert-ltr"), "sentence-transformers": ("bert", "bert-ltr"), "openai": ("gpt",),
}  # fmt: skip
_POSITIONS = "encoder.embeddings.positions.weight"


@dataclass(frozen=True, slots=True)
class Converted:
    """What a path was found to be, by name and value, and the folder that was made of it."""

    source: str
    kind: Kind
    facts: Facts
    out: str


def convert(
    path: str | Path,
    out: str | Path,
    target: Target = "firth",
    *,
    vocab: Path | None = None,
    vectors: Path | None = None,
    lowercase: bool | None = None,
    gelu: Gelu | None = None,
    int8: Int8 | None = None,
    max_positions: int | None = None,
) -> Converted:
    """Read the model at ``path`` and write it to the new folder ``out``, whole or not at all.

    What was written is read again and compared, number by number, before the folder appears. ``vocab``,
    ``lowercase`` and ``gelu`` are for models of other tools, as in ``foreign.read_foreign``; ``int8`` is for ONNX.
    ``max_positions``: keep only the first position embeddings, for a model that reads shorter rows. ``vectors``: a file
    of word vectors, or a model folder, for an encoder that reads any word that has one (cove).
    """
    out = Path(out)
    check_new(out)
    if target == "onnx":
        check_packages()
    source = recognise(path)
    loaded, facts = _read(source, vocab, lowercase, gelu, vectors)
    if max_positions is not None:
        loaded = shortened(loaded, max_positions)
        facts.append(("positions", f"the first {max_positions} are kept"))
    _check_target(target, loaded, source.name, int8)

    def fill(folder: Path) -> None:
        if target == "google":
            facts.extend(_write_google(folder, loaded))
            return
        if target == "openai":
            facts.extend(_write_openai(folder, loaded))
            return
        if target == "elmo":
            facts.extend(_write_elmo(folder, loaded))
            return
        if target == "onnx":
            facts.extend(write_onnx(folder, loaded, int8))
            return
        write_model(
            folder, loaded.system_name, loaded.task, loaded.objective, loaded.tokenizer, loaded.provenance,
            untrained=loaded.untrained, embedding=loaded.embedding,
        )  # fmt: skip
        if target == "sentence-transformers":
            write_sentence_model(folder, loaded.embedding, loaded.objective.encoder.widths[-1], loaded.max_length)
        _compare(folder, loaded)

    make_folder(out, fill)
    return Converted(source.name, source.kind, facts, str(out))


def _read(
    source: Source, vocab: Path | None, lowercase: bool | None, gelu: Gelu | None, vectors: Path | None
) -> tuple[Loaded, Facts]:
    if vectors is not None:
        if source.kind == "cove" and (vocab, gelu) == (None, None):
            found = read_cove(source, lowercase)
            loaded, facts = found.loaded, list(found.facts)
        else:
            loaded, facts = _read(source, vocab, lowercase, gelu, None)
        loaded, more = over_words(loaded, vectors)
        sizes = describe(loaded.system_name, loaded.task, loaded.objective)
        return loaded, [*sizes, *facts[len(sizes) :], *more]
    if source.kind != "firth":
        found = read_foreign(source, vocab=vocab, lowercase=lowercase, gelu=gelu)
        return found.loaded, list(found.facts)
    if (vocab, lowercase, gelu) != (None, None, None):
        raise ConfigError(f"{source.name} is a model of Firth, which says all: leave out --vocab, --cased and --gelu")
    loaded = read_model(source.path)
    return loaded, describe(loaded.system_name, loaded.task, loaded.objective)


def shortened(loaded: Loaded, max_positions: int) -> Loaded:
    """The same model for rows of at most ``max_positions`` tokens.

    Source: openai/finetune-transformer-lm train.py keeps the first n_ctx rows. ConfigError where there are not as many.
    """
    encoder = loaded.objective.encoder
    state = loaded.objective.state_dict()
    if _POSITIONS not in state or not 1 <= max_positions <= len(state[_POSITIONS]):
        has = f"{len(state[_POSITIONS])} position embeddings" if _POSITIONS in state else "no position embeddings"
        raise ConfigError(f"max_positions={max_positions}: this model has {has}: expected 1 or more, and no more")
    config = replace(encoder.config, max_positions=max_positions)
    make: Any = type(loaded.objective)
    with torch.device("meta"):
        objective = make(type(encoder)(config), loaded.objective.config)
    objective.load_state_dict(state | {_POSITIONS: state[_POSITIONS][:max_positions].clone()}, assign=True)
    return replace(loaded, objective=objective.eval())


def _check_target(target: Target, loaded: Loaded, name: str, int8: Int8 | None) -> None:
    """ConfigError for a model that the other tool cannot hold."""
    if target == "onnx":
        check_exportable(loaded, name, int8)
        return
    if int8 is not None:
        raise ConfigError("int8 is for the target 'onnx': leave it out")
    if target == "firth":
        return
    if target == "elmo":
        if loaded.system_name != "elmo":
            raise ConfigError(f"{name} is a {loaded.system_name}: the layout of ELMo is for elmo")
        return
    options: Any = loaded.objective.config
    if loaded.system.huggingface is not None and loaded.system_name not in _HOLDS[target]:
        known = " and ".join(_HOLDS[target])
        raise ConfigError(f"{name} is a {loaded.system_name}: the layout of {target} is for {known}")
    if tensor_names(loaded.system_name, loaded.task, options) is None:
        raise ConfigError(f"{name} is a {loaded.system_name} for {loaded.task} with parts that only Firth has")
    if target == "google" and loaded.task not in (PRETRAINING, "classify", "answer"):
        raise ConfigError(f"{name} is a model for {loaded.task}, which google-research/bert does not have")


def _compare(folder: Path, loaded: Loaded) -> None:
    """CheckpointError unless the folder reads as the same numbers."""
    again = read_model(folder).objective.state_dict()
    for name, tensor in loaded.objective.state_dict().items():
        if not torch.equal(again[name], tensor):
            raise CheckpointError(f"{name} was written, but does not read as it was: is the disk failing?")


def _write_google(folder: Path, loaded: Loaded) -> Facts:
    """Google's files in an empty folder; returns what there is to know of them."""
    config = loaded.objective.encoder.config
    write_json(folder / "bert_config.json", google_bert.config_to_google(config))
    write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in loaded.tokenizer.pieces))
    state, task = loaded.objective.state_dict(), loaded.task
    if "mlm" in loaded.untrained:
        state, task = {n: t for n, t in state.items() if n.startswith("encoder.")}, google_bert.BARE
    arrays = google_bert.to_theirs(state, task, config.n_layers)
    write_bundle(folder / GOOGLE_PREFIX, arrays)
    again = read_bundle(folder / GOOGLE_PREFIX)
    for name, array in arrays.items():
        if not np.array_equal(again[name], array):
            raise CheckpointError(f"{name} was written, but does not read as it was: is the disk failing?")
    return _google_facts(loaded)


def _write_openai(folder: Path, loaded: Loaded) -> Facts:
    """OpenAI's files in an empty folder; returns what there is to know of them."""
    config, tokenizer = loaded.objective.encoder.config, loaded.tokenizer
    # Special pieces behind all others are made anew by their code, which has no place for them in the files.
    n_pieces = config.vocab_size
    while n_pieces - 1 in tokenizer.special_ids:
        n_pieces -= 1
    write_openai(folder, config, loaded.objective.state_dict(), n_pieces)
    tokenizer.save(folder, max_length=loaded.max_length)
    _, again = read_openai(folder)
    for name, tensor in loaded.objective.state_dict().items():
        if not torch.equal(again[name], tensor[: len(again[name])]):
            raise CheckpointError(f"{name} was written, but does not read as it was: is the disk failing?")
    facts = [("for OpenAI's code", "it reads encoder_bpe_40000.json and vocab_40000.bpe: put the model's own there")]
    if left := tokenizer.pieces[n_pieces:]:
        facts.append(("left out", f"the special pieces {', '.join(left)}: the released code makes its own"))
    return facts


def _write_elmo(folder: Path, loaded: Loaded) -> Facts:
    """The published files of ELMo in an empty folder; returns what there is to know of them."""
    encoder, where = loaded.objective.encoder, (folder / elmo.OPTIONS, folder / elmo.WEIGHTS)
    state = {name: t for name, t in loaded.objective.state_dict().items() if name.startswith("encoder.")}
    elmo.write_elmo(folder, encoder.config, state)
    config, again = elmo.read_elmo(*where, encoder.config.vocab_size)
    if replace(config, dropout=encoder.config.dropout) != encoder.config:
        raise CheckpointError(f"{where[0]} was written, but does not read as it was: is the disk failing?")
    for name, tensor in state.items():
        if not torch.equal(again[name], tensor):
            raise CheckpointError(f"{name} was written, but does not read as it was: is the disk failing?")
    return [("left out", "the vocabulary and all that stands on the encoder: these files have no place for them")]


def _google_facts(loaded: Loaded) -> Facts:
    """What Google's files cannot say."""
    tokenizer = loaded.tokenizer
    facts = [("for Google's code", f"--do_lower_case={tokenizer.lowercase}: its files do not say it")]
    google = Tokenizer.from_vocab(tokenizer.pieces, lowercase=tokenizer.lowercase, google=True)
    if google.fingerprint != tokenizer.fingerprint:
        facts.append(("note", "Google's code cuts rare characters, and lower-cased Hangul, in another way"))
    if loaded.objective.encoder.config.activation == "gelu":
        facts.append(("note", "their last code computes gelu by the tanh form, this model by erf: 5e-4 apart at most"))
    return facts
