"""Labelled data for fine-tuning: the user's own files, published data sets, and what follows for the head."""

import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from firth.errors import ConfigError, InputError
from firth.finetuning.labelled import LabelledData, check_metric, read_labelled
from firth.finetuning.own_files import iter_file
from firth.finetuning.recipe import LabelledConfig
from firth.tasks.kinds import kind_of_task
from firth.tasks.learnt import reads_pairs
from firth.tasks.readers.files import Problems

ROWS = [(f"text {i}", "ab"[i % 2]) for i in range(20)]


def table(rows: list[tuple[str, ...]], header: str = "text\tlabel") -> str:
    return "\n".join([header, *("\t".join(row) for row in rows)]) + "\n"


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return str(path)


def read(task: str, head: dict[str, Any] | None = None, **config: Any) -> LabelledData:
    return read_labelled(task, LabelledConfig(**config), head or {})


def test_a_tenth_is_held_out_and_the_dev_file_is_apart(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "t.tsv", table(ROWS)), write(tmp_path / "d.tsv", table([("x", "b")]))
    data = read("classify", train=train, dev=dev)
    assert (len(data.train), len(data.held), len(data.dev["dev"])) == (18, 2, 1)
    assert {r.text for r in data.train} | {r.text for r in data.held} == {text for text, _ in ROWS}
    assert data.options == {"labels": ["a", "b"]} and data.metrics[0] == "accuracy"
    again = read("classify", train=train, dev=dev)
    assert [r.text for r in again.held] == [r.text for r in data.held]


def test_groups_that_hold_out_far_more_than_a_tenth_are_said(tmp_path: Path) -> None:
    rows = [(text, label, "treated" if i % 4 < 2 else "control") for i, (text, label) in enumerate(ROWS)]
    data = read("classify", train=write(tmp_path / "t.tsv", table(rows, "text\tlabel\tgroup")))
    assert any("10 of 20 training examples are held out" in note and "2 groups" in note for note in data.notes)
    assert not any("held out" in note for note in read("classify", train=write(tmp_path / "u.tsv", table(ROWS))).notes)


def test_a_header_is_of_tables_of_texts(tmp_path: Path) -> None:
    words = write(tmp_path / "t.tsv", "token\tpos\na\tX\n\nb\tY\n")
    with pytest.raises(ConfigError, match="--header and --no-header are of tables of texts, not of tag"):
        read("tag", train=words, header="yes")


def test_choices_may_be_made_on_the_dev_file(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "t.tsv", table(ROWS)), write(tmp_path / "d.tsv", table([("x", "b")]))
    data = read("classify", train=train, dev=dev, choose_on="dev")
    assert len(data.train) == 20 and data.held == data.dev["dev"]
    with pytest.raises(ConfigError, match="data.choose_on='dev' requires a dev file: give --dev"):
        read("classify", train=train, choose_on="dev")


def test_a_limit_draws_the_same_examples_whatever_their_order(tmp_path: Path) -> None:
    forward = read("classify", train=write(tmp_path / "t.tsv", table(ROWS)), limit=8)
    backward = read("classify", train=write(tmp_path / "u.tsv", table(ROWS[::-1])), limit=8)
    assert len(forward.train) + len(forward.held) == 8
    assert {r.text for r in forward.train} == {r.text for r in backward.train}
    assert "data.limit: 8 of 20 training examples" in forward.notes


def test_a_label_that_only_the_dev_file_has_is_an_error_at_its_line(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table(ROWS))
    dev = write(tmp_path / "d.tsv", table([("x", "b"), ("y", "c")]))
    with pytest.raises(InputError, match=r"d.tsv:3: .*'c'.*a, b"):
        read("classify", train=train, dev=dev)
    data = read("classify", train=train, dev=dev, skip_bad=True)
    assert len(data.dev["dev"]) == 1
    assert "malformed rows skipped: 1; the first 1:" in data.notes and "d.tsv:3" in data.notes[-1]
    # Labels that the recipe names come before those of the data.
    assert len(read("classify", {"labels": ["a", "b", "c"]}, train=train, dev=dev).dev["dev"]) == 2


def test_texts_in_quotation_marks_are_noted(tmp_path: Path) -> None:
    quoted = table([(f'"{text}"', label) for text, label in ROWS])
    found = read("classify", train=write(tmp_path / "t.tsv", quoted))
    (note,) = [note for note in found.notes if "quotation marks" in note]
    assert note.endswith("give --format csv, which reads quoted fields, between tabs too")
    read_as = read("classify", train=tmp_path / "t.tsv", format="csv")
    assert not any("in quotation marks" in note for note in read_as.notes)
    assert sorted(r.text for r in [*read_as.train, *read_as.held]) == sorted(text for text, _ in ROWS)
    plain = read("classify", train=write(tmp_path / "u.tsv", table(ROWS)))
    assert not any("quotation marks" in note for note in plain.notes)


def test_training_examples_that_are_all_left_out(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "t.tsv", table(ROWS)), write(tmp_path / "d.tsv", table([("x", "p"), ("y", "q")]))
    with pytest.raises(InputError, match=r"^0 training examples left: give more examples$"):
        read("classify", {"labels": ["p", "q"]}, train=train, dev=dev, skip_bad=True, choose_on="dev")


def test_a_tag_that_only_the_dev_file_has(tmp_path: Path) -> None:
    train = write(tmp_path / "t.conll", "Ann B-PER\nsang O\n\nBob B-PER\nLee I-PER\n\nnow O\n")
    dev = write(tmp_path / "d.conll", "in O\nOslo B-LOC\n")
    with pytest.raises(InputError, match=r"d.conll:1: .*'B-LOC'"):
        read("tag", train=train, dev=dev)


def test_all_examples_of_one_label(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table([(text, "a") for text, _ in ROWS]))
    with pytest.raises(InputError, match=r"t.tsv:2: all 20 examples have the label 'a'; expected two or more"):
        read("classify", train=train)
    train = write(tmp_path / "t.tsv", table([(text, "") for text, _ in ROWS]))
    with pytest.raises(InputError, match="none has a label; name the column of labels with --columns"):
        read("multilabel", train=train)
    train = write(tmp_path / "t.conll", "Ann O\n\nsang O\n\nnow O\n")
    with pytest.raises(InputError, match=r"every word has the tag O; expected some entities"):
        read("tag", train=train)


def test_too_few_examples_are_refused_with_numbers(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table(ROWS))
    with pytest.raises(
        InputError, match=r"1 training example, without the held-out ones \(data.limit=2\): all have the"
    ):
        read("classify", train=train, limit=2)
    tagged = write(tmp_path / "t.conll", "Ann B-PER\n\nOslo B-LOC\n\nnow O\n")
    with pytest.raises(InputError, match="1 training example, .*: expected at least 2: raise --limit"):
        read("tag", train=tagged, limit=2)
    numbers = write(tmp_path / "n.tsv", table([(text, "3") for text, _ in ROWS], "text\tscore"))
    with pytest.raises(InputError, match="18 training examples, .*: all have the value 3.0; expected two values"):
        read("regress", train=numbers)


def test_rare_and_common_labels_are_said_with_numbers(tmp_path: Path) -> None:
    rows = [(f"text {i}", "a" if i > 1 else "b") for i in range(20)] + [("one more", "c")]
    data = read(
        "classify",
        train=write(tmp_path / "t.tsv", table(rows)),
        dev=write(tmp_path / "d.tsv", table(rows)),
        choose_on="dev",
    )
    assert "labels with a single training example: 'c'" in data.notes
    common = "86% of the training examples have the label 'a', which accuracy rewards"
    assert any(note.startswith(common) for note in data.notes)
    named = read("classify", {"labels": ["a", "b", "c", "d"]}, train=str(tmp_path / "t.tsv"))
    assert any("without a training example" in note and "'d'" in note for note in named.notes)
    even = read("classify", train=write(tmp_path / "e.tsv", table(ROWS)))
    assert not any("training example" in note for note in even.notes)


def test_labels_that_differ_in_case_alone_are_said(tmp_path: Path) -> None:
    rows = [(f"text {i}", "World" if i % 2 else "Sports") for i in range(20)] + [("one", "world"), ("more", "world")]
    data = read("classify", train=write(tmp_path / "t.tsv", table(rows)))
    assert "labels that differ only in case are learned as different ones: 'World', 'world'" in data.notes
    plain = read("classify", train=write(tmp_path / "e.tsv", table(rows[:20])))
    assert not any("case" in note for note in plain.notes)


def test_labels_of_one_number_are_said_and_composed_letters_are_one(tmp_path: Path) -> None:
    rows = [(f"text {i}", "1" if i % 2 else "0") for i in range(20)] + [("one", "1.0"), ("more", "1.0")]
    data = read("classify", train=write(tmp_path / "t.tsv", table(rows)))
    assert "labels of the same number are learned as different ones: '1', '1.0'" in data.notes
    words = [
        (f"text {i}", unicodedata.normalize(("NFC", "NFD")[i % 2], "긍정" if i % 3 else "부정")) for i in range(20)
    ]
    composed = read("classify", train=write(tmp_path / "k.tsv", table(words)))
    assert composed.options["labels"] == ["긍정", "부정"]


def test_numbers_give_their_range(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table([("x", "1.5"), ("y", "-2"), ("z", "4")], "text\tscore"))
    assert read("regress", train=train).options == {"lowest": -2.0, "highest": 4.0}


def test_large_or_close_numbers_give_their_scale(tmp_path: Path) -> None:
    for values, centre, scale in (
        (("100", "300", "500"), 300, 200 * math.sqrt(2 / 3)),
        (("0.01", "0.03", "0.02"), 0.02, 0.01 * math.sqrt(2 / 3)),
    ):
        train = write(tmp_path / "t.tsv", table([(f"x {value}", value) for value in values], "text\tscore"))
        options = read("regress", train=train).options
        assert options["centre"] == pytest.approx(centre) and options["scale"] == pytest.approx(scale)


def test_labels_joined_by_commas_are_noted(tmp_path: Path) -> None:
    rows = [(f"text {i}", ("a, b", "a", "b")[i % 3]) for i in range(30)]
    data = read("multilabel", train=write(tmp_path / "t.tsv", table(rows, "text\tlabel")))
    assert any("no example has more than one label, and some look like several ('a, b')" in note for note in data.notes)


@pytest.mark.parametrize("tagged", ["Ann {}PER\nLee I-PER\nsang{} O\n", "Ann {}PER\nsang{} O\n"])
def test_tags_give_all_of_their_entities(tmp_path: Path, tagged: str) -> None:
    train = write(tmp_path / "t.conll", "\n".join(tagged.format("B-", i) for i in range(3)))
    data = read("tag", train=train)
    # I-PER may stand in other data, even if not in this.
    assert data.options == {"unit": "word", "scheme": "BIO", "labels": ["O", "B-PER", "I-PER"]}
    assert read("tag", {"scheme": "BIOES"}, train=train).options["labels"] == ["O", *(f"{p}-PER" for p in "BIES")]
    with pytest.raises(ConfigError, match="head.scheme='plain', but the tags are of entities"):
        read("tag", {"scheme": "plain"}, train=train)


def test_plain_tags_have_no_entities_to_score(tmp_path: Path) -> None:
    train = write(tmp_path / "t.conll", "Ann NOUN\nsang VERB\n\nBob NOUN\n\nnow ADV\n")
    data = read("tag", train=train)
    assert data.options == {"unit": "word", "scheme": "plain", "labels": ["ADV", "NOUN", "VERB"]}
    assert data.metrics == ("tag_accuracy",)


def test_a_file_of_klue_needs_no_format(tmp_path: Path) -> None:
    header = "## 컬럼명 : CHAR\tNE_TAG\n"
    sentences = "".join(f"## id_{i}\t<서울:LC>에 {i}\n서\tB-LC\n울\tI-LC\n에\tO\n \tO\n{i}\tO\n\n" for i in range(3))
    for text in (header + sentences, sentences):
        data = read("tag", train=write(tmp_path / "t.tsv", text))
        assert data.options == {"unit": "character", "scheme": "BIO", "labels": ["O", "B-LC", "I-LC"]}
        assert {record.text for record in data.train + data.held} == {"서울에 0", "서울에 1", "서울에 2"}
    words = read("tag", train=write(tmp_path / "w.tsv", "".join(f"##\tO\nSeoul\tB-LC\n{i}\tO\n\n" for i in range(3))))
    assert words.options["unit"] == "word"


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_scores_of_klue_are_for_its_entities_alone(tmp_path: Path, scheme: str) -> None:
    for entity, known in (("PS", True), ("CITY", False)):
        train = write(tmp_path / "t.conll", "\n".join(f"서 B-{entity}\n울 I-{entity}\n{i} O\n" for i in range(3)))
        head = {"scheme": scheme}
        data = read("tag", head, train=train)
        assert data.options["unit"] == "character"
        check_metric(data, "entity_f1", data.options["labels"])
        for metric in ("char_f1", "char_f1_without_o", "entity_macro_f1"):
            if known:
                check_metric(data, metric, data.options["labels"])
            else:
                with pytest.raises(ConfigError, match=f"metric='{metric}': expected one of entity_f1, tag_accuracy"):
                    check_metric(data, metric, data.options["labels"])
        # Labels of the head without training examples count too.
        with pytest.raises(ConfigError, match="metric='char_f1'"):
            check_metric(data, "char_f1", [*data.options["labels"], "B-CITY"])


def test_labels_of_the_recipe_are_texts(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table([(text, str(i % 2)) for i, (text, _) in enumerate(ROWS)]))
    for named in ([0, 1], "01"):
        with pytest.raises(ConfigError, match=r"^head\.labels=.*: expected a list of texts, such as head\.labels=\["):
            read("classify", {"labels": named}, train=train)


def test_a_claim_without_evidence_is_a_pair(tmp_path: Path) -> None:
    claims = [
        {"claim": text, "evidence": ["b"] if i % 2 else [], "label": ("SUPPORTS", "NOT ENOUGH INFO")[i % 2]}
        for i, (text, _) in enumerate(ROWS)
    ]
    write(tmp_path / "train.jsonl", "".join(json.dumps(claim) + "\n" for claim in claims))
    data = read("fact-checking", folder=str(tmp_path))
    assert data.has_pairs and reads_pairs(data.train)
    assert not read("classify", train=write(tmp_path / "u.tsv", table(ROWS))).has_pairs


def test_f1_is_of_two_labels(tmp_path: Path) -> None:
    data = read("classify", train=write(tmp_path / "t.tsv", table(ROWS)))
    check_metric(data, "f1", ["a", "b"])
    with pytest.raises(ConfigError, match="metric='f1': expected one of accuracy, macro_f1, mcc"):
        check_metric(data, "f1", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("classify", {}, "--train is missing"),
        ("classify", {"folder": "x"}, "--data is for published data sets"),
        ("glue/sst2", {}, "give the folder that holds its files with --data"),
        ("glue/sst2", {"folder": "x", "train": "y"}, "leave out --train, --dev, --columns, --header and --format"),
        ("clasify", {}, "'clasify' is not known: kinds are classify, .*did you mean 'classify'"),
        ("glue/sst", {}, "did you mean 'glue/sst2'"),
        (
            "tag",
            {"train": "t.csv"},
            "t.csv: words and tags are read from columns separated by tabs or spaces, not commas",
        ),
        ("answer", {"train": "t.jsonl"}, "t.jsonl: questions are read from one JSON document in the layout of SQuAD"),
        ("tag", {"train": "t.xyz"}, "t.xyz: cannot detect the format from its name: give --format conll or "),
        ("tag", {"train": "t.conll", "format": "squad"}, "--format squad: expected one of conll"),
        ("tag", {"train": "t.jsonl", "columns": "word=0"}, "--columns does not apply to the format jsonl"),
        ("tag", {"train": "t.conll", "columns": "text=0"}, "expected numbers of columns such as word=0,tag=3"),
        ("tag", {"train": "t.conll", "columns": "word=0,tag=--3"}, "expected numbers of columns such as word=0,tag=3"),
        ("classify", {"train": "t.tsv", "format": "conll"}, "--format conll: expected one of tsv, csv, jsonl"),
    ],
)
def test_refusals(task: str, config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(task, **config)


def test_a_kind_of_each_name() -> None:
    assert [kind_of_task(name) for name in ("tag", "klue/ner", "squad2")] == ["tag", "tag", "answer"]


def test_a_published_data_set_from_its_folder(tmp_path: Path) -> None:
    rows = [(str(i), f"good {i}", f"film {i}", str(i % 2)) for i in range(20)]
    header = "index\tsentence1\tsentence2\tlabel"
    write(tmp_path / "WNLI" / "train.tsv", table(rows, header))
    write(tmp_path / "WNLI" / "dev.tsv", table(rows[:4], header))
    data = read("glue/wnli", folder=str(tmp_path))
    assert (len(data.train) + len(data.held), len(data.dev["dev"])) == (20, 4)
    assert data.options == {"labels": ["0", "1"]} and data.train[0].second is not None
    (tmp_path / "WNLI" / "dev.tsv").unlink()
    data = read("glue/wnli", folder=str(tmp_path))
    assert data.dev == {} and any("no dev file of glue/wnli" in note for note in data.notes)


def test_a_file_without_labels_is_read_for_predictions(tmp_path: Path) -> None:
    config = LabelledConfig(columns="text=1", header="no")
    (record,) = iter_file(
        "classify", Path(write(tmp_path / "t.tsv", "7\tsome text\n")), config, Problems(), labelled=False
    )
    assert (record.text, record.label) == ("some text", None)
    (record,) = iter_file(
        "tag", Path(write(tmp_path / "t.conll", "Ann\nsang\n")), LabelledConfig(), Problems(), labelled=False
    )
    assert (record.words, record.tags) == (("Ann", "sang"), None)


def test_examples_of_the_dev_file_that_are_training_examples_too_are_said(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table(ROWS))
    dev = write(tmp_path / "d.tsv", table([*ROWS[:2], ("new", "a"), ("newer", "b")]))
    said = [note for note in read("classify", train=train, dev=dev).notes if note.startswith("dev: ")]
    assert said == [
        "dev: 2 of 4 examples are training examples too: its score does not say how well the model does on new ones"
    ]
    assert not any("training examples too" in note for note in read("classify", train=train).notes)


def test_pairs_and_single_texts_are_not_mixed(tmp_path: Path) -> None:
    single = write(tmp_path / "single.tsv", table(ROWS))
    rows = [(text, "another", label) for text, label in ROWS]
    pairs = write(tmp_path / "pairs.tsv", table(rows, "text\tsecond\tlabel"))
    for train, dev in ((single, pairs), (pairs, single)):
        with pytest.raises(InputError, match=r"pairs\.tsv has pairs of texts, .*single\.tsv single texts: .*--columns"):
            read("classify", train=train, dev=dev)
    assert len(read("classify", train=pairs, dev=pairs).dev["dev"]) == len(rows)


def test_questions_about_one_paragraph_are_not_shared_examples(tmp_path: Path) -> None:
    def squad(name: str, words: str) -> str:
        asked = [
            {"id": f"{name}{n}", "question": f"{words} {n}?", "answers": [{"text": "Ann", "answer_start": 0}]}
            for n in range(4)
        ]
        articles = [{"paragraphs": [{"context": f"Ann sang {n}.", "qas": [asked[n]]}]} for n in range(4)]
        return write(tmp_path / f"{name}.json", json.dumps({"data": articles}))

    train, dev = squad("train", "who sang"), squad("dev", "who was it")
    assert not any("training examples too" in note for note in read("answer", train=train, dev=dev).notes)
    assert any("4 of 4 examples are" in note for note in read("answer", train=train, dev=train).notes)


def test_a_dev_file_may_lack_the_header_of_the_training_file(tmp_path: Path) -> None:
    rows = [(str(n), "ab"[n % 2], f"a longer text with number {n}") for n in range(20)]
    for header in ("id\tv1\tv2", "n\tlabel\ttext"):
        train = write(tmp_path / "t.tsv", table(rows, header))
        dev = write(tmp_path / "d.tsv", "".join(f"{label}\t{text} again\n" for _, label, text in rows))
        data = read("classify", train=train, dev=dev)
        assert [record.label for record in data.dev["dev"]] == [label for _, label, _ in rows]
        assert data.dev["dev"][3].text == "a longer text with number 3 again"


def test_columns_that_were_found_hold_when_the_recipe_is_read_again(tmp_path: Path) -> None:
    """A run reads its files a second time, by the columns that its recipe then contains."""
    rows = [("ab"[n % 2], f"a longer text with number {n}") for n in range(20)]
    named = write(tmp_path / "t.tsv", table(rows, "category\tmessage"))
    plain = write(tmp_path / "p.tsv", "".join(f"{label}\t{text}\n" for label, text in rows))
    known = write(tmp_path / "k.tsv", table([(text, label) for label, text in rows]))
    for train, dev in ((named, plain), (named, known), (plain, known), (plain, named)):
        first = read("classify", train=train, dev=dev)
        again = read("classify", train=train, dev=dev, columns=first.columns)
        for data in (first, again):
            assert list(data.options["labels"]) == ["a", "b"] and len(data.dev["dev"]) == 20
            assert {record.text for record in data.dev["dev"]} == {text for _, text in rows}


def test_a_header_is_no_example_where_columns_are_given_by_number(tmp_path: Path) -> None:
    rows = [("ab"[n % 2], f"a longer text with number {n}") for n in range(20)]
    train = write(tmp_path / "t.tsv", table(rows, "category\tmessage"))
    data = read("classify", train=train, columns="text=1,label=0")
    assert list(data.options["labels"]) == ["a", "b"]
    assert any("the first line looks like a header and is no example" in note for note in data.notes)
    meant = read("classify", train=train, columns="text=1,label=0", header="no")
    assert list(meant.options["labels"]) == ["a", "b", "category"]


def test_the_training_file_is_read_first(tmp_path: Path) -> None:
    dev = write(tmp_path / "d.tsv", "a\tb\n")
    write(tmp_path / "train.tsv", table(ROWS))
    with pytest.raises(InputError, match=r"trian.tsv: no such file; did you mean .*train.tsv\?"):
        read("classify", train=str(tmp_path / "trian.tsv"), dev=dev)


def test_commas_in_the_place_of_tabs_are_said(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", "".join(f"{label},{text}\n" for text, label in ROWS))
    with pytest.raises(InputError, match=r"expected a text and a label, separated by a tab; .* are --format csv"):
        read("classify", train=train)


def test_words_and_tags_the_wrong_way_round_are_refused(tmp_path: Path) -> None:
    lines = "".join(f"{'NV'[n % 2]} word{n}\n" + "\n" * (n % 5 == 0) for n in range(150))
    with pytest.raises(InputError, match="150 different tags and 2 different words: words and tags are swapped"):
        read("tag", train=write(tmp_path / "t.conll", lines))


def test_a_dev_file_with_its_columns_the_other_way_round_is_refused(tmp_path: Path) -> None:
    rows = [("ab"[n % 2], f"a longer text with number {n}") for n in range(20)]
    train = write(tmp_path / "t.tsv", "".join(f"{label}\t{text}\n" for label, text in rows))
    dev = write(tmp_path / "d.tsv", "".join(f"{text}\t{label}\n" for label, text in rows))
    with pytest.raises(InputError, match=r"d\.tsv: .*t\.tsv has its texts in column 1, but here column 0 has"):
        read("classify", train=train, dev=dev)
    # Given columns apply to both.
    with pytest.raises(InputError, match=r"d\.tsv:1: found the label"):
        read("classify", train=train, dev=dev, columns="text=1,label=0")


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: give the file of examples, which it has none of"):
        read("classify", train=str(tmp_path))
    write(tmp_path / "b.tsv", table(ROWS))
    with pytest.raises(InputError, match=r"is a folder: give the file of examples, such as .*b\.tsv"):
        read("tag", train=str(tmp_path))


def test_sentences_without_blank_lines_between_them_are_said(tmp_path: Path) -> None:
    train = write(tmp_path / "t.conll", "Ann B-PER\nwalked O\n" * 600)
    with pytest.raises(InputError, match="one sentence of 1,200 words; expected a blank line after each sentence"):
        read("tag", train=train)


def test_a_dev_file_may_have_questions_that_the_model_never_refuses(tmp_path: Path) -> None:
    def squad(name: str, found: list[list[dict[str, Any]]]) -> str:
        asked = [{"id": f"{name}{n}", "question": f"{name} {n}?", "answers": each} for n, each in enumerate(found)]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ann sang.", "qas": asked}]}]}))
        return str(path)

    answer = [{"text": "Ann", "answer_start": 0}]
    train, dev = squad("train", [answer] * 4), squad("dev", [answer, [], []])
    assert "dev: 2 of 3 questions have no answer, but the model always gives one (head.can_refuse=false)" in (
        read("answer", train=train, dev=dev).notes
    )
    assert not any("always gives" in note for note in read("answer", train=dev, dev=dev).notes)
