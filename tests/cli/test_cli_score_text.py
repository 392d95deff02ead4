"""``firth score-text``: texts and pairs in, one line or one object out, and what is wrong said in one line."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"sentence_good": "a good one", "sentence_bad": "a bad one", "field": "f", "UID": "u"},
        {"sentence_good": "b good one", "sentence_bad": "b bad one", "field": "g", "UID": "v"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_texts_get_a_number_each(firth, tiny_run: Path) -> None:
    done = firth("score-text", tiny_run, "some words", "others")
    assert done.code == 0
    assert [line.split("  ")[-1] for line in done.out.splitlines()] == ["some words", "others"]
    assert float(done.out.split()[0]) < 0


def test_json_has_each_token(firth, tiny_run: Path) -> None:
    done = firth("score-text", tiny_run, "--json", stdin=b"some words\n\n")
    score = json.loads(done.out)
    assert score["log_probability"] == pytest.approx(sum(t["log_probability"] for t in score["tokens"]))


def test_pairs_are_summed_up_by_field(firth, tiny_run: Path, pairs: Path) -> None:
    done = firth("score-text", tiny_run, "--pairs", pairs)
    assert done.code == 0 and "mean over paradigms" in done.out
    found = json.loads(firth("score-text", tiny_run, "--pairs", pairs, "--json").out)
    assert set(found["paradigm"]) == {"u", "v"} and found["all"]["pairs"] == 2


def test_what_is_wrong_is_said_in_one_line(firth, tiny_run: Path, pairs: Path, tmp_path: Path) -> None:
    both = firth("score-text", tiny_run, "text", "--pairs", pairs)
    assert both.code == 2 and "not both" in both.complaint
    nothing = firth("score-text", tiny_run)
    assert nothing.code == 2 and "no text" in nothing.complaint
    missing = firth("score-text", tiny_run, "--pairs", tmp_path / "none.jsonl")
    assert missing.code == 2 and "none.jsonl" in missing.complaint
    pairs.write_text('{"sentence_good": "a"}\n')
    half = firth("score-text", tiny_run, "--pairs", pairs)
    assert half.code == 2 and "pairs.jsonl:1" in half.complaint and "sentence_bad" in half.complaint
