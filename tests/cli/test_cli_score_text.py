"""``firth score-text``: texts and pairs in, one line or object per text out, errors in one line."""

import json
import math
from pathlib import Path

import pytest

from firth.cli.next_sentence import next_sentence
from firth.inference.model import Model
from firth.inference.text_scores import TextScore, TokenScore


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
    # The column names go to stderr: stdout has one line per text.
    names = done.err.splitlines()[0]
    assert names.split() == ["log-probability", "pseudo-perplexity", "text"]
    first = done.out.splitlines()[0]
    assert names.index("text") == first.index("some words")
    assert not firth("score-text", tiny_run, "a", "--json").err


def test_json_has_each_token(firth, tiny_run: Path) -> None:
    done = firth("score-text", tiny_run, "--json", stdin=b"some words\n\n")
    score = json.loads(done.out)
    assert score["log_probability"] == pytest.approx(sum(t["log_probability"] for t in score["tokens"]))


def test_lines_before_a_bad_one_are_answered_and_its_number_is_said(firth, tiny_run: Path, tmp_path: Path) -> None:
    done = firth("score-text", tiny_run, stdin=b"some words\n\n\x01\nothers\n")
    assert done.code == 2 and "stdin:3: '\\x01' has no tokens" in done.complaint
    assert [line.split("  ")[-1] for line in done.out.splitlines()] == ["some words"]
    coded = firth("score-text", tiny_run, stdin=b"some words\n\n\xff\nothers\n")
    assert coded.code == 2 and "stdin, line 3: not UTF-8" in coded.complaint and coded.out == done.out
    filled = firth("fill-mask", tiny_run, "--json", stdin=b"a [MASK]\nno mask\n")
    assert filled.code == 2 and "stdin:2: 'no mask' has no [MASK]" in filled.complaint
    assert len(filled.out.splitlines()) == 1
    pairs = tmp_path / "p.jsonl"
    pairs.write_text('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": "\\u200b", "sentence_bad": "b"}\n')
    assert f"{pairs}:2: sentence_good: " in firth("score-text", tiny_run, "--pairs", pairs).complaint


def test_blank_lines_are_left_out_and_counted(firth, tiny_run: Path) -> None:
    done = firth("score-text", tiny_run, "--json", stdin=b"a\n\nb\n \n")
    assert len(done.out.splitlines()) == 2
    assert "stdin: 2 blank lines left out" in done.err


def test_pairs_are_summed_up_by_field(firth, tiny_run: Path, pairs: Path) -> None:
    done = firth("score-text", tiny_run, "--pairs", pairs)
    assert done.code == 0 and "mean over paradigms" in done.out
    found = json.loads(firth("score-text", tiny_run, "--pairs", pairs, "--json").out)
    assert set(found["paradigm"]) == {"u", "v"} and found["all"]["pairs"] == 2
    pairs.write_text('{"sentence_good": "a good one", "sentence_bad": "a bad one"}\n')
    names = [line.split("  ")[1] for line in firth("score-text", tiny_run, "--pairs", pairs).out.splitlines()]
    assert names == ["(no field)", "mean over paradigms", "pairs"]


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


def test_perplexities_of_each_text_and_of_all(firth, tiny_run: Path) -> None:
    done = firth("score-text", tiny_run, "the old farmer", "the river")
    read = [
        json.loads(line)
        for line in firth("score-text", tiny_run, "the old farmer", "the river", "--json").out.splitlines()
    ]
    for line, one in zip(done.out.splitlines(), read, strict=True):
        assert one["kind"] == "masked"
        assert float(line.split()[1].replace(",", "")) == pytest.approx(one["perplexity"], abs=0.006)
    values = [t["log_probability"] for one in read for t in one["tokens"]]
    assert f"pseudo-perplexity of all 2 texts: {math.exp(-sum(values) / len(values)):,.2f}" in done.err
    by_token = firth("score-text", tiny_run, "the old farmer", "--tokens").out.splitlines()
    assert [line.split()[-1] for line in by_token[1:]] == [t["token"] for t in read[0]["tokens"]]


def test_a_text_of_which_nothing_is_predicted(firth, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "score_stream", lambda self, texts: iter([TextScore("a", (), "forward", ())]))
    assert firth("score-text", tiny_run, "a").out.split()[-3:] == ["0.00", "-", "a"]


def test_pairs_have_no_tokens_to_print(firth, tiny_run: Path, tmp_path: Path) -> None:
    result = firth("score-text", tiny_run, "--pairs", tmp_path / "none", "--tokens")
    assert (result.code, result.complaint) == (2, "--tokens is for texts: --pairs prints accuracies alone")


def test_a_perplexity_too_large_for_a_number(firth, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = (TokenScore("a", 0, 1, -800.0),)
    scores = [TextScore("a", tokens, "forward", tokens)] * 2
    monkeypatch.setattr(Model, "score_stream", lambda self, texts: iter(scores))
    done = firth("score-text", tiny_run, "a", "a")
    assert done.code == 0 and "perplexity of all 2 texts: inf (2 tokens)" in done.err
    found = json.loads(firth("score-text", tiny_run, "a", "--json").out.splitlines()[0], parse_constant=pytest.fail)
    assert found["perplexity"] is None and found["backward_perplexity"] is None


def test_pairs_that_are_typed_are_answered_at_once(tiny_run: Path, typing) -> None:
    assert typing(lambda: next_sentence(tiny_run), "The queen.\tThe river.", "a\tb", "c\td") == [0, 1, 2]


def test_next_sentence(firth, tiny_run: Path, tmp_path: Path) -> None:
    one = firth("next-sentence", tiny_run, "The queen.", "The river.")
    assert one.code == 0 and one.out.endswith("%  The queen.  |  The river.\n")
    lines = b"The queen.\tThe river.\n\nThe river.\tThe queen.\n"
    several = firth("next-sentence", tiny_run, "--json", stdin=lines)
    assert "stdin: 1 blank line left out" in several.err
    read = [json.loads(line) for line in several.out.splitlines()]
    assert [r["first"] for r in read] == ["The queen.", "The river."]
    assert one.out.startswith(f"{read[0]['follows']:7.2%}")
    assert "stdin:2: 1 fields: expected two texts" in firth("next-sentence", tiny_run, stdin=b"\nalone\n").complaint
    assert "takes two texts" in firth("next-sentence", tiny_run, "alone").complaint
    # The lines before a bad one are answered.
    part = firth("next-sentence", tiny_run, stdin=b"The queen.\tThe river.\nThe queen.\t\nThe river.\tThe queen.\n")
    assert len(part.out.splitlines()) == 1
    assert part.complaint.startswith("stdin:2: '' has no tokens")
    assert "stdin: no pairs" in firth("next-sentence", tiny_run, stdin=b"").complaint
