"""OpenAI GPT's own tokenizer: lower-cased words, byte-pair encoding with ``</w>`` on each word's last token.

Source: openai/finetune-transformer-lm text_utils.py. There a text goes through

1. ftfy, which repairs broken text;
2. rules: long dashes become ``-``, ``…`` becomes ``...``, ``´`` becomes ``'``; runs of marks such as ``--`` and ``??``
get spaces around them; a newline is a word, other white space separates words;
3. spaCy's English tokenizer, and lower-casing;
4. byte-pair encoding of each word. A token that the vocabulary lacks is ``<unk>``, id 0.

Differs: of ftfy only straight quotes, composed characters and line ends are implemented; repair broken text beforehand.
spaCy's word splitting is imitated (``_WORD``): contractions (``do n't``), titles and initials (``mr.``, ``u.s.``),
numbers (``3.5``, but ``1 , 000``). On held-out English text 99.9 % of spaCy's words are words here too. Not
imitated: units (``20 °c`` is ``20``, ``°``, ``c`` there), rarer entries of its lists (``goin'``), web addresses.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from firth.config import read_whole
from firth.errors import TokenizerError
from firth.text.words import lower_steps, split_into

UNK, START, DELIMITER, CLASSIFY = SPECIALS = ("<unk>", "_start_", "_delimiter_", "_classify_")
SUFFIX = "</w>"
# The merges file of each vocabulary file: OpenAI's names, and those of transformers.
MERGES = {"encoder_bpe_40000.json": "vocab_40000.bpe", "vocab.json": "merges.txt"}

_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_LETTER = rf"[^\s{_PUNCTUATION}]"
_END = rf"(?!{_LETTER})"
_TAIL = rf"(?:n't|'(?:s|m|d|re|ve|ll)){_END}"
_ABBREVIATED = "mr|mrs|ms|dr|st|jr|co|vs|inc|ltd|corp|bros|messrs|prof|rev|gen|gov|sen|rep|mt|ave"
# A lookahead (``?=``) at the start of an alternative only makes it fail sooner.
_WORD = "|".join(
    [
        r"\n",
        r"-+|~+|\.\.+",
        _TAIL,
        rf"'(?:em|cause|cos|bout){_END}",
        r"[0-9]+(?:[.:][0-9]+)+",
        rf"(?=[a-z]{{1,6}}\.)(?:(?:{_ABBREVIATED})\.|(?:[a-z]\.)+{_END})",
        rf"can(?=not{_END})",
        rf"(?={_LETTER}+')(?:{_LETTER}+?(?:'{_LETTER}+?)*?(?={_TAIL}))",
        rf"{_LETTER}+(?:'{_LETTER}+)*",
        rf"[{_PUNCTUATION}]",
    ]
)


def read_merges(file: Path) -> tokenizers.Tokenizer:
    """Load the tokenizer of a vocabulary (a key of ``MERGES``) and the merges next to it. Raises TokenizerError."""
    if file.name not in MERGES:
        raise TokenizerError(f"{file}: expected {' or '.join(MERGES)}")
    beside = file.with_name(MERGES[file.name])
    try:
        ids, lines = json.loads(read_vocabulary(file)), read_vocabulary(beside).split("\n")
    except ValueError as error:
        raise TokenizerError(f"{file}: not JSON ({error}); download it again") from None
    if not isinstance(ids, dict) or sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise TokenizerError(f"{file}: expected each id from 0 to the number of tokens minus 1 exactly once")
    if ids.get(UNK) != 0 or not any(piece.endswith(SUFFIX) for piece in ids):
        raise TokenizerError(
            f"{file}: not OpenAI GPT's vocabulary: {UNK} must have id 0, and the last tokens of words end with {SUFFIX}"
        )
    # The first line holds the version.
    merges = [tuple(line.split()) for line in lines[1:] if line.strip()]
    wrong = next((merge for merge in merges if len(merge) != 2 or "".join(merge) not in ids), None)
    if wrong is not None:
        raise TokenizerError(
            f"{beside}: {' '.join(wrong)!r} gives no token of {file.name}: the files do not belong together"
        )
    unknown = next((merge for merge in merges if not set(merge) <= ids.keys()), None)
    if unknown is not None:
        raise TokenizerError(
            f"{beside}: {' '.join(unknown)!r} are no tokens of {file.name}: the files do not belong together"
        )
    return build_backend(ids, merges)


def build_backend(ids: dict[str, int], merges: list[tuple[str, ...]]) -> tokenizers.Tokenizer:
    """Build the library's tokenizer with OpenAI's text rules; special tokens follow all others."""
    model = models.BPE(ids, [(a, b) for a, b in merges], unk_token=UNK, end_of_word_suffix=SUFFIX)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = _build_normalizer()
    backend.pre_tokenizer = build_pre_tokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    add_specials(backend)
    return backend


def add_specials(backend: tokenizers.Tokenizer) -> None:
    """Append missing special tokens, and set the sequence layout that other tools use."""
    backend.add_special_tokens(list(SPECIALS))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {CLASSIFY}",
        pair=f"{START} $A {DELIMITER} $B {CLASSIFY}",
        special_tokens=[(special, backend.token_to_id(special)) for special in (START, DELIMITER, CLASSIFY)],
    )


def _build_normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex("[\u02bc\u2018-\u201b\u00b4]"), "'"),
            normalizers.Replace(Regex("[\u201c-\u201f]"), '"'),
            normalizers.Replace(Regex("[\u2013-\u2015]"), "-"),
            normalizers.Replace("\u2026", "..."),
            normalizers.Replace(Regex(r"(?<!\s)\s*[\n\r\x{85}\x{2028}\x{2029}]\s*"), "\n"),
            normalizers.Strip(),
            *lower_steps(),
        ]
    )


def build_pre_tokenizer(*marks: str) -> pre_tokenizers.PreTokenizer:
    """Split lower-cased text into words as spaCy's English tokenizer does; ``marks`` are kept as words."""
    return split_into("|".join([*marks, _WORD]))


def read_vocabulary(file: Path) -> str:
    """Read the text of a vocabulary file; TokenizerError if it cannot be read or is not UTF-8."""
    try:
        return read_whole(file).decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: not UTF-8 at byte {error.start}; is this a vocabulary?") from None
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
