"""The corpus on disk: it reads back as written, and any damage is reported."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpora import PIECES, write_corpus

from firth.data.shards import PARTS, Corpus, part_path, read_manifest, write_shard
from firth.errors import ConfigError, CorpusError
from firth.text.tokenizer import Tokenizer


def open_all(folder: Path) -> list[list[int]]:
    corpus = Corpus(folder)
    return [corpus.open(info).ids.tolist() for info in (*corpus.shards("train"), *corpus.shards("dev"))]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ids = np.array([7, 8, 9, 70_000, 5], np.uint32)
    info = write_shard(tmp_path, "train-00000", ids, np.array([0, 2, 4, 5]), np.array([0, 1, 3]))
    assert (info.tokens, info.sentences, info.documents) == (5, 3, 2)
    assert [part_path(tmp_path, info.name, part).stat().st_size for part in PARTS] == list(info.bytes)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"train-00000.{part}.npy" for part in PARTS)
    corpus = Corpus(write_corpus(tmp_path / "c", [[[2, 3], [4]]], []))
    shard = corpus.open(corpus.shards("train")[0])
    assert shard.sentences.tolist() == [0, 2, 5, 9]
    assert shard.documents.tolist() == [0, 2, 3]
    assert shard.document_tokens.tolist() == [0, 5, 9]
    assert isinstance(shard.ids, np.memmap) and shard.ids.dtype == np.uint16
    assert shard.sentences.dtype == shard.documents.dtype == np.int64
    assert corpus.shards("dev") == ()


def test_one_command_gives_one_checksum(tmp_path: Path) -> None:
    manifests = [read_manifest(write_corpus(tmp_path / name)) for name in ("a", "b")]
    assert manifests[0] == manifests[1]
    assert read_manifest(write_corpus(tmp_path / "c", seed=9)) != manifests[0]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"has [\d,]+ bytes, expected [\d,]+: it is truncated"),
        (lengthen, r"has [\d,]+ bytes, expected"),
        (flip, "does not match its checksum"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, part: str, damage: Callable[[Path], None], message: str) -> None:
    folder = write_corpus(tmp_path / "corpus")
    damage(part_path(folder, "train-00001", part))
    corpus = Corpus(folder)
    for info in corpus.shards("train"):
        if info.name == "train-00001":
            with pytest.raises(CorpusError, match=rf"train-00001\.{part}\.npy {message}"):
                corpus.open(info)
        else:
            corpus.open(info)


def test_checksums_are_taken_once_sizes_always(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    corpus = Corpus(folder)
    info = corpus.shards("train")[0]
    before = corpus.open(info).sentences
    path = part_path(folder, info.name, "sentences")
    truncate(path)
    with pytest.raises(CorpusError, match="truncated"):
        corpus.open(info)
    assert len(before) > 1


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 0}, "version 0, this Firth reads 'firth-corpus' version 1: prepare the corpus again"),
        ({"format": "other"}, "has layout 'other'"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"train": "none"}, "train = 'none': expected"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = write_corpus(tmp_path / "corpus")
    edit_manifest(folder, **changes)
    with pytest.raises(CorpusError, match=message):
        Corpus(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_corpus(tmp_path / "corpus")
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CorpusError, match=r"manifest\.json"):
        Corpus(folder)


@pytest.mark.parametrize("options", ["", "{", "[]", "[" * 100_000])
def test_broken_options_are_named(tmp_path: Path, options: str) -> None:
    folder = write_corpus(tmp_path / "corpus")
    edit_manifest(folder, options=options)
    with pytest.raises(CorpusError, match=r"manifest\.json is damaged: its options are no JSON object"):
        _ = Corpus(folder).is_parallel


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    other = Tokenizer.from_vocab([*PIECES, "more"], lowercase=True)
    with pytest.raises(CorpusError, match=r"was made with tokenizer \w{12}, but that of x is \w{12}"):
        Corpus(folder).check_tokenizer(other, "that of x")
    other.save(folder / "tokenizer")
    with pytest.raises(CorpusError, match="but the tokenizer beside it is"):
        Corpus(folder)


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such corpus folder"):
        Corpus(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"has no manifest\.json"):
        Corpus(tmp_path)
    (tmp_path / "progress.jsonl").touch()
    with pytest.raises(CorpusError, match="unfinished corpus"):
        Corpus(tmp_path)


def test_whole_corpus_opens(tmp_path: Path) -> None:
    sizes = [len(ids) for ids in open_all(write_corpus(tmp_path / "corpus"))]
    assert len(sizes) == 5 and sizes[2] == 0 and min(sizes[:2]) > 0


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "..", ""])
def test_a_shard_lies_in_the_corpus_folder(tmp_path: Path, name: str) -> None:
    folder = write_corpus(tmp_path / "corpus")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["train"][0]["name"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match=r"manifest\.json: a shard is named"):
        Corpus(folder)
