"""The stream of micro-batches: a pure function of its options, so that it can resume at any position.

The stream runs over phases (sequence lengths), epochs, groups of shards in random order, and the shuffled batches
of a group. Rank r of a world takes every world-th micro-batch. A ``Place`` is the whole state.
"""

import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from firth.data.batch import Batch
from firth.data.both_ways import BothWaysBatches
from firth.data.config import DataConfig, MaskingConfig
from firth.data.hashing import permutation, seed_of
from firth.data.instances import (
    Instances,
    mixed_rooms,
    plan_copies,
    plan_crops,
    plan_documents,
    plan_pairs,
    plan_translations,
)
from firth.data.masking import Masker
from firth.data.rows import (
    Batches,
    CopyBatches,
    CropBatches,
    MixedBatches,
    NextTokenBatches,
    RowBatches,
    StreamBatches,
    TranslationBatches,
    cut_batches,
    row_lengths,
)
from firth.data.shards import Corpus, Shard, Split
from firth.errors import ConfigError, CorpusError
from firth.text.layouts import Layout, target_layout
from firth.text.open_words import vocabulary_characters

# Number of shards whose batches are shuffled together: a shard is contiguous text, often of one author or genre, and
# a model that sees shards one after another forgets.
MIXED_SHARDS = 16
_KEPT_GROUPS = 2
_AHEAD = 8


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The position of the next micro-batch: indices of phase, epoch, group of shards (in the epoch's order), batch."""

    phase: int = 0
    epoch: int = 0
    group: int = 0
    batch: int = 0

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Parse ``"0:0:3:17"``, the form in batches and errors."""
        try:
            phase, epoch, group, batch = map(int, text.split(":"))
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a position in the data: expected phase:epoch:group:batch, e.g. 0:0:3:17"
            ) from None
        return cls(phase, epoch, group, batch)

    def __str__(self) -> str:
        return f"{self.phase}:{self.epoch}:{self.group}:{self.batch}"


def _following(places: Sequence[Place]) -> Place:
    return replace(places[-1], batch=places[-1].batch + 1)


def _check(corpus: Corpus, data: DataConfig, predict: str, budget_tokens: int) -> None:
    """Raise ConfigError for options that do not fit one another or the corpus."""
    parallel = data.instances == "translations"
    if corpus.is_parallel != parallel:
        raise ConfigError(
            f"{corpus.folder} is {'parallel text' if corpus.is_parallel else 'text of one side'}, but "
            f"data.instances={data.instances!r}: translation requires parallel text, and only translation uses it "
            f"(firth prepare --second)"
        )
    if data.varied_windows and predict == "both":
        raise ConfigError("data.varied_windows=true: a stream read in both directions has windows of one length")
    if (parallel or data.instances == "crops") and budget_tokens < 2 * max(data.lengths):
        raise ConfigError(
            f"train.batch_tokens={budget_tokens} is smaller than a pair of sequences of {max(data.lengths)} "
            f"tokens: raise it or lower data.length"
        )
    if budget_tokens < max(data.lengths):
        raise ConfigError(
            f"train.batch_tokens={budget_tokens} is smaller than one sequence of {max(data.lengths)} tokens: "
            f"raise it or lower data.length"
        )


class Loader:
    """Loads micro-batches of a corpus for one kind of objective.

    ``predict``: ``"masked"``, ``"next"`` or, for streams, ``"previous"`` or ``"both"``. ``slots``: micro-batches per
    step, over all ranks. ``total_steps``: length of the run, which sets the phases.
    """

    def __init__(
        self,
        corpus: Corpus,
        data: DataConfig,
        masking: MaskingConfig,
        layout: Layout,
        *,
        predict: str,
        budget_tokens: int,
        slots: int,
        seed: int,
        total_steps: int = 1,
        split: Split = "train",
    ):
        _check(corpus, data, predict, budget_tokens)
        if data.instances == "copies":
            # A text to reconstruct ends like one that a classifier reads.
            layout = replace(layout, between=layout.last)
        self.corpus, self.data, self.masking, self.layout = corpus, data, masking, layout
        self.target_layout = target_layout(corpus.tokenizer)
        self.predict, self.budget_tokens, self.slots = predict, budget_tokens, slots
        self.seed, self.split = seed, split
        # The step before which each phase ends (the last one never does).
        self.phase_ends = (round(total_steps * (1 - data.long_share)),)
        self.infos = [info for info in corpus.shards(split) if info.tokens]
        # A stream is cut from one shard: batches of another shard in between would break its recurrent state.
        self.group_size = 1 if data.instances == "streams" else MIXED_SHARDS
        self.n_groups = -(-len(self.infos) // self.group_size)
        self._made: dict[tuple[int, int, int], Batches] = {}
        self._lock = threading.Lock()

    def batch_at(self, place: Place) -> Batch:
        """Build the micro-batch at a position."""
        if not 0 <= place.epoch < 1 << 63:
            raise ConfigError(f"{place} is not in this data: an epoch is 0 or more")
        if not 0 <= place.phase < len(self.data.lengths) or not 0 <= place.group < self.n_groups:
            raise ConfigError(
                f"{place} is not in this data: {len(self.data.lengths)} phases, {self.n_groups} groups of shards"
            )
        batches = self._batches(place)
        if not 0 <= place.batch < len(batches):
            raise ConfigError(f"{place} is not in this data: that group has {len(batches)} batches")
        return batches[place.batch]

    def one_epoch(self, limit: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this rank's micro-batches of the first epoch (of the first ``limit``, if not 0), in order.

        As in a step, a rank has every ``world``-th slot: recurrent state passes from batch to batch of one slot.
        """
        places = (
            Place(group=number, batch=i)
            for number in range(self.n_groups)
            for i in range(len(self._batches(Place(group=number))))
        )
        for number, place in enumerate(itertools.islice(places, limit or None)):
            if number % self.slots % world == rank:
                yield self.batch_at(place)

    def steps(
        self, start: Place, *, step: int, rank: int = 0, world: int = 1
    ) -> Generator[tuple[list[Batch], Place], None, None]:
        """Yield, for each step from ``step`` (from 0) on, this rank's micro-batches and the position of the next step.

        ``start`` is the position of the first. ``data.workers`` threads build batches ahead of time.
        """
        plan = self._step_places(start, step)
        if not self.data.workers:
            for places in plan:
                yield [self.batch_at(place) for place in places[rank::world]], _following(places)
            return
        with ThreadPoolExecutor(self.data.workers, thread_name_prefix="firth-data") as pool:
            queue: deque[tuple[list[Future[Batch]], Place]] = deque()
            try:
                while True:
                    while len(queue) < max(2, _AHEAD * world // self.slots):
                        places = next(plan)
                        made = [pool.submit(self._batches(p).__getitem__, p.batch) for p in places[rank::world]]
                        queue.append((made, _following(places)))
                    # Batches still in the queue when the run stops are never built.
                    futures, following = queue[0]
                    batches = [future.result() for future in futures]
                    queue.popleft()
                    yield batches, following
            finally:
                for futures, _ in queue:
                    for future in futures:
                        future.cancel()

    def epoch_batches(self) -> float:
        """Estimate the micro-batches of the first epoch from those of the first group of shards."""
        total = sum(info.tokens for info in self.infos)
        if not total:
            return 0.0
        read = sum(self.infos[number].tokens for number in self._group(Place()))
        return len(self._batches(Place())) * total / read

    def left_out(self) -> int:
        """Number of parallel pairs too long for the last phase's sequences, and so never used."""
        if self.data.instances != "translations":
            return 0
        shards = [self.corpus.open(info) for info in self.infos]
        return sum(len(s.documents) - 1 - len(self._plan(s, self.data.lengths[-1], 0, 0).key) for s in shards)

    def _step_places(self, place: Place, step: int) -> Iterator[list[Place]]:
        """Yield the positions of each step's micro-batches over all ranks, endlessly."""
        while True:
            while place.phase + 1 < len(self.data.lengths) and step >= self.phase_ends[place.phase]:
                place = Place(phase=place.phase + 1)
            places = []
            for _ in range(self.slots):
                places.append(place := self._existing(place))
                place = replace(place, batch=place.batch + 1)
            yield places
            step += 1

    def _existing(self, place: Place) -> Place:
        """The position itself, or at the end of a group or epoch the next one that has a batch."""
        empty = 0
        while place.batch >= len(self._batches(place)):
            empty = empty + 1 if place.batch == 0 else 0
            if empty > self.n_groups:
                raise CorpusError(
                    f"{self.corpus.folder} has too little text for data.length={self.data.lengths[place.phase]} and "
                    f"train.batch_tokens={self.budget_tokens}: give more text or lower them"
                )
            place = replace(place, group=place.group + 1, batch=0)
            if place.group == self.n_groups:
                place = replace(place, epoch=place.epoch + 1, group=0)
        return place

    def _batches(self, place: Place) -> Batches:
        """The batches of the position's group; caches the last two groups."""
        if not self.infos:
            raise CorpusError(f"{self.corpus.folder} has no {self.split} text")
        key = (place.phase, place.epoch, place.group)
        with self._lock:
            if key not in self._made:
                while len(self._made) >= _KEPT_GROUPS:
                    del self._made[next(iter(self._made))]
                self._made[key] = self._make_group(place)
            return self._made[key]

    def _make_group(self, place: Place) -> MixedBatches:
        seed = seed_of(self.seed, self.split, place.phase)
        parts = [self._make(place, seed, number) for number in self._group(place)]
        last = place.group + 1 == self.n_groups
        following = replace(place, epoch=place.epoch + last, group=0 if last else place.group + 1)
        self.corpus.read_ahead([self.infos[number] for number in self._group(following)])
        mixed = seed_of(seed, place.epoch, place.group, "mix") if len(parts) > 1 else None
        return MixedBatches.of(parts, mixed, f"{place.phase}:{place.epoch}:{place.group}")

    def _group(self, place: Place) -> list[int]:
        """The indices of the shards in a group."""
        seed = seed_of(self.seed, self.split, place.phase)
        order = permutation(seed_of(seed, place.epoch, "shards"), len(self.infos))
        first = place.group * self.group_size
        return [int(number) for number in order[first : first + self.group_size]]

    def _make(self, place: Place, seed: int, number: int) -> Batches:
        # With fixed copies of the data, epoch n + d repeats epoch n.
        epoch = place.epoch % self.data.duplicates if self.data.duplicates else place.epoch
        shard, length = self.corpus.open(self.infos[number]), self.data.lengths[place.phase]
        if self.data.instances == "streams" and self.predict == "both":
            return BothWaysBatches.cut(
                shard,
                self.layout,
                length=length,
                budget_tokens=self.budget_tokens,
                slots=self.slots,
                chars=self._chars,
                seed=seed_of(seed, shard.name, epoch, "sentences") if self.split == "train" else None,
                restart_every=self.data.restart_every,
            )
        if self.data.instances == "streams":
            return StreamBatches.cut(
                shard,
                self.layout,
                length=length,
                budget_tokens=self.budget_tokens,
                slots=self.slots,
                backward=self.predict == "previous",
                window_seed=seed_of(seed, shard.name, epoch, "window") if self.data.varied_windows else None,
                restart_every=self.data.restart_every,
            )
        shard_seed = seed_of(seed, shard.name)
        instances = self._plan(shard, length, shard_seed, epoch)
        order_seed = seed_of(shard_seed, place.epoch, "order")
        if self.data.instances == "translations":
            return TranslationBatches.cut(
                shard,
                instances,
                self.layout,
                self.target_layout,
                end_id=self.corpus.tokenizer.end_id,
                budget_tokens=self.budget_tokens,
                seed=order_seed,
            )
        if self.data.instances == "crops":
            return CropBatches.cut(shard, instances, self.layout, budget_tokens=self.budget_tokens, seed=order_seed)
        cuts = cut_batches(row_lengths(instances, self.layout), self.budget_tokens, order_seed)
        if self.data.instances == "copies":
            return CopyBatches(shard, instances, cuts, self.layout)
        if self.predict == "next":
            return NextTokenBatches(shard, instances, cuts, self.layout)
        tokenizer = self.corpus.tokenizer
        masker = Masker(self.masking, tokenizer.mask_id, tokenizer.continues, length)
        return RowBatches(shard, instances, cuts, self.layout, masker, seed_of(shard_seed, epoch, "mask"))

    @cached_property
    def _chars(self) -> np.ndarray:
        """The characters of each word of the vocabulary."""
        return vocabulary_characters(self.corpus.tokenizer)

    def _rooms(self, shard: Shard, length: int, seed: int, epoch: int) -> int | np.ndarray:
        """Tokens that fit between the special ones: one number, or with mixed lengths one for each document."""
        room = length - self.layout.n_special
        if not self.data.mixed_lengths:
            return room
        short = self.data.length - self.layout.n_special
        return mixed_rooms(len(shard.documents) - 1, short, room, self.data.long_share, seed, epoch)

    def _plan(self, shard: Shard, length: int, seed: int, epoch: int) -> Instances:
        if self.data.instances == "documents":
            return plan_documents(shard.document_tokens, self._rooms(shard, length, seed, epoch), seed, epoch)
        if self.data.instances == "copies":
            return plan_copies(shard.document_tokens, length - self.layout.n_special_pair, seed, epoch)
        if self.data.instances == "crops":
            return plan_crops(shard.document_tokens, length - self.layout.n_special, seed, epoch)
        if self.data.instances == "translations":
            return plan_translations(
                shard.sentences, length - self.layout.n_special, length - self.target_layout.n_special
            )
        room = length - self.layout.n_special_pair
        return plan_pairs(shard.sentences, shard.documents, room, self.data.short_share, seed, epoch)
