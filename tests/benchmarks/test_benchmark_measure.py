"""The shared parts of the benchmarks: checks, records, tables, the page."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from firth.bench.measure import Rate, Spread
from firth.data.batch import Batch, Target
from firth.data.rows import pack_lists
from firth.models.config import BertConfig
from firth.systems import SYSTEMS

RATES = [
    Rate("matrix product, float32", Spread((1.0, 2.0, 4.0)), None, 50.0, 1.0),
    Rate("Firth", Spread((1.0, 1.0, 3.0)), 1000.0, 25.0, 0.5),
    Rate("other", Spread((2.0, 4.0, 9.0)), 250.0, 6.25, 0.125),
]


def test_a_difference_that_is_too_large_ends_the_program(script) -> None:
    measure = script("measure")
    assert measure.check("loss", 0.1, 0.1) == {"what": "loss", "difference": 0.1, "tolerance": 0.1}
    for difference in (0.2, float("nan")):
        with pytest.raises(SystemExit, match="loss: differs by .* nothing was measured"):
            measure.check("loss", difference, 0.1)


def test_rates_as_a_table(script) -> None:
    rows = script("measure").rate_table("", RATES, "Firth")["rows"]
    assert [row.get("times") for row in rows] == [None, None, 4.0]
    assert [row["seconds"] for row in rows] == [2.0, 1.0, 4.0]
    assert rows[2]["all_s"] == [2.0, 4.0, 9.0]


def written(script, out: Path, **changes: Any) -> dict[str, Any]:
    measure = script("measure")
    about: dict[str, Any] = {
        "title": "A title",
        "target": "P0, much",
        "about": "About it.",
        "settings": {"n": 3},
        "arguments": Namespace(quick=False, out=out),
        "checks": [measure.check("loss", 0.0, 0.1)],
        "tables": [measure.rate_table("Rates", RATES, "Firth")],
        "notes": ["A note."],
    }
    path = measure.write("some", **{**about, **changes})
    assert path == out / "some.json"
    return json.loads(path.read_text("utf-8"))


def test_a_record_says_all_that_its_figures_depend_on(script, tmp_path: Path) -> None:
    record = written(script, tmp_path)
    assert record["name"] == "some" and record["settings"] == {"n": 3} and record["command"]
    machine = record["machine"]
    assert machine["processor"] and machine["threads"] >= 1 and machine["torch"] and machine["date"]
    assert {"commit", "dirty", "load", "flags", "memory_bytes"} <= set(machine)
    assert "tokenizers" in machine["peers"]


def test_the_page_has_each_record_in_its_place(script, tmp_path: Path) -> None:
    report = script("report")
    assert "Nothing is recorded" in report.page(tmp_path)
    measure, record = script("measure"), written(script, tmp_path)
    for name in ("loader", "encode-mixed"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record | {"title": name}), "utf-8")
    text = report.page(tmp_path)
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## encode-mixed", "## loader", "## A title"]
    assert measure.markdown(record) in text
    assert "| other | 250 | 12% | 4 | 2 | 9 | 4.0× |" in text
    assert "Checked before timing: loss: 0.0e+00 (at most 0.1)." in text and "mean nothing" not in text


def test_a_quick_run_says_that_it_means_nothing(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(script, tmp_path, arguments=Namespace(quick=True, out=tmp_path))
    assert "figures mean nothing" in capsys.readouterr().out


def test_columns_without_a_value_are_left_out(script) -> None:
    measure = script("measure")
    made = measure.table("", (("name", "", "{}"), ("a", "A", "{:.1f}"), ("b", "B", "{}")), [{"name": "x", "b": 0}])
    assert measure._markdown_table(made) == ["|  | B |", "|---|---|", "| x | 0 |"]


def test_operations_are_those_of_the_table_of_systems(script) -> None:
    config = BertConfig(vocab_size=100, width=32, n_layers=3, n_heads=4, feed_forward_width=48)
    lengths = [5, 9, 30]
    tokens = pack_lists([[1] * n for n in lengths])
    index = tokens.ids[:7]
    batch = Batch(tokens, {"mlm": Target(index, index)})
    expected = SYSTEMS["bert"].flops(config, batch)
    assert 3 * script("measure").bert_flops(config, lengths, 7) == pytest.approx(expected)
