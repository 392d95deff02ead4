"""Parallel text as a corpus: documents of two sentences, and nothing dropped silently."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from firth.corpus import prepare as module
from firth.corpus.prepare import prepare
from firth.data.shards import Corpus
from firth.errors import ConfigError, InputError
from firth.text.tokenizer import Tokenizer


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    ours = [f"the old farmer number {i}" for i in range(50)]
    theirs = [f"{i} rebmun" for i in range(50)]
    ours[3], theirs[7], theirs[9] = "", " ", "\x07\x07"  # the last one has characters, but yields no tokens
    for name, lines in (("a", ours), ("b", theirs)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path / "a", tmp_path / "b"


def test_each_pair_is_a_document_of_two_sentences(sides: tuple[Path, Path], tiny_vocab: Path, tmp_path: Path) -> None:
    report = prepare([sides[0]], tiny_vocab, tmp_path / "c", second=[sides[1]], hold_out=0.0, workers=1)
    assert (report.documents, report.sentences, report.skipped_pairs) == (47, 94, 3)
    corpus = Corpus(tmp_path / "c")
    assert corpus.is_parallel
    shard = corpus.open(corpus.shards("train")[0])
    assert (np.diff(shard.documents) == 2).all()
    assert (np.diff(shard.sentences) > 0).all()
    tokenizer = Tokenizer.load(tiny_vocab)
    first, second = (shard.ids[shard.sentences[i] : shard.sentences[i + 1]].tolist() for i in (6, 7))
    assert [first, second] == tokenizer.ids_many(["the old farmer number 4", "4 rebmun"])
    assert {Path(source.path).name for source in corpus.manifest.sources} == {"a", "b"}
    card = (tmp_path / "c" / "README.md").read_text("utf-8")
    rows = {row.split("`")[1]: row.split(" | ")[4:6] for row in card.splitlines() if row.startswith("| `")}
    texts = [side.read_text("utf-8").splitlines() for side in sides]
    kept = [[line.strip() for line in pair] for pair in zip(*texts, strict=True) if all(map(str.strip, pair))]
    ours, theirs = (f"{sum(map(len, side)):,}" for side in zip(*kept, strict=True))
    assert rows == {"a": ["48", ours], "b": ["48", theirs]}


def test_other_corpora_are_not_parallel(tiny_corpus: Path) -> None:
    assert not Corpus(tiny_corpus).is_parallel


def test_held_out_pairs_come_by_hash_or_from_files(sides: tuple[Path, Path], tiny_vocab: Path, tmp_path: Path) -> None:
    by_hash = prepare([sides[0]], tiny_vocab, tmp_path / "c", second=[sides[1]], hold_out=0.3, workers=1)
    assert by_hash.documents + by_hash.dev_documents == 47 and by_hash.dev_documents
    dev = [shutil.copy(side, tmp_path / f"dev-{side.name}") for side in sides]
    files = prepare(
        [sides[0]], tiny_vocab, tmp_path / "d", second=[sides[1]], dev=dev[:1], dev_second=dev[1:], workers=1
    )
    assert (files.documents, files.dev_documents, files.skipped_pairs) == (47, 47, 6)


def test_corpus_is_the_same_for_any_number_of_workers(
    sides: tuple[Path, Path], tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_processes: None
) -> None:
    monkeypatch.setattr(module, "BLOCK_CHARACTERS", 300)
    for workers in (1, 2):
        prepare([sides[0]], tiny_vocab, tmp_path / f"c{workers}", second=[sides[1]], workers=workers)
    one, two = Corpus(tmp_path / "c1"), Corpus(tmp_path / "c2")
    assert len(one.shards("train")) > 2
    assert one.fingerprint == two.fingerprint


def test_sides_that_do_not_belong_together(sides: tuple[Path, Path], tiny_vocab: Path, tmp_path: Path) -> None:
    with open(sides[1], "a", encoding="utf-8") as file:
        file.write("one more\n")
    with pytest.raises(InputError, match="a has 50 lines and .*b 51"):
        prepare([sides[0]], tiny_vocab, tmp_path / "c", second=[sides[1]], workers=1)
    assert not (tmp_path / "c").exists()
    for options in ({"dev": [sides[0]], "second": [sides[1]]}, {"dev_second": [sides[1]]}):
        with pytest.raises(ConfigError, match="give both --dev and --dev-second"):
            prepare([sides[0]], tiny_vocab, tmp_path / "c", workers=1, **options)  # type: ignore[arg-type]
