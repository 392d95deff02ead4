"""The four kinds of tokenizer: their special tokens, which tokens continue a word, and what a vocabulary must have."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import models

from firth.errors import TokenizerError
from firth.text import gpt_bpe
from firth.text.words import MARK, stand_alone

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
BPE_SPECIALS = ("<unk>", "<s>", "<sep>", "</s>")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerKind:
    """The properties of one kind of tokenizer.

    ``start A between B end``: the special tokens of a sequence. ``specials``: all of them, in the order of their ids.
    ``names``: their names in transformers. ``continues(pieces)``: which tokens continue a word, as far as a token
    by itself shows it. ``advice``: what to use if tokens are not of this kind.
    """

    name: str
    specials: tuple[str, ...]
    unk: str
    start: str
    between: str
    end: str
    pad: str | None = None
    mask: str | None = None
    names: Mapping[str, str]
    continues: Callable[[Sequence[str]], list[bool]]
    advice: str


WORDPIECE = TokenizerKind(
    name="WordPiece",
    specials=SPECIALS,
    unk=UNK,
    start=CLS,
    between=SEP,
    end=SEP,
    pad=PAD,
    mask=MASK,
    names={"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK},
    continues=lambda pieces: [piece.startswith(PREFIX) for piece in pieces],
    advice="choose a BERT vocabulary",
)
# Tokens that keep white space: one that starts with the mark starts a word, as do punctuation and ideographs.
BPE = TokenizerKind(
    name="BPE",
    specials=BPE_SPECIALS,
    unk="<unk>",
    start="<s>",
    between="<sep>",
    end="</s>",
    names={"unk_token": "<unk>", "bos_token": "<s>", "sep_token": "<sep>", "eos_token": "</s>"},
    continues=lambda pieces: [
        not (alone or piece.startswith(MARK)) for piece, alone in zip(pieces, stand_alone(pieces), strict=True)
    ],
    advice="choose one made by firth vocab --kind bpe, or OpenAI GPT's",
)
# Whole words, one token each; words outside the vocabulary are unknown.
WORDS = TokenizerKind(
    name="words",
    specials=BPE_SPECIALS,
    unk="<unk>",
    start="<s>",
    between="<sep>",
    end="</s>",
    names=BPE.names,
    continues=lambda pieces: [False] * len(pieces),
    advice="choose one made by firth vocab --kind words",
)
OPENAI = TokenizerKind(
    name="OpenAI GPT's BPE",
    specials=gpt_bpe.SPECIALS,
    unk=gpt_bpe.UNK,
    start=gpt_bpe.START,
    between=gpt_bpe.DELIMITER,
    end=gpt_bpe.CLASSIFY,
    names={
        "unk_token": gpt_bpe.UNK,
        "bos_token": gpt_bpe.START,
        "sep_token": gpt_bpe.DELIMITER,
        "cls_token": gpt_bpe.CLASSIFY,
    },
    continues=lambda pieces: [not piece.endswith(gpt_bpe.SUFFIX) for piece in pieces],
    advice="download OpenAI GPT's again",
)


def kind_of(backend: tokenizers.Tokenizer, source: str) -> TokenizerKind:
    """Detect the kind of a tokenizer. OpenAI GPT's gets special tokens if it lacks them."""
    model = backend.model
    if isinstance(model, models.WordPiece):
        return WORDPIECE
    if isinstance(model, models.WordLevel):
        return WORDS
    if not isinstance(model, models.BPE):
        raise TokenizerError(
            f"{source}: expected a WordPiece, BPE or WordLevel model, got {type(model).__name__}; "
            "use a tokenizer made by firth, a BERT vocabulary, or OpenAI GPT's"
        )
    if model.end_of_word_suffix != gpt_bpe.SUFFIX:
        return BPE
    if backend.token_to_id(OPENAI.unk) is not None:
        gpt_bpe.add_specials(backend)
    return OPENAI


def check_pieces(pieces: Sequence[str], kind: TokenizerKind, source: str) -> None:
    """Raise TokenizerError, which names the ``source``, for tokens that are not a vocabulary of the kind."""
    if not pieces:
        raise TokenizerError(f"{source}: empty; expected one token per line")
    missing = [special for special in kind.specials if special not in set(pieces)]
    if missing:
        raise TokenizerError(f"{source}: lacks {' '.join(missing)}; add them or {kind.advice}")
    repeated = [piece for piece, n in Counter(pieces).items() if n > 1]
    if repeated:
        raise TokenizerError(
            f"{source}: {len(repeated)} tokens occur more than once, such as {repeated[0]!r}; each must have one id"
        )
    if kind is not WORDPIECE:
        return
    # A token of nothing but white space is harmless: no text has it. Google's Chinese vocabulary has a line separator.
    broken = [i for i, piece in enumerate(pieces) if (piece.strip() and piece != piece.strip()) or "\n" in piece]
    if broken:
        raise TokenizerError(f"{source}: token {broken[0]} has white space: {pieces[broken[0]]!r}; remove it")
