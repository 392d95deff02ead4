"""Each word's commonest tag: what a tagger has to beat."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

from firth.baseline.config import CommonestTagConfig
from firth.tasks.predictions import TaggedText
from firth.tasks.tag_units import entities_of
from firth.text.records import Tagged

# A tag, and the share of its word's occurrences that have it.
Guess = tuple[str, float]


@dataclass(frozen=True, slots=True)
class CommonestTag:
    """A tag for each word that training has seen, and one for all other words."""

    config: CommonestTagConfig
    words: Mapping[str, Guess]
    other: Guess

    @property
    def task(self) -> str:
        return "tag"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def unit(self) -> str:
        return self.config.unit

    @property
    def pairs(self) -> None:
        return None

    def answers(self, records: Sequence[Tagged]) -> list[TaggedText]:
        """The predictions, in order."""
        return [self._answer(record) for record in records]

    def _answer(self, record: Tagged) -> TaggedText:
        guesses = [self.words.get(normalize("NFC", word), self.other) for word in record.words]
        tags = tuple(tag for tag, _ in guesses)
        shares = tuple(share for _, share in guesses)
        found = entities_of(record, tags, shares, self.config.scheme)
        return TaggedText(tags, shares, found, record.words, tuple(record.spans))


def fit_commonest_tag(records: Iterable[Tagged], config: CommonestTagConfig) -> CommonestTag:
    """Count the tags of each word. Words not seen in training get the commonest tag of words that occur once.

    Ties go to the tag that comes first in ``config.labels``.
    """
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for word, tag in zip(record.words, record.tags or (), strict=True):
            by_word[normalize("NFC", word)][tag] += 1
    rank = {label: number for number, label in enumerate(config.labels)}

    def best(counts: Counter[str]) -> Guess:
        tag = min(counts, key=lambda tag: (-counts[tag], rank.get(tag, len(rank))))
        return tag, counts[tag] / counts.total()

    once = Counter(tag for counts in by_word.values() if counts.total() == 1 for tag in counts)
    every = once or sum(by_word.values(), Counter[str]())
    return CommonestTag(config, {word: best(counts) for word, counts in by_word.items()}, best(every))
