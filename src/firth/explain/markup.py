"""Small HTML and SVG pictures as text: rows of tokens, heat maps, boxes. All text given is plain and is escaped here.

Amounts are shown by the opacity of one colour, kinds by Okabe and Ito's colours and by an outline or a letter, so
that colour-blind readers can tell them apart. Text of any script is isolated, so that right-to-left tokens keep their
place in the row.
"""

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from firth.page import COLOURS
from firth.progress import columns_of

if TYPE_CHECKING:
    from firth.inference.attention_maps import Attention

# Weights below this are practically invisible: leaving them out makes pictures of many heads ten times smaller.
FAINTEST = 0.01
_SIZE = 12
_CHARACTER = 7.2  # width of a letter of that size, in px
_LINE = 18
_BOX = 28  # height of a box with a number
# Directional marks, which would reverse the rest of the page.
_TURNING = frozenset((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def visible(text: str) -> str:
    """Make text visible: control characters as their symbols, a mark without its letter on a dotted circle."""
    kept = "".join(_visible(c) for c in text)
    mark = 2 if kept.startswith("##") else 0
    if len(kept) > mark and unicodedata.combining(kept[mark]):
        kept = f"{kept[:mark]}\u25cc{kept[mark:]}"
    return kept or "\u2205"


def _visible(c: str) -> str:
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F or 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
        return "\ufffd"
    return "\ufffd" if code in _TURNING else c


def escaped(text: str) -> str:
    """The same, escaped for HTML, attributes included."""
    return html.escape(visible(text), quote=True)


def text_width(text: str) -> float:
    """Estimate the width of a text of 12 px, in px: wide characters count twice, combining ones not at all."""
    return _CHARACTER * columns_of(visible(text))


@dataclass(frozen=True, slots=True)
class Mark:
    """A token in a row. ``amount``: how full its colour is, 0 to 1; ``colour``: an index into ``page.COLOURS``.

    ``below``: the text under it, followed by ``kind``; ``hint``: the tooltip; ``dashed``: outlined.
    """

    text: str
    amount: float = 0.0
    colour: int = 0
    below: str = ""
    kind: str = ""
    hint: str = ""
    dashed: bool = False


def token_row(marks: Sequence[Mark]) -> str:
    """Draw tokens from left to right, in the order of the model's positions, on as many lines as needed."""
    return f'<p class="tokens" dir="ltr">{"".join(map(_token, marks))}</p>'


def _token(mark: Mark) -> str:
    hint = f' title="{escaped(mark.hint)}"' if mark.hint else ""
    kind = f" ({escaped(mark.kind)})" if mark.kind else ""
    # Isolated from what follows: a right-to-left token would change places with it.
    below = f'<small><bdi dir="ltr">{escaped(mark.below)}</bdi>{kind}</small>' if mark.below else ""
    amount = 0.0 if np.isnan(mark.amount) else min(max(mark.amount, 0.0), 1.0)
    colour = f"color-mix(in srgb, var(--c{mark.colour}) {amount:.0%}, transparent)"
    outline = f" outline: 2px dashed var(--c{mark.colour});" if mark.dashed else ""
    style = f"background: {colour};{outline}"
    return f'<span class="token"{hint}><bdi dir="ltr" style="{style}">{escaped(mark.text)}</bdi>{below}</span> '


def svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """A picture of the given size in px, which shrinks with the page."""
    return (
        f'<svg class="own" role="img" aria-label="{escaped(title)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width: {width:.0f}px">{"".join(parts)}</svg>'
    )


def label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    turned: bool = False,
    faint: bool = False,
    size: float = _SIZE,
) -> str:
    """A line of text of ``size`` px whose start (or middle, or end) is at x and y."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    colour = "faint" if faint else "ink"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--{colour})" font-size="{size:g}" '
        f'dominant-baseline="central" unicode-bidi="isolate"{turn}>{escaped(text)}</text>'
    )


def box(x: float, y: float, width: float, height: float, *, colour: int, amount: float, hint: str = "") -> str:
    """A filled rectangle, with a tooltip."""
    inside = f"<title>{escaped(hint)}</title>" if hint else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="var(--c{colour})" '
        f'fill-opacity="{amount:.2f}">{inside}</rect>'
    )


def frame(x: float, y: float, width: float, height: float) -> str:
    """An outline."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="var(--grid)"/>'


def heat_map(x: float, y: float, values: Float[np.ndarray, "R C"], side: float, *, hints: bool = False) -> list[str]:
    """A map of values from 0 to 1 with cells of ``side`` px; opacity grows with the square root of the value."""
    n_rows, n_columns = values.shape
    parts = [frame(x, y, side * n_columns, side * n_rows)]
    for i, j in zip(*np.nonzero(values >= FAINTEST), strict=True):
        value = float(values[i, j])
        hint = f"{value:.2f}" if hints else ""
        parts.append(box(x + side * j, y + side * i, side, side, colour=0, amount=min(value, 1) ** 0.5, hint=hint))
    return parts


def labelled_map(rows: Sequence[str], columns: Sequence[str], values: Float[np.ndarray, "R C"], title: str) -> str:
    """A heat map with row labels on the left and column labels above."""
    left = max(map(text_width, rows), default=0) + 8
    top = max(map(text_width, columns), default=0) + 8
    parts = [label(left - 6, top + _LINE * (i + 0.5), name, anchor="end") for i, name in enumerate(rows)]
    parts += [label(left + _LINE * (j + 0.5), top - 6, name, turned=True) for j, name in enumerate(columns)]
    parts += heat_map(left, top, values, _LINE, hints=True)
    return svg(left + _LINE * len(columns) + 4, top + _LINE * len(rows) + 4, parts, title)


def value_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[np.ndarray, "R C"],
    title: str,
    *,
    full: float = 1.0,
    digits: int = 2,
) -> str:
    """A table of numbers in boxes: the farther from 0, the fuller, up to ``full``; negative ones in another colour.

    Row labels are on the left, column labels above; NaN is a dash.
    """
    signed = bool((values < 0).any())
    side = max(56.0, *(text_width(name) + 10 for name in columns))
    left = max(map(text_width, rows), default=0) + 8
    parts = [label(left - 6, 22 + _BOX * (i + 0.5), name, anchor="end") for i, name in enumerate(rows)]
    parts += [
        label(left + side * (j + 0.5) - 2, 10, name, anchor="middle", faint=True) for j, name in enumerate(columns)
    ]
    for i, j in np.ndindex(*values.shape):
        value, x, y = float(values[i, j]), left + side * j, 24 + _BOX * i
        known = not np.isnan(value)
        amount = 0.6 * min(abs(value) / max(full, 1e-9), 1.0) if known else 0.0
        shown = f"{value:{'+' if signed else ''}.{digits}f}" if known else "\u2013"
        parts.append(box(x, y, side - 4, _BOX - 4, colour=int(value < 0), amount=amount))
        parts.append(label(x + (side - 4) / 2, y + (_BOX - 4) / 2, shown, anchor="middle"))
    return svg(left + side * len(columns) + 4, 28 + _BOX * len(rows), parts, title)


def head_maps(tokens: Sequence[str], weights: Float[np.ndarray, "N R C"], title: str, names: Sequence[str]) -> str:
    """The maps of one layer's heads, four per line; the first of each line has token labels."""
    n_rows, n_columns = weights.shape[1:]
    side = max(4.0, min(14.0, 150 / max(n_rows, n_columns, 1)))
    names_fit = side >= 9
    # At most the height of a row, or the labels would overlap.
    size = min(side, _SIZE)
    left = (max(map(text_width, tokens), default=0) * size / _SIZE + 8) if names_fit else 4.0
    width, height = side * n_columns + 16, side * n_rows + 30
    parts = []
    for head, map_of_head in enumerate(weights):
        x, y = left + width * (head % 4), height * (head // 4) + 22
        parts.append(label(x, y - 11, names[head], faint=True))
        parts += heat_map(x, y, map_of_head, side)
        if head % 4 == 0 and names_fit and len(tokens) == n_rows:
            for i, token in enumerate(tokens):
                parts.append(label(left - 5, y + side * (i + 0.5), token, anchor="end", size=size))
    n_lines = -(-len(weights) // 4)
    return svg(left + width * min(len(weights), 4), height * n_lines + 6, parts, title)


def standalone(drawing: str) -> str:
    """A drawing of ``svg`` as a standalone file, on a light background."""
    colours = " ".join(f"--c{i}: {light};" for i, (light, _) in enumerate(COLOURS))
    style = f"svg {{ {colours} --ink: #1c1c22; --faint: #62626c; --grid: #d4d4da; background: #fff; }}"
    opened, _, rest = drawing.partition(">")
    font = 'font-family="system-ui, sans-serif"'
    return f'{opened} xmlns="http://www.w3.org/2000/svg" {font}><style>{style}</style>{rest}\n'


def attention_svg(found: "Attention") -> str:
    """All maps of some layers and heads as one picture: layers from top to bottom, heads from left to right.

    Row labels are next to each layer's first map and column labels above the first layer's maps, as far as they are
    legible at the size of the cells.
    """
    rows, columns, weights = found.tokens, found.columns, found.weights
    n_layers, n_heads, n_rows, n_columns = weights.shape
    side = max(5.0, min(16.0, 220 / max(n_rows, n_columns, 1)))
    named, size = side >= 9, min(side, _SIZE)
    left = max(map(text_width, rows), default=0) + 10 if named else 12.0
    top = (max(map(text_width, columns), default=0) if named else 0.0) + 32
    width, height = side * n_columns + 16, side * n_rows + 16
    parts = []
    for layer in range(n_layers):
        y = top + height * layer
        if named:
            parts += [
                label(left - 6, y + side * (i + 0.5), name, anchor="end", size=size) for i, name in enumerate(rows)
            ]
        parts.append(label(left + width * n_heads - 4, y + side * n_rows / 2, found.layers[layer], faint=True))
        for head in range(n_heads):
            x = left + width * head
            if not layer:
                parts.append(label(x, 10, found.heads[head], faint=True))
                if named:
                    parts += [
                        label(x + side * (j + 0.5), top - 6, name, turned=True, size=size)
                        for j, name in enumerate(columns)
                    ]
            parts += heat_map(x, y, weights[layer, head], side, hints=n_layers * n_heads <= 16)
    return svg(left + width * n_heads + 60, top + height * n_layers, parts, "attention weights")
