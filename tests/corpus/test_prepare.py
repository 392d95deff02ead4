"""firth prepare: what a shard holds, for any number of workers, after a kill, at any size."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

import firth.corpus.prepare as prepare_module
from firth.corpus.hold_out import is_held_out
from firth.corpus.prepare import prepare
from firth.corpus.selection import matching_files
from firth.corpus.vocab import build_vocab
from firth.data.shards import Corpus
from firth.errors import ConfigError, CorpusError, InputError, SaveError
from firth.text.corpus import CorpusReader
from firth.text.sentences import split_sentences
from firth.text.tokenizer import Tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several shards from a small text."""
    monkeypatch.setattr(prepare_module, "BLOCK_CHARACTERS", 6000)


def test_the_ids_are_those_of_every_sentence_in_order(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    prepare([tiny_text], tiny_vocab, tmp_path / "corpus", hold_out=0.0, workers=1)
    tokenizer, corpus = Tokenizer.load(tiny_vocab), Corpus(tmp_path / "corpus")
    (info,) = corpus.shards("train")
    shard = corpus.open(info)
    assert shard.ids.dtype == np.uint16
    number = 0
    for d, document in enumerate(CorpusReader([tiny_text])):
        assert shard.documents[d] == number
        for sentence in (s for paragraph in document.paragraphs for s in split_sentences(paragraph)):
            stored = shard.ids[shard.sentences[number] : shard.sentences[number + 1]]
            assert stored.tolist() == tokenizer.encode(sentence).ids
            number += 1
    assert shard.documents[-1] == number == len(shard.sentences) - 1
    assert shard.sentences[-1] == len(shard.ids)


def test_any_number_of_workers_makes_the_same_corpus(
    tiny_text: Path, tiny_vocab: Path, tmp_path: Path, small_blocks: None, in_processes: None
) -> None:
    one = prepare([tiny_text], tiny_vocab, tmp_path / "one", hold_out=0.1, workers=1)
    three = prepare([tiny_text], tiny_vocab, tmp_path / "three", hold_out=0.1, workers=3)
    assert one == three
    assert len(Corpus(tmp_path / "one").shards("train")) > 3
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_held_out_documents_are_chosen_by_their_text(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    report = prepare([tiny_text], tiny_vocab, tmp_path / "corpus", hold_out=0.2, workers=1)
    expected = sum(is_held_out(document, 0.2) for document in CorpusReader([tiny_text]))
    assert report.dev_documents == expected > 0
    assert report.documents + report.dev_documents == sum(1 for _ in CorpusReader([tiny_text]))


def test_documents_without_tokens_do_not_count_among_those_held_out(tiny_vocab: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    for number in range(6):  # which of two documents is held out depends on their hashes
        text.write_text(f"\x01\x02\n\nthe river {number}\n", "utf-8")
        assert prepare([text], tiny_vocab, tmp_path / str(number), hold_out=0.1, workers=1).documents == 1


def test_copies_and_repeated_documents_do_not_raise_the_number_held_out(tiny_vocab: Path, tmp_path: Path) -> None:
    documents = [f"the old farmer number {i}" for i in range(12)]
    (tmp_path / "ten.txt").write_text("\n\n".join(documents))
    (tmp_path / "repeated.txt").write_text("\n\n".join(documents * 10))
    ten = prepare([tmp_path / "ten.txt"], tiny_vocab, tmp_path / "a", weights={"ten*": 10}, workers=1)
    repeated = prepare([tmp_path / "repeated.txt"], tiny_vocab, tmp_path / "b", workers=1)
    assert (ten.dev_documents, repeated.dev_documents) == (1, 10), "one document of twelve, once and ten times"


def test_other_text_for_evaluation(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("A quiet garden. The old farmer walked to the river.\n\nEvery Sunday.\n")
    report = prepare([tiny_text], tiny_vocab, tmp_path / "corpus", dev=[other], workers=1)
    assert report.dev_documents == 2
    other.write_text("\n\n")
    with pytest.raises(InputError, match=r"other\.txt: no text found to hold out: leave out --dev, or give text"):
        prepare([tiny_text], tiny_vocab, tmp_path / "none", dev=[other], workers=1)
    assert not (tmp_path / "none").exists()


def test_no_file_is_both_trained_on_and_held_out(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    shutil.copy(tiny_text, folder / "train.txt")
    shutil.copy(tiny_text, folder / "dev.txt")
    with pytest.raises(ConfigError, match=r"dev\.txt is in TEXT and in --dev: leave it out of one"):
        prepare([folder], tiny_vocab, tmp_path / "corpus", dev=[folder / "dev.txt"], workers=1)
    assert not (tmp_path / "corpus").exists()


def test_what_was_made_of_a_folder_within_it_is_not_its_text(
    tiny_text: Path, tiny_vocab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    shutil.copy(tiny_text, folder / "a.txt")
    shutil.copytree(tiny_vocab, folder / "vocab")
    before = prepare([folder], folder / "vocab", folder / "corpus", workers=1)
    assert f"{folder / 'vocab'}: skipped" in capsys.readouterr().err
    assert prepare([folder], folder / "vocab", folder / "second", workers=1) == before
    sources = json.loads((folder / "second" / "manifest.json").read_text())["sources"]
    assert [Path(source["path"]).name for source in sources] == ["a.txt"]


PROGRAM = """
import sys
import firth.corpus.prepare as prepare_module
import firth.workers
from pathlib import Path

def main():
    prepare_module.BLOCK_CHARACTERS = 6000
    firth.workers.LITTLE_TEXT = 0
    text, vocab, out = map(Path, sys.argv[1:4])
    if len(sys.argv) > 4:
        # Say when two shards are noted, and wait there to be killed.
        append_to, counted = prepare_module.append_to, []
        def watched(path):
            counted.append(1)
            if len(counted) == 3:
                print("two noted", flush=True)
                sys.stdin.read()
            return append_to(path)
        prepare_module.append_to = watched
    prepare_module.prepare([text], vocab, out, hold_out=0.1, workers=2)
    print("done", flush=True)

if __name__ == "__main__":
    main()
"""


def test_a_killed_run_goes_on_with_the_same_command(
    tiny_text: Path, tiny_vocab: Path, tmp_path: Path, small_blocks: None
) -> None:
    prepare([tiny_text], tiny_vocab, tmp_path / "whole", hold_out=0.1, workers=1)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tiny_text), str(tiny_vocab), str(tmp_path / "cut")]
    process = subprocess.Popen(
        [*command, "die"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "two noted\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    with pytest.raises(CorpusError, match="unfinished.*same firth prepare command"):
        Corpus(tmp_path / "cut")
    with pytest.raises(ConfigError, match="unfinished corpus of other text"):
        prepare([tiny_text], tiny_vocab, tmp_path / "cut", hold_out=0.2, workers=1)
    kept = (tmp_path / "cut" / "train-00000.ids.npy").stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.stdout == "done\n", again.stderr
    assert (tmp_path / "cut" / "train-00000.ids.npy").stat().st_mtime_ns == kept, "finished shards are not made again"
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_sentences_and_documents_without_pieces_fall_away(tiny_vocab: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The old farmer.\n\u200b\u200b\n\n\u200b\n\nA quiet garden.\n", "utf-8")
    report = prepare([text], tiny_vocab, tmp_path / "corpus", hold_out=0.0, workers=1)
    assert (report.documents, report.sentences) == (2, 2)


@pytest.mark.parametrize("text", ["", "\n \n\t\n"])
def test_no_text_leaves_nothing_behind(text: str, tiny_vocab: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text)
    with pytest.raises(InputError, match="no text found"):
        prepare([file], tiny_vocab, tmp_path / "corpus", workers=1)
    assert not (tmp_path / "corpus").exists()


def test_a_folder_that_exists_is_never_written(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        prepare([tiny_text], tiny_vocab, tmp_path / "precious", workers=1)
    assert contents(tmp_path / "precious") == {"file": b"mine"}


def test_a_share_of_the_training_documents_is_lower_cased(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    def documents(lowercase: float, split: str) -> list[list[int]]:
        out = tmp_path / f"corpus-{lowercase}"
        if not out.exists():
            prepare([tiny_text], tiny_vocab, out, hold_out=0.2, lowercase=lowercase, workers=1)
        shard = Corpus(out).open(Corpus(out).shards(split)[0])
        starts = shard.sentences[shard.documents]
        return [shard.ids[a:b].tolist() for a, b in itertools.pairwise(starts)]

    cased, half, lowered = (documents(share, "train") for share in (0.0, 0.5, 1.0))
    assert {d == cased[at] for at, d in enumerate(half)} == {True, False}
    assert all(d in (cased[at], lowered[at]) for at, d in enumerate(half))
    tokenizer, train = Tokenizer.load(tiny_vocab), []
    for document in (d for d in CorpusReader([tiny_text]) if not is_held_out(d, 0.2)):
        sentences = (s for paragraph in document.paragraphs for s in split_sentences(paragraph))
        train.append([i for sentence in sentences for i in tokenizer.encode(sentence.lower()).ids])
    assert lowered == train
    assert documents(1.0, "dev") == documents(0.0, "dev")
    assert "50% of the training documents are lower-cased." in (tmp_path / "corpus-0.5" / "README.md").read_text()


def test_lower_casing_is_refused_where_it_does_nothing(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lowercase=1.5: expected a share from 0 to 1"):
        prepare([tiny_text], tiny_vocab, tmp_path / "corpus", lowercase=1.5)
    build_vocab([tiny_text], tmp_path / "uncased", size=200, lowercase=True, workers=1)
    with pytest.raises(ConfigError, match=r"lowercase=0.5: .*uncased lower-cases all text already"):
        prepare([tiny_text], tmp_path / "uncased", tmp_path / "corpus", lowercase=0.5)
    assert not (tmp_path / "corpus").exists()


def test_a_folder_of_books(tiny_vocab: Path, tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for n in range(4):
        paragraphs = [f"The old farmer walked\nto the river {n}. The {word} was cold." for word in ("river", "mill")]
        (books / f"{n}.txt").write_text("\n\n".join(paragraphs), "utf-8")
    made = prepare([books], tiny_vocab, tmp_path / "corpus", lines="book", weights={"0.txt": 2})
    assert (made.documents + made.dev_documents, made.sentences) == (5, 4 * (made.documents))
    apart = prepare([books], tiny_vocab, tmp_path / "apart")
    assert apart.documents + apart.dev_documents == 8
    with pytest.raises(ConfigError, match="unfinished corpus of other text, options"):
        (tmp_path / "half").mkdir()
        (tmp_path / "half" / prepare_module.PROGRESS).write_text("{}\n")
        prepare([books], tiny_vocab, tmp_path / "half", lines="book")


def test_decomposed_text_makes_the_corpus_of_composed_text(tiny_vocab: Path, tmp_path: Path) -> None:
    text = "".join(f"그는 {number}번 집에 갔다.그리고 밥을 먹었다.\n\n" for number in range(120))
    for form in ("NFC", "NFD"):
        (tmp_path / form).mkdir()
        (tmp_path / form / "한국.txt").write_text(normalize(form, text), "utf-8")  # type: ignore[arg-type]
        prepare([tmp_path / form / "한국.txt"], tiny_vocab, tmp_path / f"c{form}", workers=1)
    composed, decomposed = (Corpus(tmp_path / f"c{form}") for form in ("NFC", "NFD"))
    for split in ("train", "dev"):
        ours, theirs = (corpus.open(corpus.shards(split)[0]) for corpus in (composed, decomposed))
        for part in ("ids", "sentences", "documents"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))
    both = prepare([tmp_path / "NFC", tmp_path / "NFD"], tiny_vocab, tmp_path / "both", workers=1)
    assert both.repeated_documents == 120


def test_a_file_is_found_by_its_name_however_its_letters_are_composed() -> None:
    files = [Path("a", normalize("NFD", "한국.txt")), Path("b.txt")]
    assert matching_files(files, "한국.txt") == [0] and matching_files(files, normalize("NFD", "한국*")) == [0]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), OSError("1142854 requested and 286656 written")])
def test_a_full_disk_names_the_corpus(
    error: OSError, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(prepare_module, "write_card", full)
    with pytest.raises(SaveError, match=r"/c could not be written: the disk is full .* run the command again"):
        prepare([tiny_text], tiny_vocab, tmp_path / "c", workers=1)
    monkeypatch.undo()
    assert prepare([tiny_text], tiny_vocab, tmp_path / "c", workers=1).documents


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lines": "x"}, "lines='x': expected 'paragraph', 'sentence' or 'book'"),
        ({"lines": "pair"}, "lines='pair': expected"),
        ({"workers": 0}, "workers=0 is not possible"),
        ({"errors": "ignore"}, "errors='ignore': expected 'replace' or 'strict'"),
    ],
)
def test_unknown_options_are_refused(
    tiny_text: Path, tiny_vocab: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(tiny_text, tiny_vocab, tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()
