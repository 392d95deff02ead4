"""The sections of a page about attention: maps of each head, its importance, and how sharp the softmax is."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from firth.explain.asked import MOST_HEADS, MOST_MAPPED, Asked, can
from firth.explain.markup import head_maps, labelled_map, value_map
from firth.inference.attention_maps import Attention, Saturation, attention_layers
from firth.inference.model import Model
from firth.objectives.translation import Translation
from firth.page import Report


def attention_section(page: Report, model: Model, asked: Asked) -> str:
    """Show the maps of all heads over the first text, and the softmax with and without the root of d."""
    if not attention_layers(model.loaded.objective.encoder):
        return ""
    heading = asked.say("attention")
    page.heading(heading)
    text, notes = _cut(model, asked)
    for sentence in (asked.say("attention_text"), *notes):
        page.text(sentence)
    found = model.attention(text)
    _maps(page, found, asked)
    if len(found.tokens) > 1:
        page.text(asked.say("saturation_text"))
        title = asked.say("saturation")
        page.drawing(saturation_map(model.saturation(text), title, asked.say("saturation_columns").split("|")), title)
    return heading


def saturation_map(layers: Sequence[Saturation], title: str, columns: Sequence[str]) -> str:
    """Draw one row per layer; ``columns``: the word for a layer, then the names of the four numbers."""
    values = np.array([(s.largest, s.largest_unscaled, s.slope, s.slope_unscaled) for s in layers])
    return value_map([f"{columns[0]} {s.layer}" for s in layers], columns[1:], values, title)


def cross_section(page: Report, model: Model, asked: Asked) -> str:
    """Show the cross-attention of the model's own translation of the first text: each layer's heads over the source."""
    if not isinstance(model.loaded.objective, Translation):
        return ""
    heading = asked.say("cross")
    page.heading(heading)
    text, notes = _cut(model, asked)
    for sentence in (asked.say("cross_text"), *notes):
        page.text(sentence)
    found = model.cross_attention(text)
    _maps(page, found, asked)
    return heading


def _maps(page: Report, found: Attention, asked: Asked) -> None:
    """Show the mean of all heads, then the heads of each layer."""
    mean = asked.say("attention_mean")
    page.drawing(labelled_map(found.tokens, found.columns, found.weights.mean((0, 1)), mean), mean)
    names = [asked.say("attention_head", n=head + 1) for head in range(found.weights.shape[1])]
    for layer, weights in enumerate(found.weights, start=1):
        title = asked.say("attention_layer", n=layer)
        page.drawing(head_maps(found.tokens, weights, title, names), title)


def importance_section(page: Report, model: Model, asked: Asked) -> str:
    """Show how much less probable the text's tokens become when one head is silenced."""
    layers = attention_layers(model.loaded.objective.encoder)
    if not layers or sum(layer.n_heads for layer in layers) > MOST_HEADS:
        return ""
    values = list[Float[np.ndarray, "L N"]]()
    text, notes = _cut(model, asked)
    if not can(lambda: values.append(model.head_importance([text]))):
        return ""
    heading = asked.say("importance")
    page.heading(heading)
    for sentence in (asked.say("importance_text"), *notes):
        page.text(sentence)
    names = [asked.say("attention_head", n=n + 1) for n in range(layers[0].n_heads)]
    rows = [asked.say("attention_layer", n=n + 1) for n in range(len(layers))]
    page.drawing(importance_map(values[0], rows, names, heading))
    return heading


def importance_map(values: Float[np.ndarray, "L N"], rows: Sequence[str], columns: Sequence[str], title: str) -> str:
    """Draw nats by layer and head; the value farthest from 0 is the fullest."""
    return value_map(rows, columns, values, title, full=float(np.abs(values).max(initial=0)), digits=3)


def _cut(model: Model, asked: Asked) -> tuple[str, list[str]]:
    """Return the first text, truncated to what can be drawn, and the sentences that say so."""
    text = asked.texts[0]
    pieces = model.tokenize(text)
    room = min(MOST_MAPPED, model.loaded.max_length or MOST_MAPPED) - model.loaded.layout.n_special
    if len(pieces) <= room:
        return text, []
    return text[: pieces[room - 1].end], [asked.say("read", n=room)]
