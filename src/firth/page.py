"""Write a report as one offline HTML file with text, tables and plots.

The file has no scripts and loads nothing: styles and plots (SVG, text as outlines) are embedded. It
follows the reader's light or dark mode. The same report gives the same bytes.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firth.errors import ConfigError
from firth.files import new_file, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TableCell = str | int | float | None
Curve = tuple[Sequence[float], Sequence[float]]

# Okabe and Ito's colours, which colour-blind readers can tell apart: (on white, on black).
COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f58a42"),
    ("#009e73", "#2fc79b"),
    ("#b5588f", "#dd8fbb"),
    ("#a67c00", "#e6b422"),
    ("#5c5c66", "#b4b4be"),
)
_DASHES = ("-", "--", ":")  # after the last colour the colours repeat, with another dash
# Placeholder colours, replaced by style variables after drawing, so that ink and grid follow the reader's mode.
INK, FAINT, _GRID = "#010203", "#010204", "#010205"
_HANGUL_FONTS = ("Noto Sans CJK KR", "Noto Sans KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")
# 7   1,234   -0.5 %   2.1e-05   1.5x   41 s   71.2 ± 0.8 %   3 – 5
_NUMBER = re.compile(
    r"[-+−]?\d[\d,.]*(?:e[-+]?\d+)?(?:\s*(?:±|–)\s*[-+]?[\d,.]+)?\s*(?:%|[kMGTx×]|[mµ]?s|min|h|[kMG]i?B)?"
)
_NOTHING = "–"

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c1c22; --faint: #62626c; --grid: #e4e4ea; --page: #fff; --band: #f6f6f9; LIGHT }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e6ec; --faint: #9d9da8; --grid: #34343c; --page: #17171b; --band: #1f1f25; DARK } }
body { max-width: 46rem; margin: 3rem auto 5rem; padding: 0 1.25rem;
  background: var(--page); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans KR", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 1.5rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.75rem 0 0.75rem; }
p { margin: 0 0 1rem; }
figure { margin: 1.75rem 0; }
figcaption { font-weight: 600; margin-bottom: 0.5rem; }
svg { display: block; width: 100%; height: auto; }
figure.drawing { margin: 0.75rem 0 1.25rem; overflow-x: auto; }
.tokens { line-height: 2.1; margin: 0; }
.token { display: inline-block; text-align: center; vertical-align: top; margin: 0 0.2rem 0.3rem 0; line-height: 1.35; }
.token > bdi { display: block; padding: 0.05rem 0.3rem; border-radius: 0.25rem; border: 1px solid var(--grid);
  white-space: pre; }
.token small { display: block; color: var(--faint); font-size: 0.7rem; }
.wide { overflow-x: auto; margin: 1.25rem 0 1.75rem;
  background: linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 3rem 100% no-repeat local,
    linear-gradient(to right, var(--faint), transparent) 0 0 / 0.5rem 100% no-repeat scroll,
    linear-gradient(to left, var(--faint), transparent) 100% 0 / 0.5rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 0.925rem; min-width: 50%; }
th, td { padding: 0.35rem 1.5rem 0.35rem 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; color: var(--faint); border-bottom-color: var(--faint); white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--band); padding: 0.9rem 1.1rem; border-radius: 0.4rem; overflow-x: auto;
  font: 0.85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
@media print { body { margin: 0 auto; } figure, table { break-inside: avoid; } }
"""


class Report:
    """Collects parts from top to bottom; ``write`` makes the file. All text is plain text and gets escaped."""

    def __init__(self, title: str, *, language: str = "en") -> None:
        self.title, self.language = title, language
        self._parts: list[str] = []
        self._n_plots = 0

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add paragraphs; a blank line in ``text`` separates them."""
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            self._parts.append(f"<p>{html.escape(' '.join(paragraph.split()))}</p>")

    def pre(self, text: str) -> None:
        """Add preformatted text in a fixed-width font: a recipe, an output."""
        self._parts.append(f"<pre>{html.escape(text.strip(chr(10)))}</pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[TableCell]]) -> None:
        """Add a table. Columns of numbers (``0.5``, ``"87.2 ± 0.4"``, ``"12 %"``) are right-aligned."""
        assert all(len(row) == len(header) for row in rows), "each row needs a cell per column"
        cells = [[_cell_text(cell) for cell in row] for row in rows]
        numeric = [_is_numeric([row[i] for row in cells]) for i in range(len(header))]
        lines = [_table_row("th", header, numeric), *(_table_row("td", row, numeric) for row in cells)]
        head, body = lines[0], "\n".join(lines[1:])
        self._parts.append(
            f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
        )

    def lines_plot(self, title: str, curves: Mapping[str, Curve], x_label: str, y_label: str) -> None:
        """Add a plot of named curves ``(x, y)``; each is labelled at its right end. NaN leaves a gap."""
        figure, axes = _axes(x_label, y_label)
        ends = []
        for i, (name, (x, y)) in enumerate(curves.items()):
            assert len(x) == len(y), f"{name}: as many x as y"
            colour, dash = COLOURS[i % len(COLOURS)][0], _DASHES[i // len(COLOURS) % len(_DASHES)]
            marker = "o" if len(x) <= 12 else ""
            axes.plot(x, y, dash, color=colour, linewidth=1.8, marker=marker, markersize=4)
            drawn = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
            if drawn:
                ends.append((name, colour, *drawn[-1]))
        _label_ends(axes, ends)
        self.plot(title, figure)

    def bars_plot(
        self, title: str, names: Sequence[str], means: Sequence[float], spreads: Sequence[float], y_label: str
    ) -> None:
        """Add a bar per name with its mean above it; whiskers show ``means`` ± ``spreads`` (0: none)."""
        assert len(names) == len(means) == len(spreads), "a mean and a spread for each name"
        figure, axes = _axes("", y_label)
        places = range(len(names))
        axes.bar(places, means, width=0.62, color=COLOURS[0][0], zorder=2)
        for place, mean, spread in zip(places, means, spreads, strict=True):
            if spread:
                axes.errorbar(place, mean, spread, color=INK, linewidth=1.2, capsize=3.5, zorder=3)
            above = mean + spread if mean >= 0 else mean - spread
            axes.annotate(
                _cell_text(float(mean)),
                (place, above),
                (0, 5 if mean >= 0 else -5),
                textcoords="offset points",
                ha="center",
                va="bottom" if mean >= 0 else "top",
                color=INK,
                fontsize=9.5,
            )
        axes.set_xticks(places, [plain(name) for name in names], color=INK)
        if len(names) > 8 or max(map(len, names), default=0) * len(names) > 90:  # too long side by side
            for label in axes.get_xticklabels():
                label.set(rotation=35, ha="right", rotation_mode="anchor")
        axes.grid(False, axis="x")
        axes.margins(y=0.12)
        if min(means, default=0) < 0:
            axes.axhline(0, color=FAINT, linewidth=0.8, zorder=3)
        self.plot(title, figure)

    def write(self, path: Path) -> Path:
        """Write the file, which appears whole or not at all; returns its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self._page())
        return path

    def write_new(self, path: Path | str) -> None:
        """Write the file; ConfigError if it exists already, or another process is writing it."""
        with new_file(Path(path)) as file:
            file.write(self._page().encode())

    def _page(self) -> str:
        light = " ".join(f"--c{i}: {pair[0]};" for i, pair in enumerate(COLOURS))
        dark = " ".join(f"--c{i}: {pair[1]};" for i, pair in enumerate(COLOURS))
        title = html.escape(self.title)
        return "\n".join(
            [
                f'<!DOCTYPE html>\n<html lang="{html.escape(self.language)}">\n<head>\n<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{title}</title>",
                f"<style>{_STYLE.replace('LIGHT', light).replace('DARK', dark)}</style>",
                f"</head>\n<body>\n<h1>{title}</h1>",
                *self._parts,
                "</body>\n</html>\n",
            ]
        )

    def drawing(self, markup: str, title: str = "") -> None:
        """Add HTML or SVG made by ``firth.explain.markup``, with its texts already escaped, below a ``title``."""
        caption = f"<figcaption>{html.escape(title)}</figcaption>\n" if title else ""
        self._parts.append(f'<figure class="drawing">\n{caption}{markup}\n</figure>')

    def plot(self, title: str, figure: "Figure") -> None:
        """Add a matplotlib figure; its ``INK``, ``FAINT`` and ``COLOURS`` follow the reader's mode."""
        self._n_plots += 1
        caption = html.escape(title)
        svg = _inline_svg(figure, title, f"plot{self._n_plots}")
        self._parts.append(f"<figure>\n<figcaption>{caption}</figcaption>\n{svg}\n</figure>")


def _cell_text(cell: TableCell) -> str:
    """Format a cell: floats with four significant digits, integers with thousands separators."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return _NOTHING
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _is_numeric(column: Sequence[str]) -> bool:
    filled = [text for text in column if text not in ("", _NOTHING)]
    return bool(filled) and all(_NUMBER.fullmatch(text) for text in filled)


def _table_row(tag: str, cells: Sequence[str], numeric: Sequence[bool]) -> str:
    kinds = [' class="number"' if number else "" for number in numeric]
    inside = (f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(inside)}</tr>"


def _axes(x_label: str, y_label: str) -> tuple["Figure", "Axes"]:
    """Make an empty plot in the house style. ConfigError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'firth[report]'") from None
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=9.5, labelcolor=FAINT)
    axes.set_xlabel(plain(x_label), color=FAINT, fontsize=10)
    axes.set_title(
        plain(y_label), color=FAINT, fontsize=10, loc="left", pad=9
    )  # easier to read than rotated by 90 degrees
    return figure, axes


def _label_ends(axes: "Axes", ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Write each name to the right of its curve's last point: (name, colour, x, y).

    Names that would overlap are moved apart.
    """
    if not ends:
        return
    apart = 0.062  # of the axes' height: one line of text
    to_axes = axes.transData + axes.transAxes.inverted()
    axes.autoscale_view()
    heights = [float(to_axes.transform((x, y))[1]) for _, _, x, y in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    placed = dict(zip(order, _spread([heights[i] for i in order], apart), strict=True))
    for i, (name, colour, _, _) in enumerate(ends):
        axes.annotate(
            plain(name),
            (1, placed[i]),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=colour,
            fontsize=10,
            va="center",
            annotation_clip=False,
        )


def plain(text: str) -> str:
    """Escape ``text`` for matplotlib, which would read dollar signs as formulas."""
    return text.replace("$", r"\$")


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """Move ascending heights as little as possible, so that neighbours are at least ``apart``."""
    groups: list[list[float]] = []  # each: the desired heights of labels that are stacked on one another
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], apart) - _top(groups[-2], apart) < apart:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_bottom(group, apart) + apart * i for group in groups for i in range(len(group))]


def _bottom(group: Sequence[float], apart: float) -> float:
    return sum(group) / len(group) - apart * (len(group) - 1) / 2


def _top(group: Sequence[float], apart: float) -> float:
    return _bottom(group, apart) + apart * (len(group) - 1)


def _inline_svg(figure: "Figure", title: str, prefix: str) -> str:
    """Convert the figure to an ``<svg>`` element whose ids begin with ``prefix`` and whose colours are variables."""
    import matplotlib

    fonts, outlines = fonts_for(" ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text)))
    fonttype = "path" if outlines else "none"
    stream = io.StringIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "firth", "svg.fonttype": fonttype, "font.family": fonts}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # see fonts_for
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    start, _, rest = text.partition(">")
    start = re.sub(r' (?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", start)  # the page's CSS sets the size
    text = f"{start}>{rest}".replace("xlink:href", "href").replace('id="', f'id="{prefix}-')
    text = text.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    variables = {INK: "ink", FAINT: "faint", _GRID: "grid"}
    variables.update((pair[0], f"c{i}") for i, pair in enumerate(COLOURS))
    for colour, variable in variables.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)


def fonts_for(text: str) -> tuple[list[str], bool]:
    """Return font families for ``text``, and whether they have all its characters.

    Characters that no font here has are left to the reader's fonts, which is better than boxes.
    """
    from matplotlib import font_manager

    fonts = ["DejaVu Sans"]
    missing = {ord(c) for c in text if c.isprintable()} - _letters("DejaVu Sans")
    if missing:
        here = set(font_manager.get_font_names())
        for name in (n for n in _HANGUL_FONTS if n in here):
            fonts.append(name)
            missing -= _letters(name)
    return fonts, not missing


def _letters(family: str) -> set[int]:
    """The code points that a font family has."""
    from matplotlib import font_manager, ft2font

    return set(ft2font.FT2Font(font_manager.findfont(family)).get_charmap())
