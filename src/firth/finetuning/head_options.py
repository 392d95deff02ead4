"""The options of a task's head that follow from its examples: labels, range of values, tag scheme."""

import statistics
from collections.abc import Sequence
from typing import Any

from firth.errors import ConfigError, InputError
from firth.tasks.datasets import DATASETS
from firth.tasks.reading import labels_of
from firth.tasks.tag_schemes import OUTSIDE, scheme_of, split_tag
from firth.tasks.tag_units import unit_of
from firth.text.records import Tagged

# A network starts at 0, and its output moves by about 0.01 a step: it does not reach larger values, and cannot tell
# closer ones apart.
_LARGE, _CLOSE = 20.0, 0.1
# More different plain tags than this, and than words, mean that words and tags are swapped.
_MOST_TAGS = 100


def head_options(
    task: str, kind: str, train: Sequence[Any], head: dict[str, Any], scheme: str = "BIO"
) -> dict[str, Any]:
    """The head options that the training examples determine, including those held out."""
    published = DATASETS.get(task)
    if kind in ("classify", "multilabel"):
        found = published.labels if published is not None and published.labels else labels_of(train)
        if len(found) < 2 and kind == "classify" and "labels" not in head:
            n, label = len(train), found[0]
            raise InputError(f"{train[0].where}: all {n:,} examples have the label {label!r}; expected two or more")
        return {"labels": list(found)}
    if kind == "regress":
        return _value_options([record.label for record in train])
    if kind == "tag":
        return _tag_options(published.unit if published else unit_of(train), train, head, scheme)
    if kind == "answer":
        return {"can_refuse": any(not question.answers for question in train)}
    return {}


def _value_options(values: Sequence[float]) -> dict[str, Any]:
    """The range of the values, and for large or close ones their mean and standard deviation as the network's scale."""
    lowest, highest = float(min(values)), float(max(values))
    found = {"lowest": lowest, "highest": highest}
    if max(abs(lowest), abs(highest)) <= _LARGE and highest - lowest >= _CLOSE:
        return found
    return found | {"centre": statistics.fmean(values), "scale": statistics.pstdev(values) or 1.0}


def _tag_options(unit: str, train: Sequence[Tagged], head: dict[str, Any], usual: str) -> dict[str, Any]:
    sentences = [record.tags or () for record in train]
    plain = scheme_of(sentences) == "plain"
    scheme = head.get("scheme", "plain" if plain else usual)
    if (scheme == "plain") != plain:
        raise ConfigError(f"head.scheme={scheme!r}, but the tags are {'plain' if plain else 'of entities'}")
    tags = {tag for sentence in sentences for tag in sentence}
    if plain:
        words = {record.text[a:b] for record in train for a, b in record.spans}
        if len(tags) > max(_MOST_TAGS, len(words)):
            raise InputError(
                f"{train[0].where}: {len(tags):,} different tags and {len(words):,} different words: words and tags "
                "are swapped; give --columns word=COLUMN,tag=COLUMN the other way round. (A table of texts with labels "
                "is for --task classify.)"
            )
        return {"unit": unit, "scheme": scheme, "labels": sorted(tags)}
    entities = sorted({split_tag(tag)[1] for tag in tags if tag != OUTSIDE})
    if not entities:
        raise InputError(f"{train[0].where}: every word has the tag O; expected some entities to learn from")
    prefixes = "BI" if scheme == "BIO" else "BIES"
    return {"unit": unit, "scheme": scheme, "labels": [OUTSIDE, *(f"{p}-{e}" for e in entities for p in prefixes)]}
