"""Read fastai's word vocabularies, with fastai's text rules as far as the tokenizer library supports them.

Source: fastai 2 text/core.py and 0.7 text.py (specification §4). Texts are lower-cased; ``xxup`` precedes a word that
was in capitals, ``xxmaj`` one that was capitalised (0.7: only ``t_up``, for capitals); words are
spaCy's, imitated as for OpenAI GPT (``do n't``, see ``gpt_bpe``). Remnants of web markup are repaired first
(``_MENDED``).
Differs: repeated characters and words are not marked (``xxrep``, ``xxwrep``); words with hyphens and digits
(``sr-71``) and units are split.
"""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, models, normalizers

from firth.errors import TokenizerError
from firth.text.gpt_bpe import build_pre_tokenizer
from firth.text.tokenizer import Tokenizer, frame_rows
from firth.text.tokenizer_kinds import WORDS
from firth.text.words import lower_steps

# The special words used here. The first release (0.7) has no others; its texts start with ``xbos``.
_PARTS: Mapping[str, str] = {
    "xxunk": "<unk>",
    "xxbos": "<s>",
    "xxfld": "<sep>",
    "xxeos": "</s>",
    "_unk_": "<unk>",
    "xbos": "<s>",
    "xfld": "<sep>",
}

_OLD_CAPITALS = "t_up"
# spaCy sees these texts in lower case, where it knows few abbreviations (``mr .``) and keeps words with inner stops or
# digits whole: these alternatives precede those for OpenAI GPT, whose texts kept their capitals.
_LOWER = (
    _OLD_CAPITALS,
    r"(?:a\.m|p\.m|e\.g|i\.e|v\.s|vs|co)\.(?!\w)",
    r"[a-z]+(?:\.[a-z]+)+(?!\w)",
    r"(?!cannot)[a-z]{2,6}(?=\.)",
    r"[0-9]+(?:[.,:][0-9]+)+",
    r"[a-z0-9]+(?:-[0-9]+[a-z0-9]*)+(?!\w)",
)

# Repairs entities without their &, as in the corpora of both releases; "amp;" after them, so that it creates none.
_MENDED = {
    "#39;": "'",
    "#146;": "'",
    "#36;": "$",
    "nbsp;": " ",
    "quot;": "'",
    "<br ?/?>": " ",
    r"\\n": " ",
    " @\\.@ ": ".",
    " @-@ ": "-",
    r"\.\.\.": " …",
    "&lt;": "<",
    "&gt;": ">",
    "amp;": "&",
    "/": " / ",
    "#": " # ",
    r"\\": r" \ ",
}


def tokenizer_of_fastai(words: Sequence[str], where: str) -> tuple[Tokenizer, int]:
    """Build the tokenizer of a vocabulary; also returns how many special words were appended.

    ``<unk> <s> <sep> </s>`` replace fastai's own. A repeated word is renamed by its row:
    fastai pads vocabularies with ``xxfake``. TokenizerError without an unknown word.
    """
    if not {"xxunk", "_unk_"} & set(words):
        raise TokenizerError(f"{where}: has neither xxunk nor _unk_: expected a vocabulary of fastai")
    pieces, seen = [], set[str]()
    for row, word in enumerate(words):
        piece = _PARTS.get(word, word)
        pieces.append(f"[row{row}]" if piece in seen else piece)
        seen.add(pieces[-1])
    new = [special for special in WORDS.specials if special not in seen]
    ids = {piece: i for i, piece in enumerate([*pieces, *new])}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=WORDS.unk))
    backend.normalizer = _normalizer(seen)
    backend.pre_tokenizer = build_pre_tokenizer(*_LOWER)
    frame_rows(backend, WORDS, ids)
    return Tokenizer(backend, where), len(new)


def _normalizer(words: set[str]) -> normalizers.Normalizer:
    """Build the normaliser, with the marks that the vocabulary has. White space is first reduced to single spaces."""
    capitals = next((mark for mark in ("xxup", _OLD_CAPITALS) if mark in words), None)
    longer = "{2,}" if capitals == _OLD_CAPITALS else "+"
    steps: list[normalizers.Normalizer] = [
        normalizers.NFC(),
        *(normalizers.Replace(Regex(broken), whole) for broken, whole in _MENDED.items()),
        normalizers.Prepend(" "),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace(Regex(r" +"), " "),
    ]
    if capitals:
        steps.append(normalizers.Replace(Regex(rf" (?=[A-Z][^a-z\s]{longer}(?!\S))"), f" {capitals} "))
    if "xxmaj" in words:
        steps.append(normalizers.Replace(Regex(r"(?<! xxup) (?=[A-Z][^A-Z\s]+(?!\S))"), " xxmaj "))
    return normalizers.Sequence([*steps, *lower_steps(), normalizers.Strip()])
