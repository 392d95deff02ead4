"""The stream of micro-batches: the same for any number of workers and ranks and any starting point."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import write_corpus

from firth.costs import transformer_flops
from firth.data.batch import Batch
from firth.data.config import DataConfig, MaskingConfig
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus
from firth.errors import ConfigError, CorpusError
from firth.models.config import BertConfig
from firth.text.layouts import bert_layout, source_layout

Stream = list[tuple[list[Batch], Place]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("loader") / "corpus")


def loader(
    folder: Path, *, slots: int = 2, masking: MaskingConfig | None = None, split: Any = "train", **data: Any
) -> Loader:
    corpus = Corpus(folder)
    options = DataConfig(**{"corpus": str(folder), "length": 16, "workers": 0} | data)
    recurrent = options.instances in ("streams", "copies")
    layout = (source_layout if recurrent else bert_layout)(corpus.tokenizer)
    return Loader(
        corpus,
        options,
        masking or MaskingConfig(),
        layout,
        predict="next" if recurrent else "masked",
        budget_tokens=64,
        slots=slots,
        seed=5,
        total_steps=20,
        split=split,
    )


def read(source: Loader, n: int, start: Place | None = None, step: int = 0, **ranks: int) -> Stream:
    steps = source.steps(start or Place(), step=step, **ranks)
    found = list(islice(steps, n))
    steps.close()
    return found


def content(batch: Batch) -> tuple[Any, ...]:
    tokens = batch.tokens
    targets = {term: (t.index.tolist(), t.label.tolist()) for term, t in batch.targets.items()}
    segments = None if tokens.segments is None else tokens.segments.tolist()
    return (
        batch.place,
        tokens.ids.tolist(),
        segments,
        tokens.rows.offsets.tolist(),
        targets,
        batch.starts_stream,
        batch.rate_scale,
    )


def contents(stream: Stream) -> list[tuple[list[tuple[Any, ...]], str]]:
    return [([content(batch) for batch in batches], str(place)) for batches, place in stream]


KINDS: list[dict[str, Any]] = [
    {},
    {"instances": "documents"},
    {"instances": "streams"},
    {"long_length": 32, "long_share": 0.4},
    {"instances": "copies"},
    {"instances": "streams", "varied_windows": True},
    {"duplicates": 1},
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_step_can_be_entered_by_its_place(folder: Path, kind: dict[str, Any]) -> None:
    n = 25
    whole = contents(read(loader(folder, **kind), n))
    # More than one epoch, so that the stream crosses shard and epoch boundaries.
    assert Place.parse(whole[-1][1]).epoch >= 1
    for step in range(1, n):
        start = Place.parse(whole[step - 1][1])
        some = n - step if step % 8 == 1 else 1
        assert contents(read(loader(folder, **kind), some, start, step)) == whole[step : step + some]


@pytest.mark.parametrize("kind", KINDS[:6])
def test_any_number_of_workers_gives_the_same_stream(folder: Path, kind: dict[str, Any]) -> None:
    streams = [contents(read(loader(folder, workers=workers, **kind), 25)) for workers in (0, 1, 3)]
    assert streams[0] == streams[1] == streams[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_rank_r_takes_every_worldth_micro_batch(folder: Path, workers: int) -> None:
    whole = read(loader(folder, slots=4, workers=workers), 12)
    for world in (2, 4):
        ranks = [read(loader(folder, slots=4, workers=workers), 12, rank=r, world=world) for r in range(world)]
        for step, (batches, place) in enumerate(whole):
            shares = [stream[step][0] for stream in ranks]
            assert {str(stream[step][1]) for stream in ranks} == {str(place)}
            for number, batch in enumerate(batches):
                assert content(shares[number % world][number // world]) == content(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_can_be_made_again_from_its_place(folder: Path, kind: dict[str, Any]) -> None:
    fresh = loader(folder, **kind)
    for batches, _ in read(loader(folder, **kind), 14):
        for batch in batches:
            assert content(fresh.batch_at(Place.parse(batch.place))) == content(batch)


def rows_of(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row.tolist()) for row in batch.tokens.ids.split(batch.tokens.rows.lengths.tolist())]


def restored(batch: Batch) -> list[tuple[int, ...]]:
    """The sequences before masking."""
    ids = batch.tokens.ids.clone()
    ids[batch.targets["mlm"].index] = batch.targets["mlm"].label
    return [tuple(row.tolist()) for row in ids.split(batch.tokens.rows.lengths.tolist())]


def epoch(source: Loader, number: int) -> list[Batch]:
    """All micro-batches of an epoch whose steps have one slot."""
    batches: list[Batch] = []
    steps = source.steps(Place(epoch=number), step=0)
    for found, _ in steps:
        if Place.parse(found[0].place).epoch > number:
            break
        batches += found
    steps.close()
    return batches


def test_an_epoch_reads_every_token_once(folder: Path) -> None:
    source = loader(folder, slots=1, instances="documents")
    corpus = source.corpus
    expected = Counter(i for info in corpus.shards("train") for i in corpus.open(info).ids.tolist())
    orders = set()
    for number in (0, 1):
        batches = epoch(source, number)
        found = Counter(i for batch in batches for row in restored(batch) for i in row[1:-1])
        assert found == expected
        orders.add(tuple(int(batch.tokens.ids.sum()) for batch in batches))
    assert len(orders) == 2


def test_a_text_is_read_and_written_once_an_epoch(folder: Path) -> None:
    source = loader(folder, slots=1, instances="copies")
    corpus = source.corpus
    expected = Counter(i for info in corpus.shards("train") for i in corpus.open(info).ids.tolist())
    end, found = corpus.tokenizer.end_id, Counter[int]()
    for batch in epoch(source, 0):
        assert batch.starts_stream and batch.tokens.segments is None
        asked, written = iter(batch.targets["lm"].index.tolist()), iter(batch.targets["lm"].label.tolist())
        for begin, row in zip(batch.tokens.rows.first.tolist(), rows_of(batch), strict=True):
            text = row[: len(row) // 2]
            assert row == text * 2 and text[-1] == end and end not in text[:-1]
            # From the end of the text onwards, each token predicts the next: the whole text and its end token.
            assert [next(asked) - begin for _ in text] == list(range(len(text) - 1, len(row) - 1))
            assert tuple(next(written) for _ in text) == text
            found.update(text[:-1])
        assert next(asked, None) is None
    assert found == expected


def test_every_epoch_has_new_pairs_and_masks(folder: Path) -> None:
    source = loader(folder, slots=1)
    first, second = ([row for b in epoch(source, n) for row in restored(b)] for n in (0, 1))
    assert len(set(first) & set(second)) < len(first) / 2


def test_fixed_copies_repeat_after_their_number(folder: Path) -> None:
    """Sequences and their masks repeat every ``duplicates`` epochs; the batches are cut differently."""
    source = loader(folder, slots=1, duplicates=2)
    seen = [epoch(source, n) for n in range(4)]
    rows = [sorted(row for batch in batches for row in rows_of(batch)) for batches in seen]
    assert rows[0] == rows[2] and rows[1] == rows[3]
    assert rows[0] != rows[1]
    assert [rows_of(b) for b in seen[0]] != [rows_of(b) for b in seen[2]]


def test_phases_change_at_their_step_and_begin_anew(folder: Path) -> None:
    """The last 40 % of the 20 steps use the long length."""
    stream = read(loader(folder, long_length=32, long_share=0.4), 20)
    phases = [{Place.parse(batch.place).phase for batch in batches} for batches, _ in stream]
    assert phases == [{0}] * 12 + [{1}] * 8
    assert stream[12][0][0].place == "1:0:0:0"
    longest = [max(batch.tokens.rows.longest for batch in batches) for batches, _ in stream]
    assert max(longest[:12]) <= 16 < max(longest[12:]) <= 32


def test_rows_and_batches_keep_to_their_sizes(folder: Path) -> None:
    for kind in (*KINDS[:3], KINDS[4]):
        for batches, _ in read(loader(folder, **kind), 20):
            for batch in batches:
                assert batch.tokens.rows.n_tokens <= 64
                assert batch.tokens.rows.longest <= 16


def test_streams_keep_to_their_slots(folder: Path) -> None:
    """Within a shard, micro-batch i of a step continues where micro-batch i of the previous step ended."""
    before: list[Batch] = []
    goes_on = 0
    for batches, _ in read(loader(folder, instances="streams", slots=3), 30):
        starts = {batch.starts_stream for batch in batches}
        assert len(starts) == 1
        if not starts.pop():
            for now, old in zip(batches, before, strict=True):
                last_labels = old.targets["lm"].label[old.tokens.rows.last.long()]
                assert torch.equal(now.tokens.ids[now.tokens.rows.first.long()], last_labels)
                goes_on += 1
        before = batches
    assert goes_on > 10


def test_varied_windows_are_others_every_epoch(folder: Path) -> None:
    """All micro-batches of a step have one length, and the step's learning rate is proportional to it."""
    source = loader(folder, slots=2, instances="streams", varied_windows=True)
    by_epoch: dict[int, list[int]] = {0: [], 1: []}
    for batches, _ in read(source, 80):
        (length,) = {batch.tokens.rows.longest for batch in batches}
        assert {batch.rate_scale for batch in batches} == {length / 16}
        by_epoch.setdefault(Place.parse(batches[0].place).epoch, []).append(length)
    assert by_epoch[0] != by_epoch[1][: len(by_epoch[0])] and len(set(by_epoch[0])) > 3
    with pytest.raises(ConfigError, match="requires data.instances='streams', not 'pairs'"):
        loader(folder, varied_windows=True)
    with pytest.raises(ConfigError, match="read in both directions has windows of one length"):
        Loader(
            source.corpus, source.data, source.masking, source.layout, predict="both", budget_tokens=64, slots=1, seed=1
        )


def test_only_streams_begin_anew(folder: Path) -> None:
    def begins(every: int) -> list[bool]:
        source = loader(folder, instances="streams", restart_every=every)
        return [batches[0].starts_stream for batches, _ in read(source, 40)]

    assert all(begins(1)) and not all(begins(0))
    with pytest.raises(ConfigError, match="restart_every=2 requires data.instances='streams'"):
        loader(folder, restart_every=2)


def test_held_out_text_is_read_once_in_order(folder: Path) -> None:
    source = loader(folder, split="dev", instances="documents")
    whole = list(source.one_epoch())
    corpus = source.corpus
    expected = Counter(i for info in corpus.shards("dev") for i in corpus.open(info).ids.tolist())
    assert Counter(i for batch in whole for row in restored(batch) for i in row[1:-1]) == expected
    assert [content(b) for b in source.one_epoch()] == [content(b) for b in whole]
    assert [content(b) for b in source.one_epoch(3)] == [content(b) for b in whole[:3]]
    shares = [list(source.one_epoch(5, rank, 2)) for rank in (0, 1)]
    assert [content(b) for b in shares[0]] == [content(b) for b in whole[0:5:2]]
    assert [content(b) for b in shares[1]] == [content(b) for b in whole[1:5:2]]


def test_too_little_text_is_an_error_not_an_endless_search(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", [[[2]], [[1]]], [])
    with pytest.raises(CorpusError, match="too little text for data.length=16"):
        read(loader(folder, instances="streams", slots=4), 1)


def test_no_text_at_all_is_an_error(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", [[]], [])
    for split in ("train", "dev"):
        with pytest.raises(CorpusError, match=f"no {split} text"):
            read(loader(folder, split=split), 1)


def test_errors_of_a_worker_reach_the_reader(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    source = loader(folder, workers=2)
    (folder / "train-00001.ids.npy").unlink()
    with pytest.raises(CorpusError, match=r"train-00001\.ids\.npy is missing"):
        read(source, 40)


def test_a_budget_smaller_than_a_row_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="train.batch_tokens=64 is smaller than one sequence of 100"):
        loader(folder, length=100)
    with pytest.raises(ConfigError, match="one sequence of 65"):
        loader(folder, long_length=65)


def test_places_are_written_and_read() -> None:
    place = Place(1, 2, 3, 4)
    assert str(place) == "1:2:3:4" and Place.parse("1:2:3:4") == place
    assert Place(0, 1, 0, 9) < Place(1, 0, 0, 0)
    for text in ("", "1:2:3", "1:2:3:x", "1:2:3:4:5"):
        with pytest.raises(ConfigError, match="is not a position in the data"):
            Place.parse(text)


@pytest.mark.parametrize(
    "place",
    [Place(1), Place(group=3), Place(batch=10_000), Place(batch=-1), Place(-1), Place(0, -1), Place(0, 1 << 63)],
)
def test_places_outside_the_data_are_refused(folder: Path, place: Place) -> None:
    with pytest.raises(ConfigError, match="is not in this data"):
        loader(folder).batch_at(place)


@pytest.mark.parametrize(
    "options",
    [
        {"length": 7},
        {"length": 16, "long_length": 8},
        {"short_share": 1.5},
        {"duplicates": -1},
        {"workers": -1},
        {"instances": "streams", "long_length": 512},
        {"instances": "pairs", "long_length": 512, "mixed_lengths": True},
        {"instances": "documents", "mixed_lengths": True},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="data"):
        DataConfig(**options)


@pytest.mark.parametrize(("length", "budget_tokens"), [(128, 2048), (512, 4096)])
def test_no_rank_waits_long_for_another(length: int, budget_tokens: int, tmp_path: Path) -> None:
    """Micro-batches hold equally many tokens in sequences of similar length, so their costs differ little."""
    rng = np.random.default_rng(7)
    # Articles: 10 to 199 sentences of about 30 tokens each.
    documents = [
        np.clip(rng.lognormal(3.2, 0.6, rng.integers(10, 200)), 3, 120).astype(int).tolist()
        for _ in range(budget_tokens // 6)
    ]
    corpus = Corpus(write_corpus(tmp_path / "corpus", [documents], [[]]))
    source = Loader(
        corpus,
        DataConfig(corpus=str(corpus.folder), length=length, workers=0),
        MaskingConfig(),
        bert_layout(corpus.tokenizer),
        predict="masked",
        budget_tokens=budget_tokens,
        slots=8,
        seed=5,
    )
    config = BertConfig(vocab_size=30_522)
    steps = read(source, int(source.epoch_batches()) // 8)
    assert len(steps) > 70
    costs = np.array([[transformer_flops(config, batch) for batch in batches] for batches, _ in steps])
    for world in (2, 4, 8):
        by_rank = costs.reshape(len(costs), 8 // world, world).sum(1)
        waits = 1 - by_rank.sum(0) / by_rank.max(1).sum()
        assert 0 < waits.max() <= 0.03, (world, waits)
