"""The writers of the format table: each writes a model, reads it back and compares."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.config import to_dict
from firth.convert import elmo, google_bert
from firth.convert.hf_bert import OPTIONAL_PARTS
from firth.convert.hf_mapping import Findings
from firth.convert.openai_gpt import read_openai, write_openai
from firth.convert.sentence_transformers import write_sentence_model
from firth.convert.tf_bundle import read_bundle, write_bundle
from firth.convert.weights import read_tensors
from firth.errors import CheckpointError, ConfigError
from firth.files import write_json, write_text
from firth.folder import OWN_HEAD_OPTIONS, PRETRAINING, WEIGHTS, Loaded, read_model, tensor_names, write_model
from firth.formats.reading import NO_OPTIONS, PARTS, read_huggingface
from firth.tasks.config import AnswerConfig, LinearConfig, MultiLabelConfig, RegressConfig, TagConfig, WindowConfig
from firth.tasks.learnt import POOLER
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import save_tensors

GOOGLE_PREFIX = "bert_model.ckpt"
_BERTS = ("bert", "bert-ltr")


def write_firth(folder: Path, loaded: Loaded) -> Findings:
    """Write a model folder, which transformers reads too if it knows the system."""
    _write_model(folder, loaded)
    _compare(loaded.objective.state_dict(), read_model(folder, unfinished=True).objective.state_dict())
    return []


def write_huggingface(folder: Path, loaded: Loaded) -> Findings:
    """Write only the files that transformers reads."""
    _check_system("hf", loaded, (*_BERTS, "gpt"))
    _write_model(folder, loaded)
    (folder / "firth.json").unlink()
    # Readers of the folder could not tell random weights from trained ones.
    absent = [part for part in loaded.never_learnt if part in OPTIONAL_PARTS]
    if absent:
        theirs = tuple(OPTIONAL_PARTS[part] for part in absent)
        learnt = {n: t for n, t in read_tensors(folder / WEIGHTS).items() if not n.startswith(theirs)}
        save_tensors(folder / WEIGHTS, learnt)
    again = read_huggingface(folder, NO_OPTIONS).loaded
    ours = tuple(f"{part}." for part in absent)
    written = {n: t for n, t in loaded.objective.state_dict().items() if not n.startswith(ours)}
    _compare(written, again.objective.state_dict())
    return [
        ("left out", "firth.json: what Firth alone knows, such as how texts are embedded and where it comes from"),
        *(("left out", f"{PARTS[part]}, which was never trained") for part in absent),
        *_rules_left_out(loaded.objective.config),
    ]


def _rules_left_out(options: Any) -> Findings:
    """What decides a task's answers beside the weights, and has no place in transformers' files."""
    found = []
    if isinstance(options, AnswerConfig) and options.can_refuse:
        found.append(f"head.can_refuse=true, threshold={options.threshold:g}: there every question gets an answer")
    if isinstance(options, MultiLabelConfig) and options.threshold != MultiLabelConfig(labels=("a",)).threshold:
        found.append(f"head.threshold={options.threshold:g}: there a label applies from a probability of 0.5 on")
    if isinstance(options, RegressConfig) and options.lowest < options.highest:
        found.append(f"head.lowest={options.lowest:g}, highest={options.highest:g}: there values are not clipped")
    if isinstance(options, TagConfig) and options.unit != "word":
        found.append("head.unit=character: there words are tagged, with the particles that follow a name")
    windows, plain = to_dict(getattr(options, "windows", WindowConfig())), to_dict(WindowConfig())
    if set_here := [f"{name}={value}" for name, value in windows.items() if value != plain[name]]:
        found.append(f"head.windows: {', '.join(set_here)}: there long texts are cut, or read as the caller says")
    return [("left out", what) for what in found]


def write_sentence_transformers(folder: Path, loaded: Loaded) -> Findings:
    """Write a model folder with the files of sentence-transformers."""
    _check_system("st", loaded, _BERTS)
    facts = write_firth(folder, loaded)
    write_sentence_model(folder, loaded.embedding, loaded.objective.encoder.widths[-1], loaded.max_length)
    return facts


def write_google(folder: Path, loaded: Loaded) -> Findings:
    """Write the files of google-research/bert."""
    _check_system("google", loaded, _BERTS)
    if loaded.task not in (PRETRAINING, "classify", "answer"):
        raise ConfigError(f"this is a model for {loaded.task}, which google-research/bert does not have")
    config = loaded.objective.encoder.config
    write_json(folder / "bert_config.json", google_bert.config_to_google(config))
    write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in loaded.tokenizer.pieces))
    state, task = loaded.objective.state_dict(), loaded.task
    if "mlm" in loaded.untrained:
        state, task = {n: t for n, t in state.items() if n.startswith("encoder.")}, google_bert.BARE
    arrays = google_bert.to_theirs(state, task, config.n_layers)
    write_bundle(folder / GOOGLE_PREFIX, arrays)
    _compare(arrays, read_bundle(folder / GOOGLE_PREFIX))
    return _google_facts(loaded)


def _google_facts(loaded: Loaded) -> Findings:
    """The facts that Google's files cannot hold."""
    tokenizer = loaded.tokenizer
    facts = [("for Google's code", f"--do_lower_case={tokenizer.lowercase}: its files do not say it")]
    google = Tokenizer.from_vocab(tokenizer.pieces, lowercase=tokenizer.lowercase, google=True)
    if google.fingerprint != tokenizer.fingerprint:
        facts.append(("note", "Google's code cuts rare characters, and lower-cased Hangul, in another way"))
    if POOLER in loaded.never_learnt:
        facts.append(("note", f"{PARTS[POOLER]} was never trained; it is written since the files have a place for it"))
    if "mlm" in loaded.untrained and getattr(loaded.objective.config, "next_sentence", False):
        facts.append(("left out", "next-sentence prediction, which these files have with masked tokens only"))
    if loaded.task == "classify":
        facts.append(("left out", "the names of the labels: these files have no place for them"))
    if loaded.objective.encoder.config.activation == "gelu_tanh":
        facts.append(("note", "gelu is of the tanh form, which the files do not say: read them with --gelu tanh"))
    if loaded.objective.encoder.config.activation == "gelu":
        facts.append(("note", "their last code computes gelu by the tanh form, this model by erf: 5e-4 apart at most"))
    return facts


def write_released_gpt(folder: Path, loaded: Loaded) -> Findings:
    """Write the arrays of OpenAI's release, and the tokenizer."""
    _check_system("openai", loaded, ("gpt",))
    config, tokenizer = loaded.objective.encoder.config, loaded.tokenizer
    # Their code creates the special tokens after all others itself, and the files have no place for them.
    n_pieces = config.vocab_size
    while n_pieces - 1 in tokenizer.special_ids:
        n_pieces -= 1
    state = loaded.objective.state_dict()
    write_openai(folder, config, state, n_pieces)
    tokenizer.save(folder, max_length=loaded.max_length)
    _, again = read_openai(folder)
    _compare({name: tensor[: len(again[name])] for name, tensor in state.items()}, again)
    facts = [("for OpenAI's code", "it reads encoder_bpe_40000.json and vocab_40000.bpe: put the model's own there")]
    if left := tokenizer.pieces[n_pieces:]:
        facts.append(("left out", f"the special tokens {', '.join(left)}: the released code makes its own"))
    return facts


def write_published_elmo(folder: Path, loaded: Loaded) -> Findings:
    """Write the published files of ELMo."""
    if loaded.system_name != "elmo":
        raise ConfigError(f"this model is {loaded.system_name}: the format elmo is for elmo")
    config, where = loaded.objective.encoder.config, (folder / elmo.OPTIONS, folder / elmo.WEIGHTS)
    state = {name: t for name, t in loaded.objective.state_dict().items() if name.startswith("encoder.")}
    elmo.write_elmo(folder, config, state)
    found, again = elmo.read_elmo(*where, config.vocab_size)
    if replace(found, dropout=config.dropout) != config:
        raise CheckpointError(f"{where[0]} was written, but does not read as it was: is the disk failing?")
    _compare(state, again)
    facts = [("left out", "the vocabulary and all that stands on the encoder: these files have no place for them")]
    if len(loaded.tokenizer.encode("a.").offsets) > 1:
        facts.append(
            ("text", "other programs split it at white space alone, this model at punctuation too: give it split")
        )
    return facts


def _write_model(folder: Path, loaded: Loaded) -> None:
    write_model(
        folder,
        loaded.system_name,
        loaded.task,
        loaded.objective,
        loaded.tokenizer,
        loaded.provenance,
        untrained=loaded.untrained,
        embedding=loaded.embedding,
        stored=loaded.stored,
    )


def _check_system(key: str, loaded: Loaded, systems: tuple[str, ...]) -> None:
    """Raise ConfigError for a model that the other tool does not support."""
    options: Any = loaded.objective.config
    if loaded.system_name not in systems:
        raise ConfigError(f"this model is {loaded.system_name}: the format {key} is for {' and '.join(systems)}")
    if tensor_names(loaded.system_name, loaded.task, options) is None:
        what = f"a model of system {loaded.system_name} for {loaded.task}"
        instead = _without_them(options) or ", which firth predict and firth serve run"
        raise ConfigError(f"{what} has parts that only Firth has{instead}")


def _without_them(options: Any) -> str:
    """Name the head options that no other tool has, and the settings to go without them; empty if there are none."""
    network = getattr(options, "network", None)
    if network is None:
        return ""
    plain = LinearConfig()
    own, instead = [], []
    if not isinstance(network, LinearConfig):
        own, instead = [f"head.network.kind={network.kind}"], ["head.network.kind=linear"]
    elif not network.plain:
        for option in fields(network):
            usual = getattr(plain, option.name)
            if option.name != "dropout" and getattr(network, option.name) != usual:
                own.append(f"head.network.{option.name}={getattr(network, option.name)}")
                instead.append(f"head.network.{option.name}={list(usual) if isinstance(usual, tuple) else usual}")
    for name in OWN_HEAD_OPTIONS:
        if getattr(options, name, False):
            own.append(f"head.{name}=true")
            instead.append(f"head.{name}=false")
    if not own:
        return ""
    return f": {', '.join(own)}; to go without them, fine-tune with {' '.join(f'--set {key}' for key in instead)}"


def _compare(written: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless everything written reads back equal."""
    for name, tensor in written.items():
        read = again[name]
        same = torch.equal(read, tensor) if isinstance(tensor, Tensor) else np.array_equal(read, tensor)
        if not same and not torch.as_tensor(tensor).isfinite().all():
            raise CheckpointError(f"{name} holds numbers that are not finite: the model is broken")
        if not same:
            raise CheckpointError(f"{name} was written, but does not read as it was: is the disk failing?")
