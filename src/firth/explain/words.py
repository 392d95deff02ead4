"""The sections of a page about words: one word in several contexts and models, its neighbours, and analogies."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from firth.errors import InputError
from firth.explain.asked import MOST_PLACES, MOST_WORDS, Asked, can
from firth.explain.markup import value_map, visible
from firth.inference.model import Model
from firth.inference.token_vectors import TextVectors
from firth.inference.word_table import Neighbour, WordTable, table_of
from firth.metrics.neighbours import unit_vectors
from firth.page import Report
from firth.text.words import folded_word


def context_section(page: Report, model: Model, asked: Asked) -> str:
    """Show the cosines of one word's vectors between its contexts; InputError for a word that no text contains."""
    found = model.vectors(asked.texts)
    word = asked.word or repeated_word(found)
    if word is None:
        return ""
    places = [
        (number, i)
        for number, one in enumerate(found)
        for i, unit in enumerate(one.words)
        if folded_word(unit.text) == folded_word(word)
    ]
    if asked.word and not places:
        raise InputError(f"--word {asked.word!r}: no text has this word")
    if len(places) < 2:
        raise InputError(f"--word {word!r} is in the texts once: give texts that repeat it, to compare its contexts")
    heading = asked.say("context", word=visible(word))
    page.heading(heading)
    page.text(asked.say("context_text"))
    if len(places) > MOST_PLACES:
        page.text(asked.say("context_cut", n=MOST_PLACES, all=len(places)))
        places = places[:MOST_PLACES]
    names = [f"{n}  {visible(_around(found[number], i))}" for n, (number, i) in enumerate(places, start=1)]
    numbers = [str(n) for n in range(1, len(places) + 1)]
    for layer in dict.fromkeys([0, len(found[0].each) - 1]):
        title = asked.say("context_bottom") if layer == 0 else asked.say("context_layer", n=layer)
        page.drawing(value_map(names, numbers, cosine_table(found, places, layer), title, digits=3), title)
    return heading


def models_section(page: Report, model: Model, asked: Asked) -> str:
    """Show the same word in several models: how similar its occurrences are in each."""
    if not asked.others:
        return ""
    word = asked.word or repeated_word(model.vectors(asked.texts))
    if word is None:
        raise InputError("--with compares a word in several contexts, and no word occurs twice: repeat one")
    heading = asked.say("models", word=visible(word))
    page.heading(heading)
    page.text(asked.say("models_text"))
    named = [(asked.name, model), *asked.others]
    found = np.array([word_cosines(one, asked.texts, word) for _, one in named])
    columns = asked.say("models_columns").split("|")[1:]
    page.drawing(value_map([visible(name) for name, _ in named], columns, found, heading, digits=3))
    return heading


def neighbours_section(page: Report, model: Model, asked: Asked) -> str:
    """Show the nearest words of each word of the texts, and for a text of three words its analogy."""
    if not can(lambda: table_of(model.loaded)):
        return ""
    table = table_of(model.loaded)
    words = dict.fromkeys(unit.text for one in model.vectors(asked.texts) for unit in one.words)
    known = [(word, found) for word in words if (found := _nearest(table, word))]
    if not known:
        return ""
    near = known[:MOST_WORDS]
    heading = asked.say("neighbours")
    page.heading(heading)
    page.text(asked.say("neighbours_text"))
    page.table(asked.say("neighbours_columns").split("|"), [(visible(word), _listed(found)) for word, found in near])
    if len(known) > len(near):
        page.text(asked.say("shown", n=len(near), all=len(known)))
    rows = [row for text in asked.texts if (row := _analogy(table, text.split()))]
    if rows:
        page.text(asked.say("analogy_text"))
        page.table(asked.say("analogy_columns").split("|"), rows)
    return heading


def _nearest(table: WordTable, word: str) -> list[Neighbour]:
    """The nearest words; none if the word has no vector."""
    try:
        return table.nearest(word, 5)
    except InputError:
        return []


def _analogy(table: WordTable, words: Sequence[str]) -> tuple[str, str] | None:
    """The analogy of three words and its answers; None for more or fewer words, or one without a vector."""
    if len(words) != 3:
        return None
    a, b, c = words
    try:
        return visible(f"{a} : {b} = {c} : ?"), _listed(table.analogy(a, b, c, 5))
    except InputError:
        return None


def _listed(found: Sequence[Neighbour]) -> str:
    return ", ".join(f"{visible(one.word)} {one.cosine:.2f}" for one in found)


def word_cosines(model: Model, texts: Sequence[str], word: str) -> tuple[float, float]:
    """The mean cosine in the top layer between occurrences of a word, and between all other pairs of words.

    NaN if there is no such pair.
    """
    found = model.vectors(texts)
    spelled = [folded_word(unit.text) for one in found for unit in one.words]
    x = unit_vectors(np.concatenate([one.of_words(one.layer(-1)) for one in found]))
    groups = dict[str, list[int]]()
    for number, name in enumerate(spelled):
        groups.setdefault(name, []).append(number)
    within = {name: _pairs_of(x[numbers]) for name, numbers in groups.items()}
    cosines, n_pairs = _pairs_of(x)
    cosines -= sum(total for total, _ in within.values())
    n_pairs -= sum(n for _, n in within.values())
    own, n_own = within.get(folded_word(word), (0.0, 0))
    return own / n_own if n_own else math.nan, cosines / n_pairs if n_pairs else math.nan


def _pairs_of(x: Float[np.ndarray, "n H"]) -> tuple[float, int]:
    """The sum of the cosines of all pairs of unit vectors, from the square of their sum, and the number of pairs."""
    total = np.square(x.sum(0, np.float64)).sum() - np.square(x, dtype=np.float64).sum()
    return float(total) / 2, len(x) * (len(x) - 1) // 2


def repeated_word(found: Sequence[TextVectors]) -> str | None:
    """The longest word that occurs at least twice; None if none has three letters or two ideographs."""
    counts = Counter(folded_word(unit.text) for one in found for unit in one.words)
    often = [word for word, n in counts.items() if n > 1 and len(word) > (2 if word.isascii() else 1)]
    return max(often, key=len, default=None)


def cosine_table(
    found: Sequence[TextVectors], places: Sequence[tuple[int, int]], layer: int
) -> Float[np.ndarray, "P P"]:
    """The cosines between words, given as (text, word) numbers, in one layer."""
    x = unit_vectors(np.stack([found[number].of_words(found[number].layer(layer))[i] for number, i in places]))
    return x @ x.T


def _around(one: TextVectors, i: int) -> str:
    """A word with its neighbours."""
    begin, end = one.words[max(i - 2, 0)].start, one.words[min(i + 2, len(one.words) - 1)].end
    unit = one.words[i]
    return f"{one.text[begin : unit.start]}[{unit.text}]{one.text[unit.end : end]}"
