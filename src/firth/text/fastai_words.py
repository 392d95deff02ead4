"""fastai's vocabularies of words, with fastai's text rules as far as the tokenizer library has them.

Source: fastai 2 text/core.py and 0.7 text.py (specification §4). Texts are lower-cased; before a word that was in
capitals stands ``xxup``, before one that began with a capital ``xxmaj`` (0.7: ``t_up``, for capitals alone); words are
spaCy's, imitated as for OpenAI GPT (``do n't``, see ``gpt_bpe``).
Differs: HTML is left alone, and repeated characters and words are not counted (``xxrep``, ``xxwrep``).
"""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, models, normalizers

from firth.errors import TokenizerError
from firth.text.gpt_bpe import build_pre_tokenizer
from firth.text.tokenizer import WORDS, Tokenizer, frame_rows
from firth.text.words import lower_steps

# Their special words that play a part here. The first release has no others; its texts begin with ``xbos``.
_PARTS: Mapping[str, str] = {
    "xxunk": "<unk>", "xxbos": "<s>", "xxfld": "<sep>", "xxeos": "</s>",
    "_unk_": "<unk>", "xbos": "<s>", "xfld": "<sep>",
}  # fmt: skip

_OLD_CAPITALS = "t_up"


def tokenizer_of_fastai(words: Sequence[str], where: str) -> tuple[Tokenizer, int]:
    """The tokenizer of a vocabulary, and how many special words had to be put behind the others.

    ``<unk> <s> <sep> </s>`` take the places of theirs. A word that stands there a second time is named by its row:
    fastai fills vocabularies up with ``xxfake``. TokenizerError without a word for unknown ones.
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
    backend.pre_tokenizer = build_pre_tokenizer(_OLD_CAPITALS)
    frame_rows(backend, WORDS, ids)
    return Tokenizer(backend, where), len(new)


def _normalizer(words: set[str]) -> normalizers.Normalizer:
    """Marks only where the vocabulary has them. White space is made plain first, so that each rule sees one blank."""
    capitals = next((mark for mark in ("xxup", _OLD_CAPITALS) if mark in words), None)
    longer = "{2,}" if capitals == _OLD_CAPITALS else "+"
    steps: list[normalizers.Normalizer] = [
        normalizers.NFC(),
        normalizers.Prepend(" "),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace(Regex(r" +"), " "),
    ]
    if capitals:
        steps.append(normalizers.Replace(Regex(rf" (?=[A-Z][^a-z\s]{longer}(?!\S))"), f" {capitals} "))
    if "xxmaj" in words:
        steps.append(normalizers.Replace(Regex(r"(?<! xxup) (?=[A-Z][^A-Z\s]+(?!\S))"), " xxmaj "))
    return normalizers.Sequence([*steps, *lower_steps(), normalizers.Strip()])
