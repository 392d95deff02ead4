"""Whether a model can read the labelled texts: the share of their tokens that are [UNK], and their script."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from firth.errors import ConfigError
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDPIECE

# Number of texts examined, from the first on.
_TEXTS = 500
# Share of unknown tokens from which a note says so, and from which the model is refused as one for another language.
_SAID, _NOTHING = 0.1, 0.95
# A vocabulary with fewer tokens of a script, and a smaller share of them, is for another language.
_FEW_TOKENS, _FEW = 1000, 0.1
_NO_LETTERS = "no letters"
# Names of scripts, by the first word of a letter's Unicode name.
_SCRIPTS = {"CJK": "Chinese characters", "HANGUL": "Hangul", "HIRAGANA": "Japanese", "KATAKANA": "Japanese"}


def check_known(records: Sequence[Any], tokenizer: Tokenizer, model: str) -> str:
    """A note on tokens or a script that a model's vocabulary does not know; empty if there is nothing to note.

    ConfigError if nearly all are.
    """
    texts = [text for record in records[:_TEXTS] for text in texts_of(record) if text.strip()]
    unknown = tokenizer.pieces.index(tokenizer.kind.unk)
    size = tokenizer.size  # an open vocabulary has ids beyond it
    counts = [(len(ids), sum(one == unknown or one >= size for one in ids)) for ids in tokenizer.ids_many(texts)]
    n_tokens, n_unknown = sum(n for n, _ in counts), sum(n for _, n in counts)
    if not n_tokens or n_unknown < _SAID * n_tokens:
        return _foreign(texts, tokenizer, model, n_tokens)
    all_unknown = sum(n == of_these > 0 for n, of_these in counts)
    nothing_else = (
        f", and {all_unknown:,} text{' is' if all_unknown == 1 else 's are'} nothing else" if all_unknown else ""
    )
    share = n_unknown / n_tokens
    said = (
        f"{share:.0%} of the tokens of the first {len(texts):,} texts, which are mostly in {_script(texts)}, are "
        f"{tokenizer.kind.unk} to {model}{nothing_else}"
    )
    if share >= _NOTHING:
        raise ConfigError(f"{said}: nothing can be learnt; choose a model whose vocabulary has that script")
    extend = " (firth extend adds words)" if tokenizer.kind is WORDPIECE else ""
    return f"{said}: a model whose vocabulary has them would learn more{extend}"


def texts_of(record: Any) -> list[str]:
    """The texts of a record that a model reads; the choices of a question are left out."""
    found = [getattr(record, name, None) for name in ("text", "second", "question", "context")]
    return [text for text in found if isinstance(text, str)]


def _foreign(texts: Sequence[str], tokenizer: Tokenizer, model: str, n_tokens: int) -> str:
    """A note on texts in a script of which the vocabulary has little more than the letters; else empty."""
    scripts, written = Counter(filter(None, map(_script_of, tokenizer.pieces))), _script(texts)
    known = sum(n for script, n in scripts.items() if _name(script) == written)
    if known >= min(_FEW_TOKENS, _FEW * scripts.total()) or written == _NO_LETTERS:
        return ""
    n_words = sum(len(text.split()) for text in texts)
    return (
        f"the texts are mostly in {written}, as are only {known:,} of the {tokenizer.size:,} tokens of {model}: "
        f"{n_tokens / n_words:.1f} tokens a word; a model for their language would learn more"
    )


def _script_of(piece: str) -> str:
    """The script of a token's first letter; empty for special tokens and those without one."""
    letter = next((one for one in piece if one.isalpha()), "") if not piece.startswith("[") else ""
    return unicodedata.name(letter, "?").partition(" ")[0] if letter else ""


def _script(texts: Sequence[str]) -> str:
    """The script that most letters are in, by the first word of their Unicode names."""
    letters = Counter(
        unicodedata.name(letter, "?").partition(" ")[0] for text in texts for letter in text if letter.isalpha()
    )
    if not letters:
        return _NO_LETTERS
    ((name, _),) = letters.most_common(1)
    return _name(name)


def _name(script: str) -> str:
    return _SCRIPTS.get(script, f"{script.capitalize()} script")
