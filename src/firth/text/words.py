"""Normalization and pre-tokenization: raw text to words."""

from collections.abc import Sequence
from unicodedata import normalize

from tokenizers import Regex, normalizers, pre_tokenizers

MARK = "\u2581"  # ▁, the white space before a word in tokens that keep it

# Google's character classes (google-research/bert tokenization.py), in the library's regular expressions.
_DROPPED = r"[\x{FFFD}\p{Cc}\p{Cf}&&[^\t\n\r]]"
_SPACE = r"\t\n\r\p{Zs}\x{2028}\x{2029}"
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_IDEOGRAPH = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_ALONE = _PUNCTUATION + _IDEOGRAPH
# Unicode's Final_Sigma condition, which the library's Lowercase (one character at a time) does not apply.
_FINAL_SIGMA = r"Σ(?<=\p{Cased}\p{Case_Ignorable}*Σ)(?!\p{Case_Ignorable}*\p{Cased})"


def folded_word(word: str) -> str:
    """Fold a word for comparison that ignores case: letters composed (NFC) and case-folded."""
    return normalize("NFC", word).casefold()


def lower_steps() -> list[normalizers.Normalizer]:
    """The normalisation steps of Python's lower-casing."""
    return [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]


def build_normalizer(*, lowercase: bool, keep_accents: bool, google: bool) -> normalizers.Normalizer:
    """Build the normaliser of raw text.

    Source: google-research/bert tokenization.py for ``google``, which leaves lower-cased text
    decomposed (Hangul becomes Jamo). New vocabularies compose it again.
    Differs: BertNormalizer is not used; it also drops private-use characters and others.
    """
    return normalizers.Sequence(_plain_steps(lowercase, keep_accents, google))


def build_marked_normalizer(*, lowercase: bool, keep_accents: bool) -> normalizers.Normalizer:
    """Build the normaliser for tokens that keep white space: one ``▁`` for each run of it, and one before the text.

    A ``▁`` in the text itself becomes ``_``, so that each mark is white space.
    """
    return normalizers.Sequence(
        [
            *_plain_steps(lowercase, keep_accents, google=False),
            normalizers.Replace(MARK, "_"),
            normalizers.Strip(left=False, right=True),
            normalizers.Prepend(" "),  # adds nothing to an empty text
            normalizers.Replace(Regex(f"[{_SPACE}]+"), MARK),
        ]
    )


def _plain_steps(lowercase: bool, keep_accents: bool, google: bool) -> list[normalizers.Normalizer]:
    clean = normalizers.Replace(Regex(_DROPPED), "")
    lower = lower_steps()
    strip = [normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}"), "")]
    nfc = normalizers.NFC()
    if google:
        return [clean, *lower, *strip] if lowercase else [clean]
    if not lowercase:
        return [clean, nfc]
    if keep_accents:
        return [clean, nfc, *lower, nfc]
    return [clean, *strip, *lower, nfc]


def build_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Split normalised text into words: each ideograph and punctuation mark alone, the rest at white space."""
    # One expression that matches words is faster than three that match the gaps.
    return split_into(f"[{_ALONE}]|[^{_SPACE}{_ALONE}]+")


def build_blank_splitter() -> pre_tokenizers.PreTokenizer:
    """Split already tokenised, normalised text into words at white space."""
    return split_into(f"[^{_SPACE}]+")


def build_marked_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Split normalised text into words, each with the ``▁`` before it: ``▁Ein ▁Mann , ▁der ▁T - Shirt .``"""
    return split_into(f"{MARK}?(?:[{_ALONE}]|[^{MARK}{_ALONE}]+)")


def split_into(word: str) -> pre_tokenizers.PreTokenizer:
    """Split text into all matches of an expression, dropping the gaps."""
    return pre_tokenizers.Split(Regex(word), "removed", invert=True)


def stand_alone(pieces: Sequence[str]) -> list[bool]:
    """Which tokens are a punctuation mark or an ideograph, and so a word in any text."""
    words = build_pre_tokenizer()
    return [len(piece) == 1 and len(words.pre_tokenize_str(piece + "a")) == 2 for piece in pieces]
