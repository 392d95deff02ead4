"""Plot attention weights: one heat map per layer (row) and head (column)."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from firth.errors import ConfigError
from firth.files import new_file
from firth.inference.attention_maps import Attention
from firth.page import COLOURS, FAINT, INK, fonts_for, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More token labels next to one map would be too small to read.
MOST_LABELS = 20
# Minimum side of a map, and the height of a label line, in inches; dots per inch of the file.
_SIDE, _LINE, _DPI = 1.2, 0.11, 200
# More cells on a side of the smallest map would be less than a pixel wide, and some would not be drawn.
_MOST_CELLS = 200
# Distance from one map's start to the next one's, in sides.
_STEP = 1.08


def draw_attention(attention: Attention) -> "Figure":
    """Draw the plot: rows attend (queries), columns are attended to (keys); darker is more.

    Up to ``MOST_LABELS`` tokens are labelled. Of a long text, a cell shows the largest weight of several tokens.
    ConfigError if matplotlib is not installed.
    """
    try:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'firth[report]'") from None
    n_layers, n_heads, n_pieces, _ = attention.weights.shape
    columns = attention.columns
    few = max(n_pieces, len(columns)) <= MOST_LABELS
    names = [plain(piece) for piece in attention.tokens] if few else []
    below = [plain(piece) for piece in columns] if few else []
    side = max(_SIDE, _LINE * max(len(names), len(below)))
    figure = Figure(figsize=(side * (n_heads + 0.7), side * (n_layers + 0.7)), layout="constrained")
    axes = figure.add_subplot()
    # One colour, from nearly transparent: it must work on a dark page too.
    colour = to_rgb(COLOURS[0][0])
    shades = LinearSegmentedColormap.from_list("shades", [(*colour, 0.06), (*colour, 1.0)])
    for layer in range(n_layers):
        for head in range(n_heads):
            x, y = _STEP * head, _STEP * layer
            # Show the square root: most weights are far below the highest.
            axes.imshow(
                pooled(attention.weights[layer, head], _MOST_CELLS),
                shades,
                PowerNorm(0.5, 0, 1),
                extent=(x, x + 1, y + 1, y),
                interpolation="nearest",
            )
    centre = [(number + 0.5) / max(len(names), 1) for number in range(len(names))]
    across = [(number + 0.5) / max(len(below), 1) for number in range(len(below))]
    axes.set_xticks([_STEP * head + at for head in range(n_heads) for at in across], below * n_heads, rotation=90)
    axes.set_yticks([_STEP * layer + at for layer in range(n_layers) for at in centre], names * n_layers)
    axes.tick_params(
        length=0, labelsize=6, labelcolor=FAINT, pad=2, labelfontfamily=fonts_for("".join([*names, *below]))[0]
    )
    for head in range(n_heads):
        axes.text(_STEP * head + 0.5, -0.06, attention.heads[head], color=INK, fontsize=8, ha="center")
    right, bottom = _STEP * (n_heads - 1) + 1, _STEP * (n_layers - 1) + 1
    for layer in range(n_layers):
        axes.text(
            right + 0.06, _STEP * layer + 0.5, attention.layers[layer], color=INK, fontsize=8, va="center", rotation=270
        )
    axes.set(xlim=(0, right), ylim=(bottom, 0), frame_on=False)
    return figure


def pooled(weights: Float[np.ndarray, "Q K"], most: int) -> Float[np.ndarray, "q k"]:
    """Reduce a map to at most ``most`` cells a side, each the largest of a block of neighbours."""
    for axis, n in enumerate(weights.shape):
        step = -(-n // most)
        weights = np.maximum.reduceat(weights, np.arange(0, n, step), axis)
    return weights


def write_attention_picture(attention: Attention, path: Path) -> None:
    """Write the picture as a new PNG file, completely or not at all."""
    figure = draw_attention(attention)
    with warnings.catch_warnings(), new_file(path) as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # letters that no installed font has
        figure.savefig(file, format="png", dpi=_DPI, facecolor="white")
