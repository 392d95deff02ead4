"""Reports: everything is escaped, nothing is fetched, and the bytes are the same each time."""

import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from firth import page as report_module
from firth.errors import ConfigError
from firth.files import new_file
from firth.page import Report, _spread

pytestmark = pytest.mark.draws

EVIL = "<script>alert('x')</script> & \"quotes\""


class Tags(HTMLParser):
    """Checks that tags are closed in the order they were opened, and collects attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def full(title: str = "A run") -> Report:
    """A report with every kind of part."""
    report = Report(title)
    report.heading("Results " + EVIL)
    report.text(f"First {EVIL}\nstill first.\n\nSecond.")
    report.table(["model", EVIL], [["a", EVIL], ["b", None]])
    report.lines_plot(
        EVIL,
        {"one $x$": ([1, 2, 3], [3.0, math.nan, 1.0]), "two": ([1, 2, 3], [3.0, 2.0, 1.01])},
        "step",
        EVIL,
    )
    report.lines_plot("many", {"rate": (range(40), [10.0**-i for i in range(40)])}, "step", "rate")
    report.bars_plot("bars", ["a", EVIL], [0.5, -0.25], [0.1, 0.0], "score")
    report.pre("\n[train]\n  rate = 1  # <" + EVIL)
    return report


def page(report: Report, folder: Path) -> str:
    report.write(folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_everything_is_escaped(tmp_path: Path) -> None:
    tags = Tags(page(full(EVIL), tmp_path))
    assert "script" not in tags.names
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    text = "".join(tags.words)
    assert text.count(EVIL) == 8  # <title>, h1, heading, text, header cell, cell, caption, pre
    assert "First <script>" in text and "still first." in text
    assert "\n  rate = 1" in text


def test_nothing_comes_from_outside(tmp_path: Path) -> None:
    text = page(full(), tmp_path)
    tags = Tags(text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(tags.names)
    assert "http" not in text and "@import" not in text and "@font-face" not in text
    links = [value for name, value in tags.attributes if name.endswith("href") or name == "src"]
    assert links and all(link.startswith("#") for link in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)", text))


def test_ids_are_unique_and_references_resolve(tmp_path: Path) -> None:
    text = page(full(), tmp_path)
    tags = Tags(text)
    ids = [value for name, value in tags.attributes if name == "id"]
    links = [value for name, value in tags.attributes if name == "href"] + re.findall(r"url\(([^)]*)\)", text)
    assert len(set(ids)) == len(ids)
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = page(full(), tmp_path / "a"), page(full(), tmp_path / "b")
    assert first == second


def test_ink_follows_the_readers_mode(tmp_path: Path) -> None:
    svgs = re.findall(r"<svg.*?</svg>", page(full(), tmp_path), flags=re.DOTALL)
    assert len(svgs) == 3
    for svg in svgs:
        assert {"var(--grid)", "var(--faint)", "var(--c0)"} <= set(re.findall(r"var\(--\w+\)", svg))
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()


def test_columns_of_numbers_are_aligned_to_the_right(tmp_path: Path) -> None:
    report = Report("t")
    rows: list[list[str | int | float | None]] = [
        ["x", 1234567, 0.123456, "71.2 ± 0.8 %", "2026-11-20", None],
        ["7", None, 2.1e-05, "48 %", "1", None],
    ]
    report.table(["name", "count", "loss", "accuracy", "day", "empty"], rows)
    found = re.findall(r"<td( class=\"number\")?>(.*?)</td>", page(report, tmp_path))
    assert [text for _, text in found[:6]] == ["x", "1,234,567", "0.1235", "71.2 ± 0.8 %", "2026-11-20", "–"]
    assert [bool(kind) for kind, _ in found[6:]] == [False, True, True, True, False, False]


def test_labels_that_would_touch_are_moved_apart() -> None:
    assert _spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert _spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    crowded = _spread([0.2, 0.21, 0.22, 0.3], 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(crowded, crowded[1:], strict=False))
    assert sum(crowded) == pytest.approx(0.2 + 0.21 + 0.22 + 0.3)


def test_letters_no_font_has_stay_text_and_all_others_are_outlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plot(name: str) -> str:
        report = Report("t")
        report.bars_plot("plot", [name], [1.0], [0.0], "y")
        return page(report, tmp_path)

    other = "STIXGeneral"  # comes with matplotlib, as the plain font does
    letter = chr(min(report_module._letters(other) - report_module._letters("DejaVu Sans") - {0}))
    assert "<text" not in plot("abc")
    monkeypatch.setattr(report_module, "_HANGUL_FONTS", ())
    assert f">{letter}</text>" in plot(letter)
    monkeypatch.setattr(report_module, "_HANGUL_FONTS", ("no such font", other))
    assert "<text" not in plot(letter)


def test_plots_leave_matplotlibs_settings_alone(tmp_path: Path) -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    page(full(), tmp_path)
    assert matplotlib.rcParams.copy() == before


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'firth\[report\]'"):
        Report("t").lines_plot("p", {}, "x", "y")


def test_a_report_is_replaced_whole_and_leaves_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.html"
    Report("old").write(path)
    broken = Report("new")
    broken._parts.append("\ud800")  # cannot be encoded: the write fails half-way
    with pytest.raises(UnicodeEncodeError):
        broken.write(path)
    assert "<h1>old</h1>" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_an_empty_plot_is_still_a_plot(tmp_path: Path) -> None:
    report = Report("t")
    report.lines_plot("none", {}, "x", "y")
    report.lines_plot("gaps only", {"a": ([1], [math.nan])}, "x", "y")
    report.bars_plot("none", [], [], [], "y")
    assert page(report, tmp_path).count("<svg") == 3


def test_a_new_page_replaces_none_and_is_written_by_one_process(tmp_path: Path) -> None:
    Report("old").write_new(tmp_path / "a.html")
    with pytest.raises(ConfigError, match="a.html exists already"):
        Report("new").write_new(tmp_path / "a.html")
    with new_file(tmp_path / "b.html"), pytest.raises(ConfigError, match="written by another firth process"):
        Report("new").write_new(tmp_path / "b.html")
    assert "old" in (tmp_path / "a.html").read_text("utf-8")
