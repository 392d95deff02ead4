"""Detect entity tag schemes, check the order of tags, and convert between schemes.

Schemes: IOB1 (B- where a chunk follows another of its label), BIO (every chunk starts with B-), BIOES
(last words E-, single words S-), plain (tags without order, such as parts of speech). A B- that IOB1 does
not need is accepted, for it means the same (the published CoNLL-2003 training file has one).
Two more spellings are read (``respelled``): the label first, as in Naver's Korean entities, and BILOU.
Source: Ramshaw and Marcus 1995 (IOB1); Tjong Kim Sang and Veenstra 1999 (the other schemes).
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from firth.errors import InputError

Scheme = Literal["IOB1", "BIO", "BIOES", "plain"]

OUTSIDE = "O"
# Prefix -> (prefixes that may follow with any label, those that may follow with the same label only).
# The beginning and the end of a sentence count as a word outside.
_FOLLOWERS: dict[str, dict[str, tuple[str, str]]] = {
    "IOB1": {"O": ("OIB", ""), "I": ("OIB", ""), "B": ("OIB", "")},
    "BIO": {"O": ("OB", ""), "B": ("OB", "I"), "I": ("OB", "I")},
    "BIOES": {"O": ("OBS", ""), "B": ("", "IE"), "I": ("", "IE"), "E": ("OBS", ""), "S": ("OBS", "")},
}
# Prefixes that continue a chunk when the previous tag has the same label.
_GOES_ON = {"IOB1": "I", "BIO": "I", "BIOES": "IE"}
# (first of its chunk, last of its chunk) -> prefix.
_WRITTEN = {
    "BIO": {(True, True): "B", (True, False): "B", (False, False): "I", (False, True): "I"},
    "BIOES": {(True, True): "S", (True, False): "B", (False, False): "I", (False, True): "E"},
}
_PREFIXES = frozenset("BIES")
# Spellings of entity tags: prefix or suffix. BILOU names the last word of an entity, and the only one, L and U.
_SPELLINGS = tuple(map(re.compile, ("(?P<place>[BIESLU])-(?P<label>.+)", "(?P<label>.+)[-_](?P<place>[BIESLU])")))
_FROM_BILOU = {"L": "E", "U": "S"}
# A file has millions of transitions, but only a few hundred pairs of tags.
_remembered = lru_cache(maxsize=1 << 14)


@_remembered
def split_tag(tag: str) -> tuple[str, str]:
    """``"B-PER"`` -> ``("B", "PER")``, ``"O"`` -> ``("O", "")``; a tag without prefix -> ``("", tag)``."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if len(tag) > 2 and tag[1] == "-" and tag[0] in _PREFIXES:
        return tag[0], tag[2:]
    return "", tag


@_remembered
def allowed(previous: str | None, following: str | None, scheme: Scheme) -> bool:
    """Whether one tag may follow another; None stands for the beginning and the end of a sentence."""
    if scheme == "plain":
        return True
    before, label = split_tag(previous or OUTSIDE)
    after, next_label = split_tag(following or OUTSIDE)
    with_any, with_same = _FOLLOWERS[scheme].get(before, ("", ""))
    return bool(after) and (after in with_any or (after in with_same and label == next_label))


def respelled(tags: Iterable[str]) -> dict[str, str]:
    """Map the tags of entities to their spelling here, such as ``PER-B`` and ``PER_B`` to B-PER, and L-PER to E-PER.

    A hyphen alone becomes O. Empty if ``tags`` are not of entities: less than half are in the same spelling. The others
    stay as they are, for whoever checks the order of tags to name them.
    """
    names = {*tags}
    outside = {tag: OUTSIDE for tag in ("-", OUTSIDE) if tag in names}
    for spelling in _SPELLINGS:
        found = {tag: match for tag in names if (match := spelling.fullmatch(tag))}
        if 2 * len(found) > len(names - outside.keys()):
            read = {tag: f"{_FROM_BILOU.get(m['place'], m['place'])}-{m['label']}" for tag, m in found.items()}
            return outside | read
    return {}


def continued(tag: str) -> str:
    """The tag, in BIO, of what follows in the same word: ``"B-PER"`` -> ``"I-PER"``, ``"O"`` -> ``"O"``."""
    return f"I-{tag[2:]}" if tag.startswith("B-") else tag


def find_violation(tags: Sequence[str], scheme: Scheme) -> str | None:
    """Describe the first transition of a sentence that the scheme forbids; None if there is none."""
    for number, (previous, tag) in enumerate(zip((None, *tags), (*tags, None), strict=True), 1):
        if not allowed(previous, tag, scheme):
            before = f"after {previous}" if previous else "at the beginning of a sentence"
            if tag is None:
                return f"found {previous} at the end of a sentence, which {scheme} does not allow"
            return f"found {tag} {before} (word {number}), which {scheme} does not allow"
    return None


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Detect the scheme of a whole file's tags: the one that they break least often.

    Tags that never start with B-, I-, E- or S- are plain (all O: BIO). E- and S- exist in BIOES only.
    """
    kept = list(sentences)
    prefixes = {split_tag(tag)[0] for tags in kept for tag in tags}
    if not prefixes & _PREFIXES:
        return "plain" if "" in prefixes else "BIO"
    if prefixes & {"E", "S"}:
        return "BIOES"
    steps = [step for tags in kept for step in zip((OUTSIDE, *tags), tags, strict=False)]
    # At the start of a chunk I- breaks BIO; B- breaks IOB1, unless it separates two chunks of one label.
    n_against_bio = sum(not allowed(a, b, "BIO") for a, b in steps)
    n_against_iob1 = sum(split_tag(b)[0] == "B" and split_tag(a)[1] != split_tag(b)[1] for a, b in steps)
    return "IOB1" if n_against_iob1 < n_against_bio else "BIO"


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Convert a sentence's tags to BIO. Raises InputError if they break their scheme."""
    return _convert(tags, scheme, "BIO")


def to_bioes(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Convert a sentence's tags to BIOES. Raises InputError if they break their scheme."""
    return _convert(tags, scheme, "BIOES")


def _convert(tags: Sequence[str], source: Scheme, target: Literal["BIO", "BIOES"]) -> tuple[str, ...]:
    if source == "plain":
        return tuple(tags)
    problem = find_violation(tags, source)
    if problem:
        raise InputError(f"{problem}; correct the tags")
    goes_on = [_continues(a, b, source) for a, b in zip((OUTSIDE, *tags), (*tags, OUTSIDE), strict=True)]
    converted = []
    for i, tag in enumerate(tags):
        label = split_tag(tag)[1]
        converted.append(f"{_WRITTEN[target][not goes_on[i], not goes_on[i + 1]]}-{label}" if label else OUTSIDE)
    return tuple(converted)


@_remembered
def _continues(previous: str, tag: str, scheme: Scheme) -> bool:
    label, (prefix, next_label) = split_tag(previous)[1], split_tag(tag)
    return prefix in _GOES_ON[scheme] and bool(label) and label == next_label
