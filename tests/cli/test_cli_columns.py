"""Unnamed columns: detected by content, stored with the model, and used for later files."""

import json
import tomllib
from pathlib import Path

TEXTS = [f"the film number {n} was rather {'good' if n % 3 else 'dull'} to watch" for n in range(12)]
LABELS = ["pos" if n % 3 else "neg" for n in range(12)]


def table(folder: Path, *columns: list[str], name: str) -> Path:
    rows = zip(*columns, strict=True)
    (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return folder / name


def test_columns_are_found_once_and_hold_for_all_files(firth, tmp_path: Path) -> None:
    train = table(tmp_path, LABELS * 3, [f"{text} {n}" for n in range(3) for text in TEXTS], name="train.tsv")
    run = tmp_path / "run"
    made = firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run)
    assert made.code == 0, made.err
    assert f"{train}: columns found by content: --columns text=1,label=0 (" in made.err
    assert tomllib.loads((run / "recipe.toml").read_text("utf-8"))["data"]["columns"] == "text=1,label=0"
    # A file of two examples is too small to guess from.
    small = table(tmp_path, LABELS[:2], TEXTS[:2], name="small.tsv")
    scored = firth("evaluate", run, "--data", small)
    assert scored.code == 0 and "columns text=1,label=0, as in the model's training data" in scored.err
    answers = firth("predict", run, "--input", small)
    assert answers.code == 0 and len(answers.out.splitlines()) == 2
    # Columns given by flag take precedence.
    other = table(tmp_path, TEXTS[:3], LABELS[:3], name="other.tsv")
    assert json.loads(firth("evaluate", run, "--data", other, "--columns", "text=0,label=1", "--json").out)


def test_swapped_columns_and_files_in_the_place_of_texts(firth, tmp_path: Path) -> None:
    train = table(tmp_path, LABELS, TEXTS, name="train.tsv")
    run = tmp_path / "run"
    command = ("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run)
    refused = firth(*command, "--columns", "text=0,label=1")
    assert refused.code == 2 and "swapped (text=0,label=1)" in refused.complaint and not run.exists()
    assert firth(*command).code == 0
    meant = firth("predict", run, train)
    assert meant.code == 2 and f"{train} is a file here: --input {train} reads" in meant.complaint


def test_texts_in_another_column_than_the_model_learnt_from_are_refused(firth, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = table(tmp_path, LABELS, TEXTS, name="train.tsv")
    assert firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run).code == 0
    numbered = table(tmp_path, [str(n) for n in range(12)], LABELS, TEXTS, name="numbered.tsv")
    refused = firth("predict", run, "--input", numbered)
    assert refused.code == 2 and not refused.out
    assert "learnt from texts in column 1, but here column 2 has" in refused.complaint
    assert "give --columns text=2, or --columns text=1,label=0 if" in refused.complaint
    assert firth("predict", run, "--input", numbered, "--columns", "text=2").code == 0


def test_names_of_a_header_go_above_the_numbers_that_a_model_has_learnt_from(firth, tmp_path: Path) -> None:
    run, train = tmp_path / "run", table(tmp_path, LABELS, TEXTS, name="train.tsv")
    assert firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run).code == 0
    dates = [f"2024-01-{n + 1:02}" for n in range(12)]
    named = table(tmp_path, ["text", *TEXTS], ["date", *dates], name="named.tsv")
    answers = firth("predict", run, "--input", named)
    assert answers.code == 0 and "text from 'text'" in answers.err
    assert answers.out == firth("predict", run, *TEXTS).out
    pairs = table(tmp_path, ["label", *LABELS], ["sentence1", *TEXTS], ["sentence2", *TEXTS], name="pairs.tsv")
    for command in (("evaluate", run, "--data", pairs), ("predict", run, "--input", pairs)):
        refused = firth(*command)
        assert refused.code == 2 and "a pair of texts, and the model has learnt from single texts" in refused.complaint


def test_similarity_is_a_task_of_the_command_line_too(firth, tiny_run: Path, tmp_path: Path) -> None:
    train = table(tmp_path, TEXTS, TEXTS[::-1], [str(n) for n in range(12)], name="pairs.tsv")
    columns = ("--columns", "text=0,second=1,label=2", "--epochs", "1")
    made = firth(
        "finetune", "--task", "similarity", "--model", tiny_run, "--train", train, *columns, "--out", tmp_path / "r"
    )
    assert made.code == 0, made.err
    recipe = tomllib.loads((tmp_path / "r/recipe.toml").read_text("utf-8"))
    assert (recipe["task"], recipe["head_preset"]) == ("regress", "towers")
    assert made.out.splitlines()[-1].startswith("next: firth evaluate")


def test_a_header_of_names_that_nobody_knows_is_no_example_and_an_example_no_header(firth, tmp_path: Path) -> None:
    """For a model trained on columns given by number."""
    run, train = tmp_path / "run", table(tmp_path, LABELS, TEXTS, name="train.tsv")
    assert firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run).code == 0
    for n in (2, 12):  # a file of two examples is too small to guess from
        named = table(tmp_path, ["Kategorie", *LABELS[:n]], ["Kommentar", *TEXTS[:n]], name=f"named-{n}.tsv")
        scored, answers = firth("evaluate", run, "--data", named), firth("predict", run, "--input", named)
        assert scored.code == answers.code == 0
        assert f"classify, {n} examples" in scored.out and len(answers.out.splitlines()) == n
        for shown in (scored.err, answers.err):
            assert "the first line looks like a header and is no example (--no-header: it is one)" in shown
        every = firth("predict", run, "--input", named, "--no-header")
        assert len(every.out.splitlines()) == n + 1
    # A short first example, whose label is known.
    short = table(tmp_path, ["neg", *LABELS], ["Dull!", *TEXTS], name="short.tsv")
    assert "classify, 13 examples" in firth("evaluate", run, "--data", short).out
    assert len(firth("predict", run, "--input", short).out.splitlines()) == 13
    # A first example whose label is spelt differently is reported, not skipped.
    misspelt = table(tmp_path, ["Neg", *LABELS], [TEXTS[0] + " again", *TEXTS], name="misspelt.tsv")
    refused = firth("evaluate", run, "--data", misspelt)
    assert refused.code == 2 and "misspelt.tsv:1: found the label 'Neg'" in refused.complaint
    assert refused.complaint.endswith("or give --header if line 1 is one")


def test_a_header_above_values(firth, tmp_path: Path) -> None:
    values = [str(n % 5) for n in range(12)]
    run, train = tmp_path / "run", table(tmp_path, values, TEXTS, name="train.tsv")
    assert firth("finetune", "--task", "regress", "--model", "tfidf", "--train", train, "--out", run).code == 0
    named = table(tmp_path, ["Punkte", *values[:3]], ["Kommentar", *TEXTS[:3]], name="named.tsv")
    assert "regress, 3 examples" in firth("evaluate", run, "--data", named).out
    assert len(firth("predict", run, "--input", named).out.splitlines()) == 3


def test_a_short_text_is_no_name_of_a_column(firth, tmp_path: Path) -> None:
    run, train = tmp_path / "run", table(tmp_path, TEXTS, LABELS, name="train.tsv")
    assert firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run).code == 0
    texts = ["Great movie", *TEXTS[:5]]
    numbered = table(tmp_path, [str(n) for n in range(6)], texts, name="numbered.tsv")
    answers = firth("predict", run, "--input", numbered, "--columns", "text=1")
    assert answers.code == 0 and len(answers.out.splitlines()) == 6
    # Without a column of numbers beside it, the header cannot be recognised.
    authors = table(tmp_path, texts, ["kim", "lee", "kim", "lee", "kim", "lee"], name="authors.tsv")
    refused = firth("predict", run, "--input", authors)
    assert refused.code == 2 and "give --header or --no-header" in refused.complaint
    answers = firth("predict", run, "--input", authors, "--no-header")
    assert answers.code == 0 and len(answers.out.splitlines()) == 6


def test_a_label_that_is_a_known_name_makes_no_header(firth, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = table(tmp_path, TEXTS, ["id" if n % 2 else "en" for n in range(1, 13)], name="train.tsv")
    made = firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run)
    assert made.code == 0
    assert tomllib.loads((run / "recipe.toml").read_text("utf-8"))["data"]["columns"] == "text=0,label=1"
    assert json.loads(firth("evaluate", run, "--data", train, "--json").out)["examples"] == 12


def test_keys_of_objects_hold_for_later_files_too(firth, tmp_path: Path) -> None:
    run, train = tmp_path / "run", tmp_path / "train.jsonl"
    rows = [{"text": f"ticket {n}", "body": text, "label": LABELS[n]} for n, text in enumerate(TEXTS)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    command = ("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run)
    assert firth(*command, "--columns", "text=body,label=label").code == 0
    scored = firth("evaluate", run, "--data", train)
    assert scored.code == 0 and "columns text=body,label=label, as in the model's training data" in scored.err
    bodies = firth("predict", run, "--input", train)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS) + "\n", "utf-8")
    plain = firth("predict", run, "--input", lines)
    scores = [[json.loads(line)["probabilities"] for line in one.out.splitlines()] for one in (bodies, plain)]
    assert scores[0] == scores[1]


def test_a_file_of_lines_with_tabs_is_asked_about(firth, tmp_path: Path) -> None:
    run, train = tmp_path / "run", table(tmp_path, LABELS, TEXTS, name="train.txt")
    assert firth("finetune", "--task", "classify", "--model", "tfidf", "--train", train, "--out", run).code == 0
    refused = firth("predict", run, "--input", train)
    assert refused.code == 2 and "line 1 has tabs: give --format tsv" in refused.complaint
    assert len(firth("predict", run, "--input", train, "--format", "tsv").out.splitlines()) == 12
