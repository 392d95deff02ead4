"""Mix several languages in one corpus: exponentially smoothed sampling, so that small languages are seen more often.

Source: google-research/bert multilingual.md: each language's share of the text to the power 0.7, then normalised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.corpus.selection import MOST
from firth.errors import ConfigError, InputError
from firth.progress import Progress
from firth.text.corpus import CorpusReader
from firth.text.finding import find_files

EXPONENT = 0.7


@dataclass(frozen=True, slots=True)
class Language:
    """A language, given as one text: its files, its share of all characters, and its share of what is sampled.

    ``weight``: how often each of its documents is used, at most ``MOST``.
    """

    given: str
    files: tuple[Path, ...]
    share: float
    smoothed: float
    weight: float


def smoothed_languages(texts: Sequence[str | Path], exponent: float = EXPONENT) -> list[Language]:
    """Compute the weights of the languages of a corpus, one per text, keeping the total amount of text the same.

    The share p of a language becomes p^S / Σ p^S. ``exponent`` S: 1 leaves shares as they are, 0 makes them equal.
    Text is read once, to count characters. ConfigError for fewer than two texts, an exponent outside 0 to 1, and a
    file that belongs to two of them; InputError for a text without characters.
    """
    if not 0 <= exponent <= 1:
        raise ConfigError(f"--smooth {exponent:g}: expected 0 (equal shares) to 1 (shares as they are), such as 0.7")
    if isinstance(texts, str | Path) or len(texts) < 2:
        raise ConfigError("--smooth is between languages: give a TEXT for each, such as en.txt ko.txt")
    files = [tuple(find_files([text])) for text in texts]
    seen: dict[Path, str] = {}
    for text, some in zip(texts, files, strict=True):
        for file in some:
            if file.resolve() in seen:
                raise ConfigError(
                    f"{file} is of {seen[file.resolve()]} and of {text}: give each language files of its own"
                )
            seen[file.resolve()] = str(text)
    sizes = list[int]()
    with Progress("counting characters", len(texts), "texts") as progress:
        for text, some in zip(texts, files, strict=True):
            reader = CorpusReader(some)
            sizes.append(sum(len(paragraph) for document in reader for paragraph in document.paragraphs))
            if not sizes[-1]:
                raise InputError(f"{text}: no text in it: a language without text cannot be sampled")
            progress.advance(1)
    shares = [size / sum(sizes) for size in sizes]
    powers = [share**exponent for share in shares]
    weights = [min(power / sum(powers) / share, MOST) for power, share in zip(powers, shares, strict=True)]
    sampled = [share * weight for share, weight in zip(shares, weights, strict=True)]
    return [
        Language(str(text), some, share, mine / sum(sampled), weight)
        for text, some, share, mine, weight in zip(texts, files, shares, sampled, weights, strict=True)
    ]


def told(languages: Sequence[Language], tell: Callable[[str], None]) -> None:
    """Report each language's share, and its smoothed share."""
    for one in languages:
        tell(f"{one.given}: {one.share:.1%} of the text, {one.smoothed:.1%} sampled (weight {one.weight:.3g})")


def weights_by_file(languages: Sequence[Language]) -> dict[Path, float]:
    """The weight of each file's language, by path."""
    return {file: one.weight for one in languages for file in one.files}
