"""Columns of tables, recognised by their contents."""

from pathlib import Path

import pytest

from firth.errors import InputError
from firth.tasks.readers.columns import check_not_swapped, fits, guess_columns, names_other_texts, reads_labels
from firth.tasks.readers.texts import parse_columns

TEXTS = [f"the film number {n} was rather {'good' if n % 3 else 'dull'} to watch" for n in range(12)]
LABELS = ["pos" if n % 3 else "neg" for n in range(12)]


def table(path: Path, *columns: list[str], header: list[str] | None = None, name: str = "t.tsv") -> Path:
    rows = [*([header] if header else []), *(list(row) for row in zip(*columns, strict=True))]
    mark = "," if name.endswith(".csv") else "\t"
    (path / name).write_text("".join(mark.join(row) + "\n" for row in rows), "utf-8")
    return path / name


IDS = [str(n) for n in range(12)]


@pytest.mark.parametrize(
    ("columns", "header", "expected"),
    [
        ((LABELS, TEXTS), None, "text=1,label=0"),
        ((TEXTS, LABELS), None, "text=0,label=1"),
        ((IDS, TEXTS, LABELS), None, "text=1,label=2"),
        ((LABELS, TEXTS), ["class", "message"], "text=message,label=class"),
        # Two columns that may be labels, or two that may be texts: ambiguous.
        ((LABELS, LABELS[::-1], TEXTS), None, None),
        ((LABELS, TEXTS, TEXTS[::-1]), None, None),
        # Every row has a label of its own.
        ((IDS, TEXTS), None, None),
        # Known names need no guess, and a name with a comma could not be passed as a flag.
        ((LABELS, TEXTS), ["label", "text"], None),
        ((LABELS, TEXTS), ["the class", "a,b"], None),
    ],
)
def test_labels_come_again_and_texts_are_long(
    tmp_path: Path, columns: tuple[list[str], ...], header: list[str] | None, expected: str | None
) -> None:
    guess = guess_columns(table(tmp_path, *columns, header=header), "tsv", "classify")
    assert (guess and guess.columns) == expected


def test_why_is_said(tmp_path: Path) -> None:
    guess = guess_columns(table(tmp_path, LABELS, TEXTS), "tsv", "classify")
    assert guess is not None
    assert guess.why == "column 1 has 9 words on average, column 0 has 2 different values in 12 rows"
    guess = guess_columns(table(tmp_path, LABELS, TEXTS, header=["class", "message"]), "tsv", "classify")
    assert guess is not None and guess.why.endswith(" different values in 12 rows after the header")


def test_numbers_are_scores_unless_they_count_the_rows(tmp_path: Path) -> None:
    scores = [str(n % 5 / 2) for n in range(12)]
    path = table(tmp_path, IDS, TEXTS, scores, name="t.csv")
    guess = guess_columns(path, "csv", "regress")
    assert guess is not None and guess.columns == "text=1,label=2"
    named = table(tmp_path, TEXTS, scores, header=["what", "how much"], name="n.csv")
    guess = guess_columns(named, "csv", "regress")
    assert guess is not None and guess.columns == "text=what,label=how much"


def test_several_labels_of_a_row(tmp_path: Path) -> None:
    several = ["a|b", "a", "b|c", "c"] * 3
    guess = guess_columns(table(tmp_path, TEXTS, several), "tsv", "multilabel")
    assert guess is not None and guess.columns == "text=0,label=1"


def test_a_header_that_is_asked_for(tmp_path: Path) -> None:
    path = table(tmp_path, LABELS, TEXTS)
    assert (guess_columns(path, "tsv", "classify", header=False) or pytest.fail()).columns == "text=1,label=0"


def test_texts_alone(tmp_path: Path) -> None:
    guess = guess_columns(table(tmp_path, IDS, TEXTS), "tsv", "classify", labelled=False)
    assert guess is not None and guess.columns == "text=1"


def test_columns_fit_a_file_that_has_them(tmp_path: Path) -> None:
    path = table(tmp_path, LABELS, TEXTS, header=["class", "message"])
    assert fits(path, "tsv", {"text": "message", "label": "class"})
    assert not fits(path, "tsv", {"text": "message", "label": "gold"})
    assert fits(path, "tsv", {"text": "message", "label": "gold"}, labelled=False)
    assert fits(path, "tsv", {"text": 1, "label": 0}) and not fits(path, "tsv", {"text": 2})


def test_swapped_columns_are_refused() -> None:
    check_not_swapped(TEXTS, LABELS, "", "t.tsv")
    with pytest.raises(InputError, match="12 different labels of .* 2 different texts of 3: .*swapped .text=0,label=1"):
        check_not_swapped(LABELS, TEXTS, "text=0,label=1", "t.tsv")
    with pytest.raises(InputError, match="each of 12 examples has a label of its own"):
        check_not_swapped(TEXTS, IDS, "", "t.tsv")


def test_a_malformed_row_does_not_hide_the_columns(tmp_path: Path) -> None:
    """Reading the file reports the row; without the columns, the user would be asked for them first."""
    path = table(tmp_path, LABELS, TEXTS, header=["class", "message"])
    path.write_text(path.read_text("utf-8") + "pos\tone tab\ttoo many\n", "utf-8")
    guess = guess_columns(path, "tsv", "classify")
    assert guess is not None and guess.columns == "text=message,label=class"
    path.write_text(path.read_text("utf-8") + "pos\tone tab\ttoo many\n" * 3, "utf-8")
    assert guess_columns(path, "tsv", "classify") is None


def test_one_column_of_texts_may_have_a_name(tmp_path: Path) -> None:
    guess = guess_columns(table(tmp_path, TEXTS, header=["message"]), "tsv", "classify", labelled=False)
    assert guess is not None and (guess.text, guess.has_header) == (0, None)
    assert guess_columns(table(tmp_path, TEXTS), "tsv", "classify", labelled=False) is None
    assert guess_columns(table(tmp_path, TEXTS, header=["text"]), "tsv", "classify", labelled=False) is None


@pytest.mark.parametrize(
    ("header", "others"),
    [
        (["old_label", "text", "label"], True),
        (["id", "text", "label"], True),
        (["label", "text", "id"], True),  # the id is copied
        (["label", "text", "note"], False),
        (["old_label", "words", "label"], False),
        (["text", "label", "second"], True),
    ],
)
def test_names_count_before_the_numbers_of_the_training_data(tmp_path: Path, header: list[str], others: bool) -> None:
    path = table(tmp_path, LABELS, TEXTS, IDS, header=header)
    assert names_other_texts(path, "tsv", parse_columns("text=1,label=0")) is others


def test_texts_that_are_all_labels_are_seen_in_few_rows(tmp_path: Path) -> None:
    columns, labels = parse_columns("text=1,label=0"), ("neg", "pos")
    assert reads_labels(table(tmp_path, TEXTS[:2], LABELS[:2]), "tsv", "classify", columns, labels)
    assert not reads_labels(table(tmp_path, LABELS[:2], TEXTS[:2]), "tsv", "classify", columns, labels)
    assert reads_labels(table(tmp_path, TEXTS[:2], IDS[:2]), "tsv", "regress", columns, ())
    assert reads_labels(table(tmp_path, TEXTS[:2], ["pos|neg", "neg"]), "tsv", "multilabel", columns, labels)
