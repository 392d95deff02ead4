"""From text files to a tokenizer folder: what is written, what is refused, what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firth.corpus import vocab
from firth.corpus.vocab import build_vocab
from firth.errors import ConfigError, InputError, TokenizerError
from firth.text.tokenizer import Tokenizer

TEXT = (
    "The cat sat on the mat.\nIt was a good mat, said the cat.\n\n"
    "고양이가 매트 위에 앉았다.\n좋은 매트였다.\n\nUnwanted running words run.\n"
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 3, encoding="utf-8")
    return path


def test_writes_a_tokenizer_and_its_report(tmp_path: Path, text: Path) -> None:
    text.write_bytes(text.read_bytes() + b"bad \xff byte\n")
    out = tmp_path / "new" / "vocab"
    report = build_vocab([text], out, size=80, lowercase=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    tokenizer = Tokenizer.load(out)
    assert tokenizer.size == report.size == 80 and tokenizer.lowercase
    assert tokenizer.fingerprint == report.fingerprint
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert written["bad_places"] == [[str(text), len(TEXT.encode()) * 3 + 4]] and written["bad_bytes"] == 1
    assert (report.documents, report.pruned_types, report.cut_lines) == (7, 0, 0)
    assert report.coverage == 1.0 and report.unk_rate == 0.0
    ids = tokenizer.ids_many([*TEXT.split("\n") * 3, "bad byte"])
    assert report.words == sum(report_words(tokenizer, TEXT)) * 3 + 2
    assert report.tokens_per_word == pytest.approx(sum(map(len, ids)) / report.words)
    assert list(out.parent.iterdir()) == [out]


def report_words(tokenizer: Tokenizer, text: str) -> list[int]:
    return [len(set(row.words)) for row in tokenizer.encode_many(text.split("\n"))]


def test_coverage_counts_unknown_words(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abab abba " * 600 + "一 " * 2, encoding="utf-8")
    report = build_vocab([path], tmp_path / "out", size=12)
    assert report.coverage == pytest.approx(1 - 2 / 1202)
    assert 0 < report.unk_rate < 0.01


def test_refuses_a_folder_in_use(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    build_vocab([text], out, size=80)
    before = (out / "vocab.txt").read_bytes()
    with pytest.raises(ConfigError, match="exists already: choose another name, or delete it"):
        build_vocab([text], out, size=70)
    with pytest.raises(ConfigError, match="exists already"):
        build_vocab([text], text, size=70)
    with pytest.raises(ConfigError, match="cannot be written"):
        build_vocab([text], text / "below", size=70)
    assert (out / "vocab.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 5}, "size=5"),
        ({"score": "best"}, "score='best'"),
        ({"keep_accents": True}, "keep_accents=True is for lowercase=True"),
        ({"workers": 0}, "workers=0"),
        ({"max_types": 0}, "max_types=0"),
    ],
)
def test_refuses_options_that_do_not_fit(tmp_path: Path, text: Path, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=message):
        build_vocab([text], tmp_path / "out", **options)


def test_failures_leave_nothing(tmp_path: Path, text: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n\n")
    binary = tmp_path / "image.txt"
    binary.write_bytes(b"\x89PNG\x00\x00\xff")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="no words in .*blank.txt"):
        build_vocab([blank], tmp_path / "out")
    with pytest.raises(InputError, match="not a text file"):
        build_vocab([text, binary], tmp_path / "out")
    with pytest.raises(TokenizerError, match="pass --size"):
        build_vocab([text], tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_pruning_is_reported(tmp_path: Path, text: Path) -> None:
    text.write_text("aa bb aa bb aa bb cc dd ee ff", encoding="utf-8")
    report = build_vocab([text], tmp_path / "out", size=10, max_types=3)
    assert (report.word_types, report.pruned_types, report.pruned_words, report.words) == (6, 4, 4, 10)


def test_workers_change_nothing(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, in_processes: None
) -> None:
    text.write_text(TEXT * 200, encoding="utf-8")
    original = vocab.text_blocks
    monkeypatch.setattr(vocab, "text_blocks", lambda texts: original(texts, 10_000))
    for workers in (1, 2):
        build_vocab([text], tmp_path / str(workers), size=80, workers=workers)
    for name in ("vocab.txt", "tokenizer.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


SCRIPT = """
import signal
import sys
from firth.corpus import vocab

def endless(paths, errors):
    class Reader:
        files, total_bytes, bytes_consumed = list(paths), 10**12, 0
        def by_file(self):
            yield paths[0], self.documents()
        def documents(self):
            from firth.text.records import Document
            for i in range(10**9):
                if i == 20_000:
                    print("reading", flush=True)
                yield Document((f"word{i} " * 20,))
    return Reader()

if __name__ == "__main__":
    # A background job inherits that Ctrl-C is ignored; a command that a terminal started does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    vocab.CorpusReader = endless
    vocab.build_vocab(["x"], sys.argv[1], size=100, workers=2)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left-over processes in /proc")
def test_interrupt_leaves_no_folder_and_no_process(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == b"reading\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == [script]
    deadline_s = time.monotonic() + 5
    while in_session(process.pid) and time.monotonic() < deadline_s:
        os.sched_yield()
    assert not in_session(process.pid)


def in_session(session: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_byte_pair_encoding(tmp_path: Path, text: Path) -> None:
    report = build_vocab([text], tmp_path / "out", size=80, kind="bpe")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.size == report.size == 80 and not tokenizer.lowercase and report.kind == "bpe"
    assert tokenizer.fingerprint == report.fingerprint
    assert report.coverage == 1.0 and report.unk_rate == 0.0
    assert report.alphabet == len({c for c in TEXT + "▁" if not c.isspace()})
    ids = tokenizer.ids_many(TEXT.split("\n") * 3)
    assert report.words == sum(report_words(tokenizer, TEXT)) * 3
    assert report.tokens_per_word == pytest.approx(sum(map(len, ids)) / report.words)
    for line in TEXT.split("\n"):
        assert tokenizer.decode(tokenizer.encode(line).ids) == line


def test_one_vocabulary_of_two_languages(tmp_path: Path) -> None:
    for name, line in (("de", "Ein Mann mit Hut. "), ("en", "A man with a hat. ")):
        (tmp_path / f"train.{name}.txt").write_text(line * 4, encoding="utf-8")
    paths = [tmp_path / "train.de.txt", tmp_path / "train.en.txt"]
    build_vocab(paths, tmp_path / "out", size=30, kind="bpe", lowercase=True)
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.lowercase
    assert tokenizer.unk_id not in tokenizer.encode("Ein Mann with a Hut.").ids


def test_byte_pair_encoding_refuses_what_it_cannot_do(tmp_path: Path, text: Path) -> None:
    for options, message in [
        ({"kind": "bpe", "size": 4}, "size=4 leaves no room beside the 4 special tokens"),
        ({"kind": "bpe", "score": "likelihood"}, "score='likelihood' applies to WordPiece only"),
        ({"kind": "bpe", "score": "frequency"}, "score='frequency' applies to WordPiece only"),
        ({"kind": "unigram"}, "kind='unigram' is not known; choose 'wordpiece', 'bpe' or 'words'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            build_vocab([text], tmp_path / "out", **options)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="pass --size") as raised:
        build_vocab([text], tmp_path / "out", kind="bpe")
    largest = int(str(raised.value).split("pass --size ")[1].split()[0])
    assert build_vocab([text], tmp_path / "out", kind="bpe", size=largest).size == largest


def test_workers_change_nothing_in_byte_pair_encoding(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, in_processes: None
) -> None:
    text.write_text(TEXT * 100, encoding="utf-8")
    original = vocab.text_blocks
    monkeypatch.setattr(vocab, "text_blocks", lambda texts: original(texts, 10_000))
    for workers in (1, 2):
        build_vocab([text], tmp_path / str(workers), size=80, kind="bpe", workers=workers)
    one, two = ((tmp_path / str(workers) / "tokenizer.json").read_bytes() for workers in (1, 2))
    assert one == two


def test_whole_words(tmp_path: Path, text: Path) -> None:
    report = build_vocab([text], tmp_path / "out", size=14, kind="words", lowercase=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.pieces == [
        "<unk>",
        "<s>",
        "<sep>",
        "</s>",
        ".",
        "the",
        "cat",
        "mat",
        ",",
        "a",
        "good",
        "it",
        "on",
        "run",
    ]
    assert report.kind == "words" and report.size == 14 and tokenizer.lowercase
    assert report.fingerprint == tokenizer.fingerprint
    ids = [i for row in tokenizer.ids_many(TEXT.split("\n")) for i in row]
    assert report.words == 3 * len(ids) and report.tokens_per_word == 1
    assert report.coverage == pytest.approx(1 - ids.count(0) / len(ids)) and report.unk_rate == 1 - report.coverage
    with pytest.raises(ConfigError, match="score='frequency' applies to WordPiece only: a vocabulary of words takes"):
        build_vocab([text], tmp_path / "x", kind="words", score="frequency")
    with pytest.raises(TokenizerError, match="pass --size") as raised:
        build_vocab([text], tmp_path / "x", kind="words")
    largest = int(str(raised.value).split("pass --size ")[1].split()[0])
    assert build_vocab([text], tmp_path / "x", kind="words", size=largest).coverage == 1
