"""Tagging metrics: entity F1 (conlleval), and KLUE-NER's entity and character F1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

EntitySpan = tuple[str, int, int]  # label, first word, last word + 1

PREFIXES = ("B", "I", "E", "S", "O")
KLUE_NER_TAGS = ("B-PS", "I-PS", "B-LC", "I-LC", "B-OG", "I-OG", "B-DT", "I-DT", "B-TI", "I-TI", "B-QT", "I-QT", "O")


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Counts of entities in the gold tags, in the predicted ones, and in both with equal label and boundaries."""

    n_gold: int
    n_predicted: int
    n_correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct, 0 to 1; 0 if there are none."""
        return self.n_correct / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found, 0 to 1; 0 if there are none."""
        return self.n_correct / self.n_gold if self.n_gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 0 to 1; 0 if there are no entities."""
        n_both = self.n_gold + self.n_predicted
        return 2 * self.n_correct / n_both if n_both else 0.0


@dataclass(frozen=True, slots=True)
class TagScores:
    """What conlleval prints, as shares from 0 to 1: entities of all labels together, of each label, and tokens."""

    overall: EntityScores
    by_label: dict[str, EntityScores]
    token_accuracy: float
    n_tokens: int

    @property
    def precision(self) -> float:
        """Precision over the entities of all labels together."""
        return self.overall.precision

    @property
    def recall(self) -> float:
        """Recall over the entities of all labels together."""
        return self.overall.recall

    @property
    def f1(self) -> float:
        """F1 over the entities of all labels together: the score of CoNLL-2000 and CoNLL-2003."""
        return self.overall.f1


def entities(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities of one sentence, as (label, first, last + 1), from IOB1, BIO, IOE or BIOES tags in any mix.

    A tag continues an entity if it is I or E of the same label after B or I; every other tag but O starts one. A tag
    without a label, such as a bare ``B``, has the label "". Raises ValueError for any other tag.
    Source: startOfChunk and endOfChunk of conlleval (Tjong Kim Sang, version of 2004).
    Differs: that version does not know S, and takes B after E of the same label for the same entity; here S is an
    entity of its own and B always starts one, as in the later versions in Python.
    """
    found, first, previous, previous_label = [], 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, label = _split(tag)
        continues = prefix in ("I", "E") and previous in ("B", "I") and label == previous_label
        if not continues:
            if previous != "O":
                found.append((previous_label, first, position))
            first = position
        previous, previous_label = prefix, label
    return found


def conlleval(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TagScores:
    """Precision, recall and F1 over entities with exact boundaries and label, from one list of tags per sentence.

    Source: conlleval, whose chunk rules are those of ``entities``. Differs: shares from 0 to 1, not percent.
    """
    _check(gold, predicted)
    n_tokens = sum(map(len, gold))
    overall, by_label = _compare([entities(tags) for tags in gold], [entities(tags) for tags in predicted])
    return TagScores(overall, by_label, token_accuracy(gold, predicted), n_tokens)


def token_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Share of correct tags, 0 to 1, over all sentences together. Works for any tags, also parts of speech."""
    _check(gold, predicted)
    pairs = list(zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


def klue_ner_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """The two scores of KLUE-NER, 0 to 1, from the BIO tags of each sentence's characters, spaces left out.

    ``entity_macro_f1``: mean F1 over the labels that occur on either side. An entity is a B and the following I of the
    same label; an I that follows nothing of its label belongs to no entity (unlike in ``entities``).
    ``character_macro_f1``: mean F1 over all thirteen tags, **O among them**; a tag that occurs on neither side has 1.
    ``character_macro_f1_without_o``: the same over the other twelve.

    Source: KLUE-benchmark/KLUE-baseline, klue_baseline/metrics/functional.py. The docstring of its character score
    says "except O tag", but the code, and so every number it has produced, counts O.
    Differs: shares, not percent. The baseline also counts the marks around each sentence as characters with tag O,
    which raises O's F1 slightly; they are not characters and are not counted here.
    """
    _check(gold, predicted)
    for tag in chain.from_iterable(chain(gold, predicted)):
        if tag not in KLUE_NER_TAGS:
            raise ValueError(f"tag {tag!r} is not one of KLUE-NER's: {' '.join(KLUE_NER_TAGS)}")
    _, by_label = _compare([_strict_entities(tags) for tags in gold], [_strict_entities(tags) for tags in predicted])
    by_tag = _tag_f1(list(chain.from_iterable(gold)), list(chain.from_iterable(predicted)))
    without_o = [by_tag[tag] for tag in KLUE_NER_TAGS if tag != "O"]
    return {
        "entity_macro_f1": sum(scores.f1 for scores in by_label.values()) / max(len(by_label), 1),
        "character_macro_f1": (sum(without_o) + by_tag["O"]) / len(KLUE_NER_TAGS),
        "character_macro_f1_without_o": sum(without_o) / len(without_o),
    }


def _strict_entities(tags: Sequence[str]) -> list[EntitySpan]:
    """Entities that start with B alone (seqeval's strict mode, scheme IOB2)."""
    found: list[EntitySpan] = []
    for position, tag in enumerate(tags):
        prefix, label = _split(tag)
        if prefix == "B":
            found.append((label, position, position + 1))
        elif prefix == "I" and found and found[-1][0] == label and found[-1][2] == position:
            found[-1] = (label, found[-1][1], position + 1)
    return found


def _tag_f1(gold: list[str], predicted: list[str]) -> dict[str, float]:
    n_right = Counter(a for a, b in zip(gold, predicted, strict=True) if a == b)
    n_both = Counter(gold) + Counter(predicted)
    return {tag: 2 * n_right[tag] / n_both[tag] if n_both[tag] else 1.0 for tag in KLUE_NER_TAGS}


def _compare(
    gold: list[list[EntitySpan]], predicted: list[list[EntitySpan]]
) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Counts over all labels together, and of each label that occurs, in alphabetical order."""
    n_gold = Counter(label for found in gold for label, _, _ in found)
    n_predicted = Counter(label for found in predicted for label, _, _ in found)
    n_correct = Counter(label for a, b in zip(gold, predicted, strict=True) for label, _, _ in set(a) & set(b))
    by_label = {
        label: EntityScores(n_gold[label], n_predicted[label], n_correct[label])
        for label in sorted(n_gold | n_predicted)
    }
    return EntityScores(n_gold.total(), n_predicted.total(), n_correct.total()), by_label


def _split(tag: str) -> tuple[str, str]:
    # At the first hyphen: a label may have hyphens of its own.
    prefix, _, label = tag.partition("-")
    if prefix not in PREFIXES:
        raise ValueError(f"tag {tag!r} starts with none of {', '.join(PREFIXES)}; expected tags such as B-PER and O")
    return prefix, label


def _check(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"expected tags for the same sentences: got {len(gold)} gold, {len(predicted)} predicted")
    for number, (a, b) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(a) != len(b):
            raise ValueError(f"sentence {number} has {len(a)} gold tags and {len(b)} predicted ones")
    if not any(gold):
        raise ValueError("expected at least one tag, found none")
