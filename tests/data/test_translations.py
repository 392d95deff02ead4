"""Batches of parallel text: aligned pairs, their targets, and the pairs that are left out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import write_corpus

from firth.data.config import DataConfig, MaskingConfig
from firth.data.instances import plan_translations
from firth.data.loader import Loader, Place
from firth.data.rows import TranslationBatches
from firth.data.shards import Corpus, write_manifest
from firth.errors import ConfigError
from firth.text.layouts import source_layout, target_layout

PAIRS = [[3, 4], [2, 2], [9, 1], [1, 8], [5, 5]]


def parallel(folder: Path, pairs: list[list[int]] | None = None) -> Corpus:
    """A parallel corpus whose pairs have these lengths."""
    import dataclasses

    train = [PAIRS if pairs is None else pairs]
    write_corpus(folder, train, [[[2, 3]]])
    corpus = Corpus(folder)
    write_manifest(folder, dataclasses.replace(corpus.manifest, options='{"lines": "pair"}'))
    return Corpus(folder)


def loader_of(corpus: Corpus, *, length: int = 16, budget: int = 32, **data: object) -> Loader:
    config = DataConfig(corpus=str(corpus.folder), instances="translations", length=length, **data)  # type: ignore[arg-type]
    return Loader(
        corpus,
        config,
        MaskingConfig(),
        source_layout(corpus.tokenizer),
        predict="translation",
        budget_tokens=budget,
        slots=2,
        seed=7,
    )


def test_pairs_that_do_not_fit_are_left_out() -> None:
    sentences = np.cumsum([0, *(n for pair in PAIRS for n in pair)])
    plan = plan_translations(sentences, 8, 7)
    assert plan.key.tolist() == [0, 1, 4]
    assert (plan.a[:, 1] - plan.a[:, 0]).tolist() == [3, 2, 5]
    assert (plan.b[:, 1] - plan.b[:, 0]).tolist() == [4, 2, 5]
    assert plan.a.tolist() == [[0, 3], [7, 9], [30, 35]]
    assert len(plan_translations(sentences[:1], 8, 7).key) == 0


def test_rows_and_what_is_asked_of_them(tmp_path: Path) -> None:
    corpus = parallel(tmp_path / "c")
    (info,) = corpus.shards("train")
    shard, tokenizer = corpus.open(info), corpus.tokenizer
    plan = plan_translations(shard.sentences, 99, 99)
    batches = TranslationBatches.cut(
        shard,
        plan,
        source_layout(tokenizer),
        target_layout(tokenizer),
        end_id=tokenizer.end_id,
        budget_tokens=24,
        seed=1,
    )
    seen = []
    for number in range(len(batches)):
        batch = batches[number]
        assert batch.second is not None
        assert batch.n_tokens == batch.tokens.ids.numel() + batch.second.ids.numel() <= 24
        assert batch.tokens.segments is None and batch.second.segments is None
        target = batch.targets["translation"]
        assert target.index.tolist() == list(range(batch.second.rows.n_tokens))
        assert batch.counts() == {"translation": batch.second.rows.n_tokens}
        lengths = batch.tokens.rows.lengths.tolist(), batch.second.rows.lengths.tolist()
        rows = batch.tokens.ids.split(lengths[0]), batch.second.ids.split(lengths[1]), target.label.split(lengths[1])
        for source, read, asked in zip(*rows, strict=True):
            assert source[-1] == tokenizer.end_id and read[0] == tokenizer.start_id and asked[-1] == tokenizer.end_id
            assert torch.equal(read[1:], asked[:-1])
            seen.append((source[:-1].tolist(), read[1:].tolist()))
    bounds = shard.sentences
    sides = [shard.ids[bounds[i] : bounds[i + 1]].tolist() for i in range(len(bounds) - 1)]
    assert sorted(seen) == sorted(zip(sides[::2], sides[1::2], strict=True))


def test_both_sides_move_to_a_device(tmp_path: Path) -> None:
    (batch, *_), _ = next(loader_of(parallel(tmp_path / "c")).steps(Place(), step=0))
    moved = batch.to("meta")
    assert moved.second is not None
    for tensor in (moved.tokens.ids, moved.second.ids, moved.second.rows.offsets, moved.targets["translation"].label):
        assert tensor.device.type == "meta"
    assert moved.counts() == batch.counts() and moved.n_tokens == batch.n_tokens


def test_stream_is_the_same_for_any_number_of_workers_and_from_any_place(tmp_path: Path) -> None:
    corpus = parallel(tmp_path / "c", [[2 + i % 5, 2 + i % 4] for i in range(40)])
    streams = []
    for workers in (0, 1, 2):
        steps = loader_of(corpus, workers=workers).steps(Place(), step=0)
        streams.append([next(steps) for _ in range(12)])
        steps.close()
    for stream in streams[1:]:
        for (batches, place), (others, other_place) in zip(streams[0], stream, strict=True):
            assert place == other_place
            for one, other in zip(batches, others, strict=True):
                assert one.place == other.place
                assert torch.equal(one.tokens.ids, other.tokens.ids)
                assert torch.equal(one.second.ids, other.second.ids)
    again = loader_of(corpus).steps(streams[0][4][1], step=5)
    assert torch.equal(next(again)[0][0].second.ids, streams[0][5][0][0].second.ids)
    again.close()
    epochs = {batch.place.split(":")[1] for batches, _ in streams[0] for batch in batches}
    assert {"0", "1"} <= epochs


def test_left_out_pairs_are_counted(tmp_path: Path) -> None:
    corpus = parallel(tmp_path / "c")
    assert loader_of(corpus, length=16).left_out() == 0
    assert loader_of(corpus, length=9).left_out() == 1
    assert loader_of(corpus, length=8).left_out() == 2


def test_text_of_another_kind_is_refused(tmp_path: Path) -> None:
    plain, pairs = Corpus(write_corpus(tmp_path / "plain")), parallel(tmp_path / "pairs")
    with pytest.raises(ConfigError, match="plain is text of one side, but data.instances='translations'"):
        loader_of(plain)
    for kind in ("pairs", "documents", "streams"):
        config = DataConfig(corpus=str(pairs.folder), instances=kind, length=16)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"pairs is parallel text, but data.instances='{kind}'"):
            Loader(
                pairs,
                config,
                MaskingConfig(),
                source_layout(pairs.tokenizer),
                predict="next",
                budget_tokens=32,
                slots=1,
                seed=1,
            )


def test_a_batch_holds_at_least_a_pair_of_the_longest_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_tokens=31 is smaller than a pair of sequences of 16"):
        loader_of(parallel(tmp_path / "c"), budget=31)
