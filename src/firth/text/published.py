"""Load the tokenizers of published models, whose files may disagree.

tokenizer.json           the complete tokenizer, in the library's format
encoder_bpe_40000.json, vocab_40000.bpe; or vocab.json, merges.txt    OpenAI GPT's; its code has the text rules
tokenizer_config.json    for a class Bert…: normalisation options, which override tokenizer.json
vocab.txt                the tokens only; Google's code has the text rules
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from firth.config import read_json
from firth.errors import InputError, TokenizerError
from firth.names import locate
from firth.text.gpt_bpe import MERGES
from firth.text.tokenizer import Tokenizer, casing, has_vocabulary, read_vocab, tokenizer_file
from firth.text.tokenizer_kinds import PREFIX

# Classes for which tokenizer.json is complete; ``_FROM_FLAGS`` build their normaliser from the configuration.
_AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_OPENAI = ("OpenAIGPTTokenizer", "OpenAIGPTTokenizerFast")
_FROM_FLAGS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_SENTENCEPIECE = "\u2581"
_KINDS = {True: "lower-cased", False: "cased"}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a folder (Firth's or another tool's), a run, a bundled model, or a vocabulary file."""
    folder = locate(path)
    of_run = not has_vocabulary(folder) and has_vocabulary(folder / "model")
    return read_published(folder / "model" if of_run else folder)[0]


def read_published(folder: Path, *, vocab: Path | None = None, lowercase: bool | None = None) -> tuple[Tokenizer, str]:
    """Load the tokenizer of a published model; also say how its casing was determined.

    tokenizer.json gives the same ids as in transformers. vocab.txt alone is read as Google's code reads it, and merges
    as OpenAI's does; options that Google's code does not support are read as in transformers. ``vocab``:
    a file that replaces the folder's own. ``lowercase`` overrides the files, but not what the tokens
    show.
    """
    file = tokenizer_file(vocab or folder)
    about = _about(folder if folder.is_dir() else folder.parent)
    if file.name in MERGES:
        return _from_merges(file, str(about.get("tokenizer_class") or _OPENAI[0]), lowercase)
    name = str(about.get("tokenizer_class") or _FROM_FLAGS[0])
    if file.suffix != ".json":
        return _from_pieces(file, about, name, lowercase)
    if name in _AS_IT_IS or not about:
        tokenizer = Tokenizer.load(file, lowercase=lowercase)
        return tokenizer, f"{_KINDS[tokenizer.lowercase]} ({file.name})"
    return _from_json(file, about, lowercase)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        return read_json(path) if path.is_file() else {}
    except InputError as error:
        raise TokenizerError(str(error)) from None


def _flag(about: Mapping[str, Any], key: str) -> bool | None:
    value = about.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"tokenizer_config.json: {key} = {value!r}: expected true or false")
    return value


def _from_json(file: Path, about: Mapping[str, Any], lowercase: bool | None) -> tuple[Tokenizer, str]:
    """Load a tokenizer.json, with the flags of tokenizer_config.json if its class applies them."""
    said = _flag(about, "do_lower_case")
    wanted = {
        "lowercase": lowercase if lowercase is not None else said,
        "strip_accents": _flag(about, "strip_accents"),
        "handle_chinese_chars": _flag(about, "tokenize_chinese_chars"),
    }
    before = Tokenizer.load(file)
    state = json.loads(before._backend.to_str())
    normalizer = state["normalizer"] or {}
    changed = {key: value for key, value in wanted.items() if value is not None and normalizer.get(key) != value}
    if normalizer.get("type") != "BertNormalizer" or not changed:
        tokenizer = Tokenizer.load(file, lowercase=lowercase)
        return tokenizer, f"{_KINDS[tokenizer.lowercase]} ({file.name})"
    state["normalizer"] = normalizer | changed
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)), str(file))
    _check_casing(file, tokenizer, lowercase)
    why = "as asked" if lowercase is not None else "tokenizer_config.json, overriding tokenizer.json"
    return tokenizer, f"{_KINDS[tokenizer.lowercase]} ({why}){_doubt(tokenizer)}"


def _from_merges(file: Path, name: str, lowercase: bool | None) -> tuple[Tokenizer, str]:
    """Load OpenAI GPT's two files, with its text rules and rule-based word splitting."""
    if name not in (*_OPENAI, *_AS_IT_IS):
        raise TokenizerError(f"{file}: tokenizer_class {name!r} splits text in its own way: not OpenAI GPT's")
    if lowercase is False:
        raise TokenizerError(f"{file}: --cased was asked for, but OpenAI GPT's tokens are lower-cased: leave it out")
    return Tokenizer.load(file), f"{_KINDS[True]} (OpenAI GPT's rules, words split by rule instead of spaCy)"


def _from_pieces(file: Path, about: Mapping[str, Any], name: str, lowercase: bool | None) -> tuple[Tokenizer, str]:
    """Load a vocab.txt with Google's behaviour, unless the flags require what Google's code cannot do."""
    if name.removesuffix("Fast") not in (*_FROM_FLAGS, *_AS_IT_IS):
        raise TokenizerError(f"{file}: tokenizer_class {name!r} splits text in its own way: not a WordPiece tokenizer")
    pieces, said = read_vocab(file), _flag(about, "do_lower_case")
    _check_added(file, about, len(pieces))
    if any(piece.startswith(_SENTENCEPIECE) for piece in pieces) and not any(p.startswith(PREFIX) for p in pieces):
        raise TokenizerError(f"{file}: these are SentencePiece tokens (▁), not WordPiece (##)")
    shown = casing(pieces)
    ways = ((lowercase, "as asked"), (said, "tokenizer_config.json"), (shown, "from the tokens"))
    chosen, why = next(((value, why) for value, why in ways if value is not None), (None, ""))
    if chosen is None:
        raise TokenizerError(
            f"{file}: neither the folder nor the tokens show whether text is lower-cased: convert the model with "
            f"firth convert … --cased, or --uncased"
        )
    strip, ideographs = _flag(about, "strip_accents"), _flag(about, "tokenize_chinese_chars")
    tokenizer = Tokenizer.from_vocab(pieces, lowercase=chosen, google=True, source=str(file))
    _check_casing(file, tokenizer, lowercase)
    if strip not in (None, chosen) or ideographs is False:
        tokenizer = _as_transformers(tokenizer, chosen, strip, ideographs is not False)
    return tokenizer, f"{_KINDS[chosen]} ({why}){_doubt(tokenizer)}"


def _check_added(file: Path, about: Mapping[str, Any], size: int) -> None:
    """Raise TokenizerError for trained tokens beyond those of ``vocab.txt``, which no text would be tokenised to."""
    beside = file.with_name("added_tokens.json")
    numbers = read_json(beside).values() if beside.is_file() else ()
    listed = about.get("added_tokens_decoder")
    named = listed if isinstance(listed, Mapping) else {}
    keys = (int(key) for key in named if key.isascii() and key.isdecimal())
    behind = [n for n in (*numbers, *keys) if isinstance(n, int) and n >= size]
    if behind:
        where = beside.name if beside.is_file() else "tokenizer_config.json"
        raise TokenizerError(
            f"{file}: {where} has tokens that vocab.txt lacks (number {min(behind)} and more): save the tokenizer with "
            "transformers' AutoTokenizer, whose tokenizer.json has all of them"
        )


def _as_transformers(tokenizer: Tokenizer, lowercase: bool, strip: bool | None, ideographs: bool) -> Tokenizer:
    """Use the same tokens with the library's own normaliser, which has options that Google's code lacks."""
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=ideographs, strip_accents=strip, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend)


def _check_casing(file: Path, tokenizer: Tokenizer, lowercase: bool | None) -> None:
    """Raise TokenizerError if lower-casing is requested but tokens have capitals, which it would never match."""
    if lowercase and casing(tokenizer.pieces) is False:
        raise TokenizerError(f"{file}: --uncased was asked for, but the tokens are cased: leave it out")


def _doubt(tokenizer: Tokenizer) -> str:
    """Return a note if the tokens contradict the files."""
    shown = casing(tokenizer.pieces)
    if shown is None or shown == tokenizer.lowercase:
        return ""
    return f"; yet the tokens look {_KINDS[shown]}: --{'uncased' if shown else 'cased'} reads text that way"
