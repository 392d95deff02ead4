"""Text -> ids of word pieces: the `tokenizers` library plus what must not be forgotten around it."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from firth.config import write_text
from firth.errors import TokenizerError

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
WORD_LIMIT = 200  # characters; a longer word is [UNK] (google-research/bert tokenization.py)

# Google's character classes (google-research/bert tokenization.py), in the library's regular expressions.
_DROPPED = r"[\x{FFFD}\p{Cc}\p{Cf}&&[^\t\n\r]]"
_SPACE = r"\t\n\r\p{Zs}\x{2028}\x{2029}"
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_IDEOGRAPH = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_ALONE = _PUNCTUATION + _IDEOGRAPH
# Unicode's Final_Sigma condition, which the library's Lowercase (one character at a time) does not know.
_FINAL_SIGMA = r"Σ(?<=\p{Cased}\p{Case_Ignorable}*Σ)(?!\p{Case_Ignorable}*\p{Cased})"


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row: ids, their character spans in the raw text, and the index of the word each belongs to.

    A word here is what WordPiece sees: a run of letters and digits, one punctuation mark, one ideograph.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]


def build_normalizer(*, lowercase: bool, keep_accents: bool, google: bool) -> normalizers.Normalizer:
    """The steps that turn raw text into what the vocabulary is made of.

    Source: google-research/bert tokenization.py for ``google``, which decomposes lower-cased text and
    leaves it so (Hangul becomes Jamo). New vocabularies are composed again.
    Differs: BertNormalizer is not used; it also drops private-use characters and others.
    """
    clean = normalizers.Replace(Regex(_DROPPED), "")
    lower = [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    strip = [normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}"), "")]
    nfc = normalizers.NFC()
    if google:
        steps = [clean, *lower, *strip] if lowercase else [clean]
    elif not lowercase:
        steps = [clean, nfc]
    elif keep_accents:
        steps = [clean, nfc, *lower, nfc]
    else:
        steps = [clean, *strip, *lower, nfc]
    return normalizers.Sequence(steps)


def build_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Normalised text -> words: ideographs and punctuation marks alone, the rest split at white space."""
    # One expression that matches the words is faster than three that match what is between them.
    word = Regex(f"[{_ALONE}]|[^{_SPACE}{_ALONE}]+")
    return pre_tokenizers.Split(word, "removed", invert=True)


class Tokenizer:
    """A WordPiece tokenizer.

    Special tokens written in a text are plain text, and none are added by any method here. To use one in
    another process, send the folder and load it there (or pickle it); limit the library's own threads in
    such a process with TOKENIZERS_PARALLELISM=false.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str = "the vocabulary"):
        if not isinstance(backend.model, models.WordPiece):
            raise TokenizerError(
                f"{source}: expected a WordPiece model, got {type(backend.model).__name__}; "
                "use a tokenizer made by firth or a BERT vocabulary"
            )
        by_piece = backend.get_vocab(with_added_tokens=True)
        self.pieces = sorted(by_piece, key=by_piece.__getitem__)
        _check_pieces(self.pieces, source)
        if by_piece[self.pieces[-1]] != len(self.pieces) - 1:
            raise TokenizerError(f"{source}: the ids have gaps; expected 0 to {len(self.pieces) - 1}")
        # Not part of tokenizer.json, hence set at each load: [MASK] in a text is text.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.size = len(self.pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (by_piece[s] for s in SPECIALS)
        self.special_ids = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        self.lowercase = _is_lowercase(_state(backend)["normalizer"])

    @classmethod
    def from_vocab(
        cls, pieces: Sequence[str], *, lowercase: bool, keep_accents: bool = False, google: bool = False,
        source: str = "the vocabulary",
    ) -> "Tokenizer":  # fmt: skip
        """A tokenizer from pieces in the order of their ids. Raises TokenizerError, which names the ``source``."""
        return cls._build(pieces, source, lowercase, keep_accents, google)

    @classmethod
    def _build(
        cls, pieces: Sequence[str], source: str, lowercase: bool, keep_accents: bool, google: bool
    ) -> "Tokenizer":
        _check_pieces(pieces, source)
        ids = {piece: i for i, piece in enumerate(pieces)}
        model = models.WordPiece(
            ids, unk_token=UNK, max_input_chars_per_word=WORD_LIMIT, continuing_subword_prefix=PREFIX
        )
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = build_normalizer(
            lowercase=lowercase, keep_accents=keep_accents, google=google
        )
        backend.pre_tokenizer = build_pre_tokenizer()
        backend.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
        )
        backend.add_special_tokens(list(SPECIALS))
        return cls(backend, source)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "Tokenizer":
        """Load a folder with tokenizer.json, or one of Google's vocabularies (vocab.txt or its folder).

        Google's files do not say whether they are lower-cased: None reads it off the pieces. A value that
        contradicts the tokenizer raises TokenizerError, as does anything that is not a tokenizer.
        """
        path = Path(path)
        file = tokenizer_file(path)
        if file.suffix == ".json":
            tokenizer = cls(_read_json(file), str(file))
            known: bool | None = tokenizer.lowercase
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

    def save(self, folder: Path, *, max_length: int | None = None) -> None:
        """Write tokenizer.json, tokenizer_config.json and vocab.txt, as `transformers` reads them too.

        ``max_length`` (tokens, specials included) is what the model can read. OSError if it cannot be written.
        """
        config: dict[str, object] = {
            # Any other class of transformers would replace our normaliser by its own.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "unk_token": UNK,
            "cls_token": CLS,
            "sep_token": SEP,
            "mask_token": MASK,
            "do_lower_case": self.lowercase,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
        if max_length is not None:
            config["model_max_length"] = max_length
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self._backend.to_str(pretty=True) + "\n")
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
        write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides ids: normaliser, word splitting, vocabulary."""
        state = _state(self._backend)
        decisive = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model")}
        text = json.dumps([decisive, self.pieces], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def continues(self) -> np.ndarray:
        """bool (V,): which pieces continue a word."""
        return np.array([piece.startswith(PREFIX) for piece in self.pieces], dtype=bool)

    def encode(self, text: str) -> Encoded:
        """One text with offsets into it."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Encoded]:
        """Several texts with offsets."""
        rows = self._backend.encode_batch([_whole(text) for text in texts], add_special_tokens=False)
        return [
            Encoded(row.ids, _whole_spans(text, row.offsets), [word or 0 for word in row.word_ids])
            for text, row in zip(texts, rows, strict=True)
        ]

    def ids_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids alone, faster: for corpora."""
        rows = self._backend.encode_batch_fast([_whole(text) for text in texts], add_special_tokens=False)
        return [row.ids for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Pieces joined to readable text, special tokens left out."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _from_state, (self._backend.to_str(),)


def _from_state(state: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(state))


def _state(backend: tokenizers.Tokenizer) -> dict[str, object]:
    state: dict[str, object] = json.loads(backend.to_str())
    return state


def _whole(text: str) -> str:
    """The same text, with U+FFFD for halves of surrogate pairs, which the library cannot take."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def _whole_spans(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that also cover the marks and Jamo which composing took into a character.

    The library's NFC leads a composed character back to its first part only.
    """
    if unicodedata.is_normalized("NFC", text):
        return offsets
    spans: list[tuple[int, int]] = []
    limits = [start for start, _ in offsets[1:]] + [len(text)]
    for (start, end), limit in zip(offsets, limits, strict=False):
        while end < limit and (unicodedata.combining(text[end]) or "\u1160" <= text[end] <= "\u11ff"):
            end += 1
        spans.append((start, end))
    return spans


def _check_pieces(pieces: Sequence[str], source: str) -> None:
    if not pieces:
        raise TokenizerError(f"{source}: empty; expected one piece per line")
    missing = [special for special in SPECIALS if special not in set(pieces)]
    if missing:
        raise TokenizerError(f"{source}: lacks {' '.join(missing)}; add them or choose a BERT vocabulary")
    repeated = [piece for piece, n in Counter(pieces).items() if n > 1]
    if repeated:
        raise TokenizerError(
            f"{source}: {len(repeated)} pieces occur more than once, such as {repeated[0]!r}; "
            "each must have one id"
        )
    # An empty piece is harmless; Google's Chinese vocabulary has one, a line separator stripped away.
    broken = [i for i, piece in enumerate(pieces) if piece != piece.strip() or "\n" in piece]
    if broken:
        raise TokenizerError(f"{source}: piece {broken[0]} has white space: {pieces[broken[0]]!r}; remove it")


def _is_lowercase(normalizer: object) -> bool:
    """Whether a normaliser of tokenizer.json lower-cases."""
    if isinstance(normalizer, list):
        return any(map(_is_lowercase, normalizer))
    if not isinstance(normalizer, dict):
        return False
    if normalizer.get("type") == "BertNormalizer":
        return bool(normalizer.get("lowercase"))
    return normalizer.get("type") == "Lowercase" or _is_lowercase(normalizer.get("normalizers"))


def casing(pieces: Sequence[str]) -> bool | None:
    """True: lower-cased, False: cased, None: no letter tells. Names in brackets ([CLS], <S>) do not count."""
    words = [piece for piece in pieces if not (piece[:1] in "[<" and piece[-1:] in "]>")]
    if any(word != word.lower() for word in words):
        return False
    return True if any(word != word.upper() for word in words) else None


def tokenizer_file(path: Path) -> Path:
    """The file that a tokenizer is read from: ``path`` itself, or the one of that folder."""
    if not path.exists():
        raise TokenizerError(f"{path}: no such tokenizer; expected a folder or a vocab.txt")
    if not path.is_dir():
        return path
    for name in ("tokenizer.json", "vocab.txt"):
        if (path / name).is_file():
            return path / name
    raise TokenizerError(f"{path}: this folder has neither tokenizer.json nor vocab.txt")


def _read_json(file: Path) -> tokenizers.Tokenizer:
    text = _read(file)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        reason = str(error).splitlines()[0]
        raise TokenizerError(f"{file}: not a tokenizer.json ({reason}); make or fetch it again") from None


def read_vocab(file: Path) -> list[str]:
    """The pieces of a vocab.txt, one a line."""
    lines = _read(file).removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.strip() for line in lines]


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: not UTF-8 at byte {error.start}; is this a vocabulary?") from None
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
