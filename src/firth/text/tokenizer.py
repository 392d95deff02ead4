"""Tokenizers: text to token ids and offsets, and back."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from firth.errors import InputError, TokenizerError
from firth.files import nearest, write_text
from firth.text import gpt_bpe
from firth.text.tokenizer_kinds import (
    BPE,
    PREFIX,
    UNK,
    WORDPIECE,
    WORDS,
    TokenizerKind,
    check_pieces,
    kind_of,
)
from firth.text.words import (
    MARK,
    build_blank_splitter,
    build_marked_normalizer,
    build_marked_pre_tokenizer,
    build_normalizer,
    build_pre_tokenizer,
)

WORD_LIMIT = 200  # characters; a longer word is [UNK] (google-research/bert tokenization.py)
MUCH_UNKNOWN = 0.01  # share of unknown tokens in a text from which another vocabulary is suggested


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenised text: ids, their character spans in the raw text, and the index of the word each belongs to.

    A word here is a unit of pre-tokenisation: a run of letters and digits, one punctuation mark, one ideograph.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]


# Tokenizer files in order of preference; OpenAI GPT's have merges beside them.
VOCABULARIES = ("tokenizer.json", "vocab.txt", *gpt_bpe.MERGES)
_THEIRS = next(iter(gpt_bpe.MERGES))

# White space, and characters that the normaliser drops.
_NO_WORD = re.compile("[\\s\x00-\x1f\x7f-\x9f\ufffd\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]*")


class Tokenizer:
    """A tokenizer of one of four kinds: WordPiece, BPE with marked white space, whole words, OpenAI GPT's BPE.

    Special tokens are named by their role: ``start_id``, ``between_id``, ``end_id``, ``unk_id``; and
    ``pad_id``, ``mask_id``, which raise TokenizerError if the kind has none.

    Special tokens written in a text are plain text, and no method here adds any. To use a tokenizer in
    another process, load its folder there (or pickle it); limit the library's own threads in
    such a process with TOKENIZERS_PARALLELISM=false.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str = "the vocabulary"):
        self.kind = kind_of(backend, source)
        backend = _with_markers(backend, self.kind)
        by_piece = backend.get_vocab(with_added_tokens=True)
        self.pieces = sorted(by_piece, key=by_piece.__getitem__)
        check_pieces(self.pieces, self.kind, source)
        if by_piece[self.pieces[-1]] != len(self.pieces) - 1:
            raise TokenizerError(f"{source}: the ids have gaps; expected 0 to {len(self.pieces) - 1}")
        # [MASK] in a text is plain text. tokenizer.json does not store this, so it is set at each load.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._by_special = {special: by_piece[special] for special in self.kind.specials}
        self.size = len(self.pieces)
        self.special_ids = tuple(self._by_special.values())
        self.unk_id = by_piece[self.kind.unk]
        self.start_id, self.between_id, self.end_id = (
            by_piece[special] for special in (self.kind.start, self.kind.between, self.kind.end)
        )
        self.lowercase = _is_lowercase(_state(backend)["normalizer"])
        if backend.post_processor is None:  # a language model's, which may be fine-tuned
            frame_rows(backend, self.kind, by_piece)

    @property
    def pad_id(self) -> int:
        """The id of the padding token, for other tools."""
        return self._special(self.kind.pad, "padding")

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self._special(self.kind.mask, "mask")

    @property
    def n_added(self) -> int:
        """Number of special tokens appended to a vocabulary that lacks them."""
        return self.size - int(self._backend.get_vocab_size(with_added_tokens=False))

    def _special(self, piece: str | None, use: str) -> int:
        if piece is None:
            raise TokenizerError(f"a {self.kind.name} vocabulary has no {use} token; use a WordPiece vocabulary")
        return self._by_special[piece]

    @classmethod
    def from_vocab(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool,
        keep_accents: bool = False,
        google: bool = False,
        source: str = "the vocabulary",
    ) -> "Tokenizer":
        """Build a WordPiece tokenizer from tokens in the order of their ids. TokenizerError names the ``source``."""
        return cls._build(pieces, source, lowercase, keep_accents, google)

    @classmethod
    def _build(
        cls, pieces: Sequence[str], source: str, lowercase: bool, keep_accents: bool, google: bool
    ) -> "Tokenizer":
        check_pieces(pieces, WORDPIECE, source)
        ids = {piece: i for i, piece in enumerate(pieces)}
        model = models.WordPiece(
            ids, unk_token=UNK, max_input_chars_per_word=WORD_LIMIT, continuing_subword_prefix=PREFIX
        )
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = build_normalizer(lowercase=lowercase, keep_accents=keep_accents, google=google)
        backend.pre_tokenizer = build_pre_tokenizer()
        backend.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
        frame_rows(backend, WORDPIECE, ids)
        return cls(backend, source)

    @classmethod
    def from_merges(
        cls, pieces: Sequence[str], merges: Sequence[tuple[str, str]], *, lowercase: bool, keep_accents: bool = False
    ) -> "Tokenizer":
        """Build a BPE tokenizer from tokens in the order of their ids, and merges in order."""
        check_pieces(pieces, BPE, "the vocabulary")
        ids = {piece: i for i, piece in enumerate(pieces)}
        backend = tokenizers.Tokenizer(models.BPE(ids, list(merges), unk_token=BPE.unk))
        backend.normalizer = build_marked_normalizer(lowercase=lowercase, keep_accents=keep_accents)
        backend.pre_tokenizer = build_marked_pre_tokenizer()
        backend.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
        frame_rows(backend, BPE, ids)
        return cls(backend)

    @classmethod
    def from_words(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool,
        keep_accents: bool = False,
        split: Literal["words", "blanks"] = "words",
    ) -> "Tokenizer":
        """Build a whole-word tokenizer from words in the order of their ids; decoding joins them with spaces.

        ``split``: split texts at punctuation too, or only at white space (already tokenised text).
        """
        normalizer = build_normalizer(lowercase=lowercase, keep_accents=keep_accents, google=False)
        return cls._of_words(pieces, normalizer, build_pre_tokenizer() if split == "words" else build_blank_splitter())

    @classmethod
    def from_spaced_words(cls, pieces: Sequence[str]) -> "Tokenizer":
        """Build a whole-word tokenizer for already tokenised text: words are split at white space and unchanged."""
        return cls._of_words(pieces, None, pre_tokenizers.WhitespaceSplit())

    def with_words(self, pieces: Sequence[str]) -> "Tokenizer":
        """Build a whole-word tokenizer with the same rules and other words, in the order of their ids."""
        assert self.kind is WORDS, "subword tokens are not words"
        return self._of_words(pieces, self._backend.normalizer, self._backend.pre_tokenizer)

    @classmethod
    def _of_words(cls, pieces: Sequence[str], normalizer: Any, splitter: Any) -> "Tokenizer":
        check_pieces(pieces, WORDS, "the vocabulary")
        ids = {piece: i for i, piece in enumerate(pieces)}
        backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=WORDS.unk))
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = splitter
        frame_rows(backend, WORDS, ids)
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "Tokenizer":
        """Load a folder with tokenizer.json, or a published vocabulary: Google's vocab.txt, or OpenAI GPT's two files.

        Google's files do not say whether they are lower-cased: None infers it from the tokens. A value that
        contradicts the tokenizer raises TokenizerError, as does anything that is not a tokenizer.
        """
        path = Path(path)
        file = tokenizer_file(path)
        if file.name in gpt_bpe.MERGES:
            tokenizer = cls(gpt_bpe.read_merges(file), str(file))
            known: bool | None = True
        elif file.suffix == ".json":
            tokenizer = cls(_read_json(file), str(file))
            known = tokenizer.lowercase
        else:
            pieces = read_vocab(file)
            known = casing(pieces)
            chosen = lowercase if lowercase is not None else known is not False
            tokenizer = cls._build(pieces, str(file), chosen, False, True)
        if lowercase is not None and known is not None and lowercase != known:
            kinds = {True: "lower-cased", False: "cased"}
            raise TokenizerError(
                f"{file}: lowercase={lowercase} was given, but this vocabulary is {kinds[known]}; "
                f"leave it out or pass lowercase={known}"
            )
        return tokenizer

    def save(self, folder: Path, *, max_length: int | None = None, framed: bool = True, segments: bool = True) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers` reads too, and WordPiece's vocab.txt.

        ``max_length``: the model's maximum in tokens, special ones included. ``framed``, ``segments``: whether its
        sequences have special tokens around a text, and segments. OSError if it cannot be written.
        """
        has_segments = segments and self.kind is WORDPIECE
        config: dict[str, object] = {
            # Other classes of transformers would replace our normaliser.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.kind.names,
            "do_lower_case": self.lowercase,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"],
        }
        if max_length is not None:
            config["model_max_length"] = max_length
        folder.mkdir(parents=True, exist_ok=True)
        plain = self._backend.to_str(pretty=True)
        if not framed:
            plain = json.dumps(_state(self._backend) | {"post_processor": None}, indent=2, ensure_ascii=False)
        write_text(folder / "tokenizer.json", plain + "\n")
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
        if self.kind is WORDPIECE:
            write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that determines ids: normaliser, word splitting, vocabulary."""
        state = _state(self._backend)
        decisive = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model")}
        text = json.dumps([decisive, self.pieces], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def continues(self) -> np.ndarray:
        """bool (V,): which tokens continue a word; for OpenAI GPT, which do not end one."""
        continues = np.array(self.kind.continues(self.pieces), dtype=bool)
        continues[list(self.special_ids)] = False
        return continues

    def encode(self, text: str) -> Encoded:
        """Tokenise one text, with character offsets."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenise several texts, with character offsets."""
        rows = self._backend.encode_batch([whole_text(text) for text in texts], add_special_tokens=False)
        found: list[Encoded] = []
        for text, row in zip(texts, rows, strict=True):
            spans = _whole_spans(text, row.offsets)
            if self.kind is BPE:
                spans = _unmarked_spans(text, spans, row.tokens)
            found.append(Encoded(row.ids, spans, [word or 0 for word in row.word_ids]))
        return found

    def ids_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts to ids only, which is faster."""
        if len(texts) == 1:
            # Unlike a batch call, this keeps the GIL, which another thread might not release for a long time.
            return [self._backend.encode(whole_text(texts[0]), add_special_tokens=False).ids]
        rows = self._backend.encode_batch_fast([whole_text(text) for text in texts], add_special_tokens=False)
        return [row.ids for row in rows]

    def encode_runs(self, runs: Sequence[str]) -> Encoded:
        """Tokenise several texts as one sequence: ``words`` holds each id's text index; there are no offsets."""
        row = self._backend.encode(list(runs), is_pretokenized=True, add_special_tokens=False)
        return Encoded(row.ids, [], [run or 0 for run in row.word_ids])

    def rules(self) -> dict[str, Any]:
        """The text rules: ``normalizer``, ``pre_tokenizer`` and ``added_tokens`` as in tokenizer.json."""
        state = _state(self._backend)
        return {key: state[key] for key in ("normalizer", "pre_tokenizer", "added_tokens")}

    def words(self, text: str) -> list[str]:
        """Normalise a text and split it into the words that are divided into tokens."""
        plain = whole_text(text)
        if self._backend.normalizer is not None:
            plain = self._backend.normalizer.normalize_str(plain)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(plain)]

    def ids_of_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of single words, already normalised and split."""
        model = self._backend.model
        return [[token.id for token in model.tokenize(word)] for word in words]

    def piece(self, number: int) -> str:
        """The token of an id."""
        return self.pieces[number]

    def characters(self, ids: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """The characters of the tokens of an open vocabulary (``text/open_words.py``); None for other tokenizers."""
        return None

    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens into readable text, without special tokens; InputError for an id that no token has."""
        if isinstance(ids, Encoded):
            raise InputError("decode takes the ids of one text: give the .ids of what encode returned")
        ids = list(ids)
        if wrong := [number for number in ids if not 0 <= number < self.size]:
            raise InputError(f"{wrong[0]}: no token has this id; expected 0 to {self.size - 1}")
        return str(self._backend.decode(ids, skip_special_tokens=True))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _from_state, (self._backend.to_str(),)


def frame_rows(backend: tokenizers.Tokenizer, kind: TokenizerKind, ids: Mapping[str, int]) -> None:
    """Set the library's sequence layout: ``<s> A </s>`` and ``<s> A <sep> B </s>``; only WordPiece's has segments."""
    second = 1 if kind is WORDPIECE else 0
    backend.post_processor = processors.TemplateProcessing(
        single=f"{kind.start} $A {kind.end}",
        pair=f"{kind.start} $A {kind.between} $B:{second} {kind.end}:{second}",
        special_tokens=[(special, ids[special]) for special in (kind.start, kind.between, kind.end)],
    )
    backend.add_special_tokens(list(kind.specials))


def _from_state(state: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(state))


def _with_markers(backend: tokenizers.Tokenizer, kind: TokenizerKind) -> tokenizers.Tokenizer:
    """The same, where special tokens that are not of its kind, such as markers of entities, are tokens of a text."""
    state = _state(backend)
    markers = [token for token in state["added_tokens"] if token["special"] and token["content"] not in kind.specials]
    if not markers:
        return backend
    for token in markers:
        token["special"] = False
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _state(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(backend.to_str())
    return state


def whole_text(text: str) -> str:
    """Replace unpaired surrogates, which the library rejects, by U+FFFD; InputError for anything but text."""
    if not isinstance(text, str):
        raise InputError(f"{text!r}: expected a text")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def _whole_spans(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extend spans over the combining marks and jamo that a normaliser composed or removed.

    The library maps a token only to the first of the characters that it was made of.
    """
    if text.isascii():
        return offsets
    spans: list[tuple[int, int]] = []
    limits = [start for start, _ in offsets[1:]] + [len(text)]
    for (start, end), limit in zip(offsets, limits, strict=False):
        while end < limit and (unicodedata.category(text[end])[0] == "M" or "\u1160" <= text[end] <= "\u11ff"):
            end += 1
        spans.append((start, end))
    return spans


def _unmarked_spans(text: str, spans: list[tuple[int, int]], pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Exclude the white space that a token's mark represents from its span; a mark alone has an empty span."""
    found: list[tuple[int, int]] = []
    for (start, end), piece in zip(spans, pieces, strict=True):
        match = _NO_WORD.match(text, start, end)
        start = match.end() if match else start
        found.append((start, start if piece == MARK else end))
    return found


def _is_lowercase(normalizer: object) -> bool:
    """Whether a normaliser in tokenizer.json lower-cases."""
    if isinstance(normalizer, list):
        return any(map(_is_lowercase, normalizer))
    if not isinstance(normalizer, dict):
        return False
    if normalizer.get("type") == "BertNormalizer":
        return bool(normalizer.get("lowercase"))
    return normalizer.get("type") == "Lowercase" or _is_lowercase(normalizer.get("normalizers"))


def casing(pieces: Sequence[str]) -> bool | None:
    """True: lower-cased; False: cased; None: no letters to tell. Names in brackets ([CLS], <S>) do not count."""
    words = [piece for piece in pieces if not (piece[:1] in "[<" and piece[-1:] in "]>")]
    if any(word != word.lower() for word in words):
        return False
    return True if any(word != word.upper() for word in words) else None


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder itself contains a tokenizer."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def tokenizer_file(path: Path) -> Path:
    """The file to read a tokenizer from: ``path`` itself, or one in that folder."""
    if not path.exists():
        hint = nearest(path) or "expected a folder or a vocab.txt"
        raise TokenizerError(f"{path}: no such tokenizer; {hint}")
    if not path.is_dir():
        return path
    for name in VOCABULARIES:
        if (path / name).is_file():
            return path / name
    inside = f"; perhaps {path / 'model'} has one" if (path / "model").is_dir() else ""
    raise TokenizerError(
        f"{path}: this folder has neither tokenizer.json nor vocab.txt, nor OpenAI GPT's {_THEIRS}{inside}"
    )


def _read_json(file: Path) -> tokenizers.Tokenizer:
    text = gpt_bpe.read_vocabulary(file)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        reason = str(error).splitlines()[0]
        raise TokenizerError(f"{file}: not a tokenizer.json ({reason}); build or download it again") from None


def read_vocab(file: Path) -> list[str]:
    """Read the tokens of a vocab.txt, one per line."""
    lines = gpt_bpe.read_vocabulary(file).removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.strip() for line in lines]
