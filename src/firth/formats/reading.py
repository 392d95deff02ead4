"""The readers of the format table: each reads a model of one format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from firth.config import read_json, to_dict
from firth.convert import google_bert
from firth.convert.cove import read_mtlstm
from firth.convert.elmo import find_parts, read_elmo, read_vocabulary, spaced_words
from firth.convert.fastai import find_words, read_fastai, read_words_file
from firth.convert.hf_mapping import Findings, HuggingFace
from firth.convert.openai_gpt import read_openai
from firth.convert.renames import expand, to_ours
from firth.convert.sentence_transformers import read_sentence_model
from firth.convert.tf_bundle import read_bundle
from firth.convert.weights import find_tensors, read_tensors
from firth.data.batch import Objective
from firth.errors import CheckpointError, ConfigError
from firth.folder import PRETRAINING, Loaded, read_model, tensor_names
from firth.layers.initialise import truncated_normal_
from firth.objectives.config import AwdLMConfig, BilmLMConfig, MaskedLMConfig, MtLstmTranslationConfig, TiedLMConfig
from firth.systems import SYSTEMS
from firth.tasks.config import AnswerConfig, ClassifyConfig, RegressConfig
from firth.tasks.table import TASKS
from firth.text.added_tokens import extended
from firth.text.fastai_words import tokenizer_of_fastai
from firth.text.hangul import unread_hangul
from firth.text.published import read_published
from firth.text.tokenizer import VOCABULARIES, Tokenizer
from firth.text.tokenizer_kinds import OPENAI, WORDPIECE, WORDS

Gelu = Literal["erf", "tanh"]
_What = tuple[str, str, Any]  # system, task, options
CONFIGS = ("config.json", "bert_config.json")

# Embeddings are often padded slightly beyond the vocabulary, to a round number.
_MOST_FILLERS = 127
_ROUND = 8
# By Hugging Face's model type. Systems may share one (BERT, left to right as well): the mapping of any of them
# recognises which a folder holds.
_MODEL_TYPES: dict[str, HuggingFace] = {
    theirs.model_type: theirs for system in SYSTEMS.values() if (theirs := system.huggingface) is not None
}
_PIECES = "encoder.embeddings.pieces.weight"
SPECIAL_TOKENS = "special tokens"
# Standard deviation of randomly initialised weights, where the configuration names none.
_INIT_RANGE = 0.02
PARTS = {
    "encoder.pooler": "the pooler",
    "mlm": "the masked-LM head",
    "lm": "the language-model head",
    "softmax": "the output layer",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """What the user specifies about another tool's model where its files do not; None: not given.

    ``vocab``: a vocabulary in place of the folder's. ``lowercase``: whether text is lower-cased. ``gelu``: the form in
    a Google checkpoint; erf if not given, as in every copy in use. ``vectors``: word vectors for an encoder that has
    none; the caller inserts them (``vectors/fixed_words.py``).
    """

    vocab: Path | None = None
    lowercase: bool | None = None
    gelu: Gelu | None = None
    vectors: Path | None = None


NO_OPTIONS = ReadOptions()


@dataclass(frozen=True, slots=True)
class Foreign:
    """A model read from another format, named facts about it, and a warning about its tokenizer, if any."""

    loaded: Loaded
    facts: Findings
    warning: str = ""


def read_firth(path: Path, options: ReadOptions) -> Foreign:
    """Read a model folder, or the model of a run."""
    loaded = read_model(path)
    facts = describe(loaded.system_name, loaded.task, loaded.objective)
    facts += [("new", f"{PARTS.get(part, part)}: never trained, at random") for part in loaded.untrained]
    return Foreign(loaded, facts)


def read_sentence_transformers(path: Path, options: ReadOptions) -> Foreign:
    """Read a sentence-transformers folder: its transformer and its pooling."""
    parts = read_sentence_model(path)
    inner = read_huggingface(parts.transformer, options)
    unit = ", made of length 1" if parts.embedding.normalize else ""
    facts = [*inner.facts, ("embedding", parts.embedding.pool + unit), *(("note", note) for note in parts.notes)]
    return replace(inner, loaded=replace(inner.loaded, embedding=parts.embedding), facts=facts)


def read_huggingface(folder: Path, options: ReadOptions) -> Foreign:
    """Read a folder written by any version of transformers."""
    file = next((folder / name for name in CONFIGS if (folder / name).is_file()), folder / CONFIGS[0])
    theirs, where = read_json(file), str(file)
    family = _model_type(theirs, where)
    config = family.config_from(theirs, where)
    weights = find_tensors(folder)
    state, left_out = family.todays_names(found := read_tensors(weights), str(weights))
    facts = [("weights", f"{weights.name}, {_types(found)}"), *left_out]
    family.check_sizes(config, state, where)
    kind = family.find_kind(theirs, state, where)
    text = _tokenizer(folder, config.vocab_size, options)
    expected = _empty(kind, config).state_dict()
    untrained = family.absent_parts(state, expected)
    wanted = {n: t for n, t in expected.items() if not any(n.startswith(f"{part}.") for part in untrained)}
    names = tensor_names(*kind)
    assert names is not None, "what is published is of systems and tasks with foreign names"
    ours = to_ours(state, expand(names, config.n_layers), wanted, str(weights))
    objective = _filled(kind, config, ours, text, untrained, str(weights))
    return _found(kind, objective, text, untrained, facts)


def _model_type(theirs: Mapping[str, Any], where: str) -> HuggingFace:
    """Look up the model type in ``config.json``; the oldest BERT files have none."""
    name = theirs.get("model_type", "bert")
    if not isinstance(name, str) or name not in _MODEL_TYPES:
        known = " and ".join(map(repr, _MODEL_TYPES))
        raise CheckpointError(f"{where}: model_type {name!r}: this Firth reads {known}")
    return _MODEL_TYPES[name]


def read_released_gpt(folder: Path, options: ReadOptions) -> Foreign:
    """Read the ten arrays of OpenAI's release."""
    kind: _What = ("gpt", PRETRAINING, TiedLMConfig())
    config, ours = read_openai(folder)
    text = _tokenizer(folder, config.vocab_size, options)
    objective = _filled(kind, config, ours, text, (), str(folder))
    return _found(kind, objective, text, (), [("weights", "params_0.npy to params_9.npy, float32")])


def read_published_elmo(path: Path, options: ReadOptions) -> Foreign:
    """Read the two files of a published ELMo."""
    if options.lowercase:
        raise ConfigError("ELMo reads text as it is: leave out --uncased")
    files = find_parts(path)
    assert files is not None
    kind: _What = ("elmo", PRETRAINING, BilmLMConfig())
    tokenizer = SYSTEMS["elmo"].reads(spaced_words([]) if options.vocab is None else read_vocabulary(options.vocab))
    config, ours = read_elmo(*files, tokenizer.size)
    text = _Text(tokenizer, "cased, words as they stand between white space, any of them by its characters")
    untrained = ("softmax",)
    objective = _filled(kind, config, ours, text, untrained, str(files[1]))
    facts = [("weights", f"{files[1].name}, float32, with the sizes of {files[0].name}")]
    return _found(kind, objective, text, untrained, facts)


def read_cove(path: Path, options: ReadOptions) -> Foreign:
    """Read CoVe's released encoder, which has no word vectors yet: ConfigError unless some are to be inserted.

    Text is lower-cased by default and split at white space only: the translation model was trained on text that was
    already tokenised, and words of its vectors such as ``n't`` and ``U.S.`` must not be split.
    """
    if options.vectors is None:
        raise ConfigError(f"there are no words in it: firth convert {path} --vectors FILE --out DIR")
    kind: _What = ("cove", PRETRAINING, MtLstmTranslationConfig(decoder=False))
    low = options.lowercase is not False
    tokenizer = Tokenizer.from_words(WORDS.specials, lowercase=low, keep_accents=low, split="blanks")
    config, ours = read_mtlstm(path, tokenizer.size)
    ours["encoder.words"] = torch.zeros(tokenizer.size, config.width)
    text = _Text(tokenizer, f"{'lower-cased' if low else 'cased'}, words as they stand between white space")
    objective = _filled(kind, config, ours, text, (), str(path))
    return _found(kind, objective, text, (), [("weights", f"{path.name}, float32, an encoder alone")])


def read_fastai_model(path: Path, options: ReadOptions) -> Foreign:
    """Read the weights of a fastai language model, and its word list."""
    if options.lowercase is False:
        raise ConfigError("fastai's language models read lower-cased text: leave out --cased")
    kind: _What = ("awd-lstm", PRETRAINING, AwdLMConfig())
    config, ours, facts = read_fastai(path)
    words = options.vocab or find_words(path)
    facts.append(("words", words.name))
    tokenizer, n_new = tokenizer_of_fastai(read_words_file(words), str(words))
    if tokenizer.size - n_new != config.vocab_size:
        raise CheckpointError(
            f"{words} has {tokenizer.size - n_new:,} words, the model {config.vocab_size:,}: not of one make; "
            "give the right ones with --vocab"
        )
    if n_new:
        ours |= {name: _with_means(ours[name], n_new) for name in ("encoder.embeddings.weight", "bias")}
        names = ", ".join(tokenizer.pieces[-n_new:])
        facts.append(("new", f"the special words {names}: the model has none, so they begin as the mean of its words"))
    text = _Text(tokenizer, "lower-cased, by fastai's rules")
    objective = _filled(kind, replace(config, vocab_size=tokenizer.size), ours, text, (), str(path))
    return _found(kind, objective, text, (), facts)


def _with_means(rows: Tensor, n: int) -> Tensor:
    """Append n copies of the rows' mean."""
    return torch.cat([rows, rows.mean(0, keepdim=True).expand(n, *rows.shape[1:])])


def _types(tensors: Mapping[str, Tensor]) -> str:
    """The tensors' dtypes in words, such as ``float16, read as float32``."""
    names = sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()})
    return " and ".join(names) + ("" if names == ["float32"] else ", read as float32")


def read_google(prefix: Path, options: ReadOptions) -> Foreign:
    """Read a TensorFlow checkpoint of google-research/bert; ``prefix`` is its path without ``.index``."""
    folder, where, gelu = prefix.parent, str(prefix), options.gelu or "erf"
    file = folder / "bert_config.json"
    config = google_bert.config_from_google(read_json(file), str(file), "gelu" if gelu == "erf" else "gelu_tanh")
    state = read_bundle(prefix, google_bert.is_weight)
    google_bert.check_sizes(config, state, str(file))
    found = google_bert.find_task(state, where)
    kind = _kind_of_google(found, state)
    text = _tokenizer(folder, config.vocab_size, options)
    ours = google_bert.to_ours(state, found, _empty(kind, config).state_dict(), config.n_layers, where)
    untrained = ("mlm",) if found == google_bert.BARE else ()
    objective = _filled(kind, config, ours, text, untrained, where)
    facts = [("weights", f"{prefix.name}.index, float32, every checksum matches")]
    if config.activation.startswith("gelu"):
        facts.append(("gelu", f"{gelu}: the checkpoint does not say which; erf is what every copy in use has"))
    return _found(kind, objective, text, untrained, facts)


def _kind_of_google(found: str, state: Mapping[str, np.ndarray]) -> _What:
    """System, task and options; labels have no names in Google's files."""
    if found == "answer":
        return "bert", found, AnswerConfig()
    if found != "classify":
        return "bert", PRETRAINING, MaskedLMConfig(next_sentence=google_bert.has_next_sentence(state))
    if state["output_weights"].ndim != 2:
        shape = state["output_weights"].shape
        raise CheckpointError(f"output_weights has shape {shape}, expected (labels, width): it is no classifier's")
    n_outputs = len(state["output_weights"])
    if n_outputs == 1:
        return "bert", "regress", RegressConfig()
    return "bert", found, ClassifyConfig(labels=tuple(f"LABEL_{i}" for i in range(n_outputs)))


def _found(kind: _What, objective: Objective, text: "_Text", untrained: tuple[str, ...], facts: Findings) -> Foreign:
    """Collect the model and the facts about it."""
    system_name, task, _ = kind
    facts = [*describe(system_name, task, objective), ("text", text.casing), *facts]
    if text.n_fillers:
        facts.append(("vocabulary", f"{text.n_fillers} rows of the embedding have no token: they are named [row…]"))
    facts += [("new", f"{PARTS[part]}: the checkpoint has none, so it begins at random") for part in untrained]
    if text.n_new:
        names = ", ".join(text.tokenizer.pieces[-text.n_new :])
        facts.append(("new", f"the special tokens {names}: the checkpoint has none, so they begin at random"))
        untrained = (*untrained, SPECIAL_TOKENS)
    warning = unread_hangul(text.tokenizer)
    if warning:
        facts.append(("warning", warning))
    return Foreign(Loaded(system_name, task, objective, text.tokenizer, {}, untrained), facts, warning)


def describe(system_name: str, task: str, objective: Objective) -> Findings:
    """Describe a model's system, task, labels and sizes."""
    config = objective.encoder.config
    sizes = f"{config.n_layers} layers of width {config.width}, {config.vocab_size:,} tokens"
    n_parameters = sum(p.numel() for p in objective.parameters())
    labels = getattr(objective.config, "labels", ())
    named = f": {', '.join(labels[:8])}{' …' if len(labels) > 8 else ''}" if labels else ""
    return [
        ("system", system_name),
        ("task", task + named),
        ("sizes", f"{sizes}, {n_parameters:,} parameters"),
    ]


@dataclass(frozen=True, slots=True)
class _Text:
    """A model's tokenizer, how its casing is known, the number of embedding rows that needed a name, and the number of
    special tokens, its last ones, that need a row."""

    tokenizer: Tokenizer
    casing: str
    n_fillers: int = 0
    n_new: int = 0


def _tokenizer(folder: Path, size: int, options: ReadOptions) -> _Text:
    """Load the tokenizer of a folder, which must have ``size`` tokens, not counting appended special ones."""
    vocab, advice = options.vocab, f"firth convert {folder} --vocab FILE --out DIR"
    if vocab is None and not any((folder / name).is_file() for name in VOCABULARIES):
        raise CheckpointError(f"{folder} has no tokenizer.json and no vocab.txt: give its vocabulary with {advice}")
    tokenizer, casing = read_published(folder, vocab=vocab, lowercase=options.lowercase)
    short = size - tokenizer.size
    # OpenAI GPT's vocabulary is published without special tokens, which are added when it is read.
    n_own = tokenizer.size - (tokenizer.n_added if tokenizer.kind is OPENAI else 0)
    if size in (tokenizer.size, n_own):
        return _Text(tokenizer, casing, n_new=-short)
    if tokenizer.kind is not WORDPIECE and n_own < size <= n_own + _MOST_FILLERS:
        raise CheckpointError(_padded(vocab or folder, tokenizer, size, n_own))
    if short < 0 or short > _MOST_FILLERS or size % _ROUND:
        raise CheckpointError(
            f"{vocab or folder}: the tokenizer has {tokenizer.size:,} tokens, the model {size:,}: not of one make; "
            f"give the right vocabulary with {advice}"
        )
    return _Text(extended(tokenizer, [f"[row{i}]" for i in range(tokenizer.size, size)]), casing, short)


def _padded(where: Path, tokenizer: Tokenizer, size: int, n_own: int) -> str:
    """The error message for embedding rows without a known token: they may be padding or trained special tokens."""
    named = ", ".join(tokenizer.pieces[n_own:])
    otherwise = f", or to {tokenizer.size:,} if the first of them are {named}" if named else ""
    return (
        f"{where}: the model has {size:,} rows of embeddings for {n_own:,} tokens: the others are padding, or of "
        "special tokens that the vocabulary does not name. Cut the model with transformers' resize_token_embeddings "
        f"to {n_own:,}{otherwise}, save it, and read that"
    )


def _empty(kind: _What, config: Any) -> Objective:
    """Build the modules without memory: no weights are sampled to be overwritten, and impossible sizes cost nothing."""
    system_name, task, options = kind
    make: Callable[[Any, Any], Objective] = SYSTEMS[system_name].objective if task == PRETRAINING else TASKS[task].model
    try:
        with torch.device("meta"):
            return make(SYSTEMS[system_name].encoder(config), options)
    except (RuntimeError, OverflowError) as error:
        # Even without memory, the number of a tensor's elements has to fit into 64 bits.
        raise CheckpointError(f"a model of these sizes cannot be made: {to_dict(config)} ({error})") from None


def _filled(
    kind: _What, config: Any, ours: Mapping[str, Tensor], text: _Text, untrained: Sequence[str], where: str
) -> Objective:
    """Build the modules with the weights; untrained parts and special tokens without a row are initialised randomly."""
    for name, tensor in ours.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{where}: {name} is {tensor.dtype}: quantised weights are not read")
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{where}: {name} has numbers that are not finite (NaN or infinite): the model is broken, take "
                "another copy"
            )
    if text.n_new:
        config = replace(config, vocab_size=text.tokenizer.size)
        ours = {**ours, _PIECES: torch.cat([ours[_PIECES], _new_rows(text.n_new, config)])}
    objective = _empty(kind, config)
    _fill(objective, ours, untrained)
    return objective


def _new_rows(n: int, config: Any) -> Tensor:
    """Sample embedding rows for special tokens from N(0, ``init_range``²), the same on every read.

    Source: openai/finetune-transformer-lm train.py, which samples them in this way.
    """
    return torch.randn(n, config.width, generator=torch.Generator().manual_seed(0)) * config.init_range


def _fill(objective: Objective, ours: Mapping[str, Tensor], untrained: Sequence[str]) -> None:
    """Give the modules memory and the weights; untrained parts are initialised randomly."""
    objective.to_empty(device="cpu")
    for name, parameter in objective.state_dict().items():
        if name in ours:
            parameter.copy_(ours[name])
    for part in untrained:
        _renew(objective.get_submodule(part), getattr(objective.encoder.config, "init_range", _INIT_RANGE))
    objective.eval()


def _renew(part: nn.Module, std: float) -> None:
    """Initialise weights randomly, the same on every read; training initialises its own."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in part.parameters():
            nn.init.zeros_(parameter)
        truncated_normal_(part, std)
