"""firth prepare with cleaning, weights and held-out text: the corpus, its data card, and a run that is killed."""

import gzip
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import firth.corpus.prepare as prepare_module
import firth.corpus.survey as survey_module
from firth.corpus.clean import OPTIONAL, Cleaning
from firth.corpus.hold_out import LEAST_HELD_OUT, is_held_out
from firth.corpus.prepare import prepare
from firth.data.shards import Corpus, read_manifest
from firth.errors import ConfigError, InputError
from firth.text.corpus import CorpusReader

NOTICE = "This notice of the old farmer stands below each of the texts."


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def dirty(tiny_text: Path, tmp_path: Path) -> Path:
    """The tiny text with duplicates, a near-duplicate, a notice below every third document, and a table."""
    documents = tiny_text.read_text("utf-8").strip().split("\n\n")
    changed = [f"{text}\n{NOTICE}" if i % 3 == 0 else text for i, text in enumerate(documents)]
    changed += [documents[1].upper(), documents[4], documents[7] + " And so on."]
    changed[10] += "\nName | Year | Place | Colour"
    path = tmp_path / "dirty.txt"
    path.write_text("\n\n".join(changed) + "\n", "utf-8")
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "BLOCK_CHARACTERS", 6000)
    monkeypatch.setattr(survey_module, "BLOCK_CHARACTERS", 5000)


def test_what_is_removed_and_what_the_card_says(
    dirty: Path, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, small_blocks: None
) -> None:
    evaluation = tmp_path / "dev.tsv"
    line = tiny_text.read_text("utf-8").splitlines()[0]
    evaluation.write_text(f"{' '.join(line.split()[:14])}\t1\n")
    out = tmp_path / "corpus"
    cleaning = Cleaning(rules=OPTIONAL, against=(evaluation,))
    report = prepare(
        [dirty], tiny_vocab, out, hold_out=0.0, cleaning=cleaning, licences={"dirty.txt": "CC0"}, workers=1
    )
    assert [row[:3] for row in report.removed] == [
        ("duplicates", 2, 0),
        ("near-duplicates", 1, 0),
        ("repeated", 0, 26),
        ("tables", 0, 1),
    ]
    assert report.documents == 80 and report.repeated_documents == 0
    (found,) = report.evaluation_texts
    assert found.found == found.examples == 1
    card = (out / "README.md").read_text("utf-8")
    for said in (
        "| `dirty.txt` | CC0 |",
        "| repeated | paragraphs of 6 words or more that occur 3 times or more",
        f"`{NOTICE}`",
        "like `dirty.txt:",
        "similarity 1.00",
        "hangul",
        "`Name | Year | Place | Colour`",
        "| `dev.tsv` | 13 | 1 | 0 | 1 | 100.00% |",
        "Nothing was removed.",
    ):
        assert said in card, said
    assert str(tmp_path) not in card, "a card is for others: no path of this machine"
    assert sorted(path.name for path in out.iterdir() if "000" not in path.name and path.name != ".lock") == [
        "README.md",
        "manifest.json",
        "tokenizer",
    ]
    removed = prepare(
        [dirty],
        tiny_vocab,
        tmp_path / "without",
        hold_out=0.0,
        workers=1,
        cleaning=Cleaning(rules=OPTIONAL, against=(evaluation,), remove_overlap=True),
    )
    assert "evaluation" in [row[0] for row in removed.removed] and removed.tokens < report.tokens


def test_the_clean_text_is_that_of_the_text_that_was_clean(
    dirty: Path, tiny_text: Path, tiny_vocab: Path, tmp_path: Path
) -> None:
    """Nothing else changes: apart from the first notice, the corpus is that of the original text."""
    first = tiny_text.read_text("utf-8").replace("\n\n", f"\n{NOTICE}\n\n", 1)
    (tmp_path / "first.txt").write_text(first, "utf-8")
    prepare([tmp_path / "first.txt"], tiny_vocab, tmp_path / "a", hold_out=0.1, workers=1)
    prepare([dirty], tiny_vocab, tmp_path / "b", hold_out=0.1, cleaning=Cleaning(rules=OPTIONAL), workers=1)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    for name in a:
        if name not in ("manifest.json", "README.md"):
            assert a[name] == b[name], name


def test_any_number_of_workers_makes_the_same_corpus(
    dirty: Path, tiny_vocab: Path, tmp_path: Path, small_blocks: None, in_processes: None
) -> None:
    cleaning = Cleaning(rules=OPTIONAL)
    reports = [
        prepare([dirty], tiny_vocab, tmp_path / str(n), cleaning=cleaning, weights={"*": 1.5}, workers=n)
        for n in (1, 3)
    ]
    assert reports[0] == reports[1] and len(Corpus(tmp_path / "1").shards("train")) > 3
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_evaluation_files_of_a_folder_are_those_that_can_be_searched_for(
    tiny_text: Path, tiny_vocab: Path, tmp_path: Path
) -> None:
    text = "an example of more than eight words of which nothing is in the corpus"
    (tmp_path / "dev").mkdir()
    for name in ("a.tsv", "b.csv", "d.txt"):
        (tmp_path / "dev" / name).write_text(f"{text}\n")
    (tmp_path / "dev" / "c.json").write_text(json.dumps([text]))
    (tmp_path / "dev" / "README.md").write_text("About this data set.\n")
    cleaning = Cleaning(against=(tmp_path / "dev",))
    report = prepare([tiny_text], tiny_vocab, tmp_path / "c", workers=1, cleaning=cleaning)
    assert [Path(found.file).name for found in report.evaluation_texts] == ["a.tsv", "b.csv", "c.json", "d.txt"]


@pytest.mark.parametrize("when", ["survey", "shards"])
def test_a_run_that_is_stopped_resumes(
    dirty: Path, tiny_vocab: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    cleaning = Cleaning(rules=OPTIONAL)
    prepare([dirty], tiny_vocab, tmp_path / "whole", cleaning=cleaning, workers=1)
    with monkeypatch.context() as patch:
        if when == "survey":
            patch.setattr(survey_module._State, "decide", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        else:
            real, noted = prepare_module.append_to, []

            def stop_at_the_third(path: Path):
                noted.append(path)
                if len(noted) == 3:
                    raise KeyboardInterrupt
                return real(path)

            patch.setattr(prepare_module, "append_to", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            prepare([dirty], tiny_vocab, tmp_path / "cut", cleaning=cleaning, workers=1)
    assert (tmp_path / "cut" / "survey").is_dir()
    with pytest.raises(ConfigError, match="unfinished corpus of other text"):
        prepare([dirty], tiny_vocab, tmp_path / "cut", cleaning=Cleaning(rules=("tables",)), workers=1)
    if when == "shards":  # the text is not surveyed again
        monkeypatch.setattr(survey_module, "_State", None)
    prepare([dirty], tiny_vocab, tmp_path / "cut", cleaning=cleaning, workers=1)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def documents(path: Path, n: int) -> Path:
    words = random.Random(n)
    path.write_text("\n\n".join(" ".join(words.choices(["river", "garden", "farmer", "old"], k=9)) for _ in range(n)))
    return path


@pytest.mark.parametrize(("n", "held"), [(1, 0), (2, 1), (9, 1), (45, 4), (500, LEAST_HELD_OUT)])
def test_small_corpora_hold_out_some(tiny_vocab: Path, tmp_path: Path, n: int, held: int) -> None:
    path = documents(tmp_path / "t.txt", n)
    assert len(set(path.read_text().split("\n\n"))) == n
    report = prepare([path], tiny_vocab, tmp_path / "c", workers=1)
    assert (report.documents, report.dev_documents) == (n - held, held)


def test_the_share_alone_decides_where_it_is_enough(tiny_vocab: Path, tmp_path: Path) -> None:
    path = documents(tmp_path / "t.txt", 500)
    expected = sum(is_held_out(document, 0.1) for document in CorpusReader([path]))
    report = prepare([path], tiny_vocab, tmp_path / "c", hold_out=0.1, workers=1)
    assert report.dev_documents == expected > 30
    assert prepare([path], tiny_vocab, tmp_path / "none", hold_out=0, workers=1).dev_documents == 0


def test_copies_never_reach_the_held_out_text(tiny_vocab: Path, tmp_path: Path) -> None:
    path = documents(tmp_path / "t.txt", 300)
    once = prepare([path], tiny_vocab, tmp_path / "once", hold_out=0.1, workers=1)
    thrice = prepare([path], tiny_vocab, tmp_path / "thrice", hold_out=0.1, weights={"t.txt": 3}, workers=1)
    assert thrice.dev_documents == once.dev_documents and thrice.documents == 3 * once.documents
    assert thrice.tokens == 3 * once.tokens
    (row,) = [row for row in (tmp_path / "thrice" / "README.md").read_text("utf-8").splitlines() if "| `t.txt`" in row]
    assert row.split(" | ")[-1].rstrip(" |") == f"{2 * once.documents:,}", "copies of what is held out are not made"


def test_copies_of_documents_are_counted_where_nothing_removes_them(tiny_vocab: Path, tmp_path: Path) -> None:
    path = documents(tmp_path / "t.txt", 50)
    path.write_text(path.read_text() + "\n\n" + "\n\n".join(path.read_text().split("\n\n")[:7]))
    report = prepare([path], tiny_vocab, tmp_path / "c", workers=1)
    assert report.repeated_documents == 7 and report.documents + report.dev_documents == 57
    assert "Not cleaned" in (tmp_path / "c" / "README.md").read_text()


def test_copies_are_counted_unless_they_were_looked_for(tiny_vocab: Path, tmp_path: Path) -> None:
    path = documents(tmp_path / "t.txt", 50)
    path.write_text(path.read_text() + "\n\n" + "\n\n".join(path.read_text().split("\n\n")[:7]))
    latin = prepare([path], tiny_vocab, tmp_path / "latin", workers=1, cleaning=Cleaning(scripts=("latin",)))
    assert latin.repeated_documents == 7 and latin.documents + latin.dev_documents == 57
    clean = prepare([path], tiny_vocab, tmp_path / "clean", workers=1, cleaning=Cleaning(rules=("duplicates",)))
    assert clean.repeated_documents == 0 and clean.documents + clean.dev_documents == 50


def test_a_leak_with_many_copies_is_found(tiny_vocab: Path, tmp_path: Path) -> None:
    leak = " ".join(f"word{n}" for n in range(20))
    (tmp_path / "eval.txt").write_text(leak)
    path = documents(tmp_path / "t.txt", 50)
    path.write_text(path.read_text() + f"\n\n{leak}" * 12)
    cleaning = Cleaning(rules=("duplicates",), against=(tmp_path / "eval.txt",), remove_overlap=True)
    report = prepare([path], tiny_vocab, tmp_path / "c", workers=1, cleaning=cleaning)
    assert [found.found for found in report.evaluation_texts] == [1]
    assert report.documents + report.dev_documents == 50


def test_a_leak_is_removed_wherever_a_document_has_it(tiny_vocab: Path, tmp_path: Path) -> None:
    leak = " ".join(f"word{n}" for n in range(20))
    (tmp_path / "eval.txt").write_text(leak)
    path = documents(tmp_path / "t.txt", 50)
    path.write_text(path.read_text() + f"\n\nThe first time it is read by all.\n{leak}\nThe second time.\n{leak}\n")
    cleaning = Cleaning(rules=("duplicates",), against=(tmp_path / "eval.txt",), remove_overlap=True)
    report = prepare([path], tiny_vocab, tmp_path / "c", workers=1, cleaning=cleaning)
    assert [(name, n) for name, _, n, _ in report.removed] == [("evaluation", 2)]


@pytest.mark.parametrize("rules", [(), ("duplicates",)])
def test_a_file_of_weight_0_takes_nothing_from_others(tiny_vocab: Path, tmp_path: Path, rules: tuple[str, ...]) -> None:
    good = documents(tmp_path / "good.txt", 50)
    (tmp_path / "bad.txt").write_text("\n\n".join(good.read_text().split("\n\n")[:20]))
    texts = [tmp_path / "bad.txt", good]
    licences = {"bad.txt": "none", "good.txt": "CC0"}
    report = prepare(
        texts,
        tiny_vocab,
        tmp_path / "c",
        workers=1,
        weights={"bad.txt": 0},
        cleaning=Cleaning(rules=rules),
        licences=licences,
    )
    assert report.documents + report.dev_documents == 50
    assert "| `good.txt` | CC0 |" in (tmp_path / "c" / "README.md").read_text("utf-8")


def test_a_corpus_that_another_process_has_finished_is_kept(
    tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = documents(tmp_path / "a.txt", 30), documents(tmp_path / "b.txt", 50)
    hashed = prepare_module._sources

    def meanwhile(files: Sequence[Path], split: str) -> list[Any]:
        monkeypatch.setattr(prepare_module, "_sources", hashed)
        prepare([first], tiny_vocab, tmp_path / "c", workers=1)
        return hashed(files, split)

    monkeypatch.setattr(prepare_module, "_sources", meanwhile)
    with pytest.raises(ConfigError, match="exists"):
        prepare([second], tiny_vocab, tmp_path / "c", workers=1)
    assert read_manifest(tmp_path / "c").sources[0].path == str(first)


def test_tables_are_said_to_be_tables(tiny_vocab: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("A quiet garden.\t1\nThe old farmer.\t0\n")
    prepare([path], tiny_vocab, tmp_path / "c", workers=1)  # read twice: the first pass determines how much to hold out
    said = capsys.readouterr().err
    assert said.count("looks like a table") == 1 and f"cut -f2 {path} | sed G > text.txt" in said
    packed = tmp_path / "train.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    prepare([packed], tiny_vocab, tmp_path / "d", workers=1)
    assert "such as the second one: unpack it, then take the column" in capsys.readouterr().err


def test_the_command_for_a_csv_file_takes_a_column_out_of_it(
    tiny_vocab: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "train.csv"
    path.write_text('1,"A quiet, green garden."\n0,The old farmer.\n')
    prepare([path], tiny_vocab, tmp_path / "c", workers=1)
    command = capsys.readouterr().err.partition("such as the second one: ")[2].splitlines()[0]
    subprocess.run(command.replace("> text.txt", f"> {tmp_path / 'text.txt'}"), shell=True, check=True)
    assert (tmp_path / "text.txt").read_text() == "A quiet, green garden.\n\nThe old farmer.\n\n", "a document a row"


def test_text_that_cleaning_removes_altogether(tiny_vocab: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a | b | c | d\n\n1 | 2 | 3 | 4\n")
    with pytest.raises(InputError, match="all text was removed, by --clean, which --keep excludes rules from$"):
        prepare([path], tiny_vocab, tmp_path / "c", cleaning=Cleaning(rules=OPTIONAL), workers=1)
    with pytest.raises(InputError, match="all text was removed, by --script$"):
        prepare([path], tiny_vocab, tmp_path / "c", cleaning=Cleaning(scripts=("hangul",)), workers=1)
    empty, evaluated = tmp_path / "empty.txt", tmp_path / "e.txt"
    empty.write_text(" \n")
    evaluated.write_text("one two three four five six seven eight nine ten\n")
    with pytest.raises(InputError, match="no text found: all files are empty or blank"):
        prepare([empty], tiny_vocab, tmp_path / "c", cleaning=Cleaning(against=(evaluated,)), workers=1)
    assert not (tmp_path / "c").exists()


def test_parallel_text_is_taken_as_it_is(tiny_vocab: Path, tmp_path: Path) -> None:
    path = documents(tmp_path / "t.txt", 3)
    with pytest.raises(ConfigError, match="parallel text is not cleaned"):
        prepare([path], tiny_vocab, tmp_path / "c", second=[path], cleaning=Cleaning(rules=OPTIONAL))


def test_the_options_are_in_the_manifest(dirty: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    prepare([dirty], tiny_vocab, tmp_path / "c", cleaning=Cleaning(rules=("tables",), scripts=("latin",)), workers=1)
    options = json.loads(Corpus(tmp_path / "c").manifest.options)
    assert options["cleaning"]["rules"] == ["tables"] and options["cleaning"]["scripts"] == ["latin"]
