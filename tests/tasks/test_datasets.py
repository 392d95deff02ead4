"""The table of data sets: hand-made small files in the published formats, and the real files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.tasks.datasets import DATASETS
from firth.tasks.readers.files import Problems
from firth.tasks.reading import read_dataset
from firth.text.records import Question, Text

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "data"
METRICS = {
    "accuracy",
    "char_exact_match",
    "macro_f1",
    "f1",
    "mcc",
    "pearson",
    "spearman",
    "entity_f1",
    "tag_accuracy",
    "exact_match",
    "squad_f1",
    "char_f1",
}


def texts(name: str, folder: str, split: str, problems: Problems | None = None) -> list[Text]:
    records = read_dataset(name, FIXTURES / folder, split, problems or Problems())
    assert all(isinstance(record, Text) for record in records)
    return [record for record in records if isinstance(record, Text)]


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_is_complete(name: str) -> None:
    row = DATASETS[name]
    assert {"train", "dev"} <= set(row.splits) or name == "glue/ax"
    assert row.metrics and set(row.metrics) <= METRICS
    assert all(source.names for source in row.splits.values())
    assert row.labels is None or len(set(row.labels)) == len(row.labels) > 1
    assert row.kind in ("classify", "tag") or row.labels is None


def test_the_table_needs_no_torch() -> None:
    program = "import sys; import firth.tasks.reading, firth.tasks.split; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# -- files as published -----------------------------------------------------------------------------------


def test_snli_leaves_out_pairs_without_gold_label() -> None:
    problems = Problems()
    records = texts("snli", "snli", "train", problems)
    where = f"{FIXTURES}/snli/snli_1.0_train.txt:2"
    assert records[0] == Text("A man reads.", "neutral", where, 'A man reads a "novel.', "1.jpg#0r1n", "1.jpg#0")
    assert [r.label for r in records] == ["neutral", "contradiction"]
    assert problems.left_out == {"no gold label": 1}
    (record,) = texts("snli", "snli", "dev")
    assert (record.text, record.second, record.label) == ("Two dogs run.", "Animals run.", "entailment")


@pytest.mark.parametrize("folder", ["glue", "glue/MNLI"])
def test_mnli_labels_stand_in_the_last_column(folder: str) -> None:
    assert [r.label for r in texts("glue/mnli", folder, "train")] == ["entailment"]
    assert [r.label for r in texts("glue/mnli", folder, "dev")] == ["contradiction"]
    assert [r.label for r in texts("glue/mnli", folder, "dev_mismatched")] == ["neutral"]
    (test,) = texts("glue/mnli", folder, "test")
    assert (test.text, test.second, test.label, test.id) == ("The cat sat.", "It stood.", None, "0")


@pytest.mark.parametrize("folder", ["glue", "glue/diagnostic"])
def test_the_diagnostic_set_of_glue_has_labels_in_its_full_file_only(folder: str) -> None:
    first, *others = texts("glue/ax", folder, "dev")
    assert (first.text, first.second, first.label) == ('The cat "sat.', "The cat did not sit.", "contradiction")
    assert [r.label for r in others] == ["entailment", "neutral", "entailment"]
    test = texts("glue/ax", folder, "test")
    assert [(r.id, r.second, r.label) for r in test] == [("0", "The cat did not sit.", None), ("1", "A dog ran.", None)]


def test_cola_has_a_header_in_the_test_file_only(tmp_path: Path) -> None:
    assert [r.text for r in texts("glue/cola", "glue", "test")] == ["Bill whistled past the house.", 'The "car honked.']
    (tmp_path / "train.tsv").write_text('gj04\t1\t\tThe "sailors rode.\n')
    (record,) = read_dataset("glue/cola", tmp_path, "train", Problems())
    assert isinstance(record, Text) and (record.text, record.label) == ('The "sailors rode.', "1")


def test_qqp_rows_with_missing_columns_are_left_out_and_counted() -> None:
    problems = Problems()
    records = texts("glue/qqp", "glue", "train", problems)
    assert [(r.text, r.second, r.label, r.id) for r in records] == [
        ("What is it?", "What is that?", "1", "0"),
        ("Who?", 'Where "is?', "0", "9"),
    ]
    assert problems.left_out == {"short row": 1, "empty text": 1}


def test_xnli_reads_one_language_and_the_labels_of_its_training_file() -> None:
    assert [(r.text, r.label) for r in texts("xnli", "xnli", "dev")] == [("He went.", "entailment")]
    assert [(r.text, r.label) for r in texts("xnli/de", "xnli", "dev")] == [("Er ging.", "neutral")]
    assert [r.label for r in texts("xnli", "xnli", "train")] == ["contradiction"]


def test_other_published_formats() -> None:
    assert [r.label for r in texts("trec", "trec", "train")] == ["NUM", "HUM"]
    (fine, _) = texts("trec/fine", "trec", "train")
    assert (fine.text, fine.label) == ("How many people live in M\xe1laga ?", "NUM:count")
    (business, world) = texts("ag-news", "ag-news", "train")
    assert (business.text, business.label) == (
        'Wall St. Bears Short-sellers, Wall Street\'s band, are "back".',
        "Business",
    )
    assert world.label == "World"
    (news,) = texts("klue/tc", "klue-tc", "train")
    assert (news.label, news.id) == ("생활문화", "ynat-v1_train_00000")
    assert [r.text for r in texts("kornli", "kornli", "train")] == ["비가 온다.", "개가 달린다."]  # two files together
    assert len(read_dataset("swag", FIXTURES / "swag", "train", Problems())) == 2
    assert len(read_dataset("swag", FIXTURES / "swag", "test", Problems())) == 1
    assert len(read_dataset("arc", FIXTURES / "arc", "train", Problems())) == 2
    assert len(read_dataset("arc", FIXTURES / "arc-csv", "dev", Problems())) == 3


def test_treebanks_are_found_by_the_end_of_their_name(tmp_path: Path) -> None:
    text = (FIXTURES / "words.conllu").read_text("utf-8")
    (tmp_path / "en_x-ud-train.conllu").write_text(text, "utf-8")
    assert len(read_dataset("ud-pos", tmp_path, "train", Problems())) == 3
    (tmp_path / "en_y-ud-train.conllu").write_text(text, "utf-8")
    with pytest.raises(InputError, match="found en_x-ud-train.conllu, en_y-ud-train.conllu, expected one"):
        read_dataset("ud-pos", tmp_path, "train", Problems())


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("trec", "no colon here", r"train\.txt:1: found 'no colon here', expected COARSE:fine"),
        ("trec", "NUM:count", r"train\.txt:1: found 'NUM:count'"),
        ("trec", "HUMAN:ind Who ?", r"train\.txt:1: found the label 'HUMAN', expected one of the 6 known \(ABBR, DESC"),
    ],
)
def test_rows_that_are_not_of_the_data_set(tmp_path: Path, name: str, line: str, message: str) -> None:
    (tmp_path / "train.txt").write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        read_dataset(name, tmp_path, "train", Problems())


def test_a_class_that_ag_news_lacks(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('"5","title","text"\n')
    with pytest.raises(InputError, match=r"train\.csv:1: found \['5'\] and 3 columns, expected class 1-4"):
        read_dataset("ag-news", tmp_path, "train", Problems())


# -- the real files: row counts as in the folder's README ----------------------------------------------

REAL = {
    "glue/cola": ("glue/CoLA", 7696, 1043),
    "glue/sst2": ("glue/SST-2", 67349, 872),
    "imdb": ("imdb", 22565, 2435),
    "glue/mrpc": ("glue", 3668, 408),
    "glue/qqp": ("glue", 9784, 4914),
    "glue/stsb": ("glue", 5175, 1500),
    "glue/qnli": ("glue", 3510, 1000),
    "glue/rte": ("glue", 2241, 277),
    "glue/wnli": ("glue", 635, 71),
    "squad1": ("squad-v1.1", 2573, 566),
    "squad2": ("squad-v2.0", 5206, None),
    "korquad1": ("korquad-v1.0", 3378, 1009),
    "dream": ("dream", 6116, 2040),
    "conll2003": ("conll2003", 14041, 3250),
    "ud-pos": ("ud-english-ewt", 12544, 2001),
    "ud-pos in Korean": ("ud-korean-gsd", 4400, 950),
    "klue/ner": ("klue-ner", 5000, 2500),
    "klue/nli": ("klue-nli", None, 3000),
    "klue/sts": ("klue-sts", None, 519),
    "kornli": ("kornli", None, 2490),
    "korsts": ("korsts", 5749, 1500),
    "nsmc": ("nsmc", 100000, 25000),
    "trec": ("trec", 5452, None),
    "trec/fine": ("trec", 5452, None),
    "ag-news": ("ag-news", 8500, 1501),
    "sms-spam": ("sms-spam", 4460, 557),
    "movie-reviews": ("movie-reviews", 1600, 200),
    "arc": ("arc-easy", None, 2251),
    "arc, challenge": ("arc-challenge", None, 1119),
}
LEFT_OUT = {"nsmc dev": 2, "arc dev": 102 + 2, "arc, challenge dev": 23}


def test_real_rows(shared_data: Path) -> None:
    found, expected, left_out = {}, {}, {}
    for key, (folder, n_train, n_dev) in REAL.items():
        for split, n in (("train", n_train), ("dev", n_dev)):
            if n is None:
                continue
            problems, part = Problems(), f"{key} {split}"
            records = read_dataset(key.partition(",")[0].partition(" ")[0], shared_data / folder, split, problems)
            left = sum(problems.left_out.values())
            found[part], expected[part] = len(records) + left, n
            if left:
                left_out[part] = left
    assert (found, left_out) == (expected, LEFT_OUT)


def test_real_records_look_right(shared_data: Path) -> None:
    question = read_dataset("korquad1", shared_data / "korquad-v1.0", "dev", Problems())[0]
    assert isinstance(question, Question) and question.group == "반류마루" and question.answers
    similar = read_dataset("klue/sts", shared_data / "klue-sts", "dev", Problems())[0]
    assert isinstance(similar, Text) and similar.label == pytest.approx(34 / 7)


def test_similar_in_klue_is_what_its_annotators_call_so(shared_data: Path) -> None:
    rows = json.loads((shared_data / "klue-sts" / "dev.json").read_text("utf-8"))
    records = read_dataset("klue/sts", shared_data / "klue-sts", "dev", Problems())
    positive_from = DATASETS["klue/sts"].positive_from
    similar = [isinstance(r, Text) and isinstance(r.label, float) and r.label >= (positive_from or 0) for r in records]
    assert similar == [row["labels"]["binary-label"] == 1 for row in rows] and 0 < sum(similar) < len(rows)
