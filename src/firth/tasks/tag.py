"""Token classification over the words of a document (Devlin et al. 2018, §5.3).

A document is read in windows: each tags the words of its core, and the words around the core are context.
The cores are contiguous, so every word is tagged once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from firth.data.batch import Batch, Step
from firth.errors import InputError
from firth.layers.crf import Crf
from firth.packed import Carry, Encoder, Tokens
from firth.tasks.config import TagConfig
from firth.tasks.model import TaskModel
from firth.tasks.predictions import TaggedText
from firth.tasks.rows import Example, Outputs, Row, RowMaker, RowWords, target
from firth.tasks.tag_schemes import allowed, continued, to_bio, to_bioes
from firth.tasks.tag_units import entities_of
from firth.text.open_words import in_blocks
from firth.text.records import Tagged


class Tagger(TaskModel):
    """Predicts a tag for each target word, independently or by a CRF over the sequence; term ``tag``."""

    unit = "word"

    def __init__(self, encoder: Encoder, config: TagConfig):
        super().__init__()
        self.build(encoder, config, len(config.labels), {"tag": 1.0})
        self.crf = _crf(config) if config.crf else None

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, tag = self.read(batch.tokens), batch.targets["tag"].label
        logits = self.logits(hidden, batch.tokens)
        if self.crf is None:
            loss = F.cross_entropy(logits, tag, reduction="sum", label_smoothing=self.config.label_smoothing)
        else:
            assert batch.tokens.words is not None
            loss = self.crf.loss(logits, tag, batch.tokens.words.asked_rows)
        return self.step({"tag": loss}, {"tag": (logits.argmax(1) == tag).sum()}, hidden, batch)

    def outputs(self, tokens: Tokens) -> dict[str, Tensor]:
        """``tag`` (M,): the index of each target word's tag; ``probability`` (M, K)."""
        logits = self.logits(self.read(tokens), tokens)
        if self.crf is None:
            return {"tag": logits.argmax(1), "probability": logits.softmax(1)}
        assert tokens.words is not None
        rows = tokens.words.asked_rows
        return {"tag": self.crf.decode(logits, rows), "probability": self.crf.marginals(logits, rows)}


def _crf(config: TagConfig) -> Crf:
    """A CRF without the transitions that the tag scheme forbids.

    A sequence may start or end within an entity: it can be a window of a longer text.
    """
    tags, scheme = config.labels, config.scheme
    # On the CPU: the constraints' values are needed even where the model is built for its sizes alone.
    transitions = torch.tensor([[allowed(a, b, scheme) for b in tags] for a in tags], device="cpu")
    anywhere = torch.ones(len(tags), dtype=torch.bool, device="cpu")
    return Crf(len(tags), transitions, anywhere, anywhere)


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """A word of a document: its tokens, its record, and its units there.

    A unit is a word, or in character tagging the characters that share a token. ``cut``: some of its tokens do not fit
    into a sequence.
    """

    ids: tuple[int, ...]
    record: int
    first_unit: int
    n_units: int
    cut: bool = False


def tag_examples(records: Sequence[Tagged], maker: RowMaker, config: TagConfig) -> list[Example]:
    """Build one example for each window; InputError for an unknown tag."""
    placer = _word_placer if config.unit == "word" else _character_placer
    found = []
    for block in in_blocks(list(documents(records)), lambda document: sum(len(records[n].text) for n in document)):
        place = placer({number: records[number] for document in block for number in document}, maker)
        for document in block:
            placed = {number: place(number) for number in document}
            gold = {number: _numbers(records[number], words, config) for number, words in placed.items()}
            for row, asked in _windows([word for words in placed.values() for word in words], maker):
                tags = [gold[w.record][w.first_unit] for w in asked if gold[w.record]]
                targets = {"tag": target(range(len(tags)), np.array(tags, np.int64))} if tags else {}
                found.append(Example((row,), (1,), targets, tuple(asked)))
    return found


def documents(records: Sequence[Tagged]) -> Iterator[list[int]]:
    """The record indices of each document: consecutive records of one group."""
    keyed = groupby(range(len(records)), key=lambda i: records[i].group or i)
    return (list(numbers) for _, numbers in keyed)


def _numbers(record: Tagged, words: Sequence[PlacedWord], config: TagConfig) -> dict[int, int]:
    """The label index of each word's tag (BIO, or plain), taken from its first unit; empty without tags."""
    if record.tags is None:
        return {}
    tags: Sequence[str] = [record.tags[word.first_unit] for word in words]
    if config.scheme != "plain":
        # A token has the tag of its first character, so an entity may start with I-. IOB1 accepts that,
        # as scoring (conlleval) does.
        try:
            tags = (to_bio if config.scheme == "BIO" else to_bioes)(tags, "IOB1")
        except InputError as error:
            raise InputError(f"{record.where}: {error}") from None
    for tag in tags:
        if tag not in config.labels:
            raise InputError(f"{record.where}: tag {tag!r}: expected one of {', '.join(config.labels)}")
    return {word.first_unit: config.labels.index(tag) for word, tag in zip(words, tags, strict=True)}


def _word_placer(records: Mapping[int, Tagged], maker: RowMaker) -> Callable[[int], list[PlacedWord]]:
    """Place words that each have their own tokens; a word without any (unprintable) becomes the unknown token."""
    known = list(dict.fromkeys(word for record in records.values() for word in record.words))
    unknown, room = (maker.tokenizer.unk_id,), maker.length - maker.layout.n_special
    pieces = {w: tuple(ids) or unknown for w, ids in zip(known, maker.tokenizer.ids_many(known), strict=True)}

    def place(number: int) -> list[PlacedWord]:
        words = [pieces[word] for word in records[number].words]
        return [PlacedWord(ids[:room], number, unit, 1, len(ids) > room) for unit, ids in enumerate(words)]

    return place


def _character_placer(records: Mapping[int, Tagged], maker: RowMaker) -> Callable[[int], list[PlacedWord]]:
    """Place each token as a word whose units are the characters it covers.

    A character without a token (a space) belongs to none: its tag follows from its neighbours. A token that begins no
    character, such as the second of a syllable, belongs to the word before it, or to the first one.
    """
    rows = maker.tokenizer.encode_many([record.text for record in records.values()])
    encoded = dict(zip(records, rows, strict=True))

    def place(number: int) -> list[PlacedWord]:
        units = records[number].spans
        placed, unit, before = list[PlacedWord](), 0, list[int]()
        for piece, (begin, end) in zip(encoded[number].ids, encoded[number].offsets, strict=True):
            while unit < len(units) and units[unit][1] <= begin:
                unit += 1
            first = unit
            while unit < len(units) and units[unit][0] < end:
                unit += 1
            if unit > first:
                placed.append(PlacedWord((*before, piece), number, first, unit - first))
                before.clear()
            elif placed:
                placed[-1] = replace(placed[-1], ids=(*placed[-1].ids, piece))
            else:
                before.append(piece)
        return placed

    return place


def _windows(words: Sequence[PlacedWord], maker: RowMaker) -> Iterator[tuple[Row, Sequence[PlacedWord]]]:
    """The sequences of a document, each with the words that it tags."""
    room = maker.length - maker.layout.n_special
    sizes = [len(word.ids) for word in words]
    ends = np.cumsum(sizes)
    if not words:
        return
    if ends[-1] > room:
        maker.noted["document read in windows"] += 1
    if any(word.cut for word in words):
        maker.noted["word longer than a sequence cut"] += 1
    for a, b in cores(sizes, room, maker.stride(room)):
        left, right = surround(ends, a, b, room)
        yield _row(words[left:right], range(a - left, b - left), maker), words[a:b]


def cores(sizes: Sequence[int], room: int, core: int) -> list[tuple[int, int]]:
    """Words ``[a, b)`` that each sequence tags: all in one if they fit, else at most ``core`` tokens each."""
    if sum(sizes) <= room:
        return [(0, len(sizes))]
    found, begin, filled = [], 0, 0
    for number, size in enumerate(sizes):
        if filled and filled + size > core:
            found.append((begin, number))
            begin, filled = number, 0
        filled += size
    return [*found, (begin, len(sizes))]


def surround(ends: np.ndarray, a: int, b: int, room: int) -> tuple[int, int]:
    """Words ``[left, right)`` around the core ``[a, b)``: as many as fit, half on each side where both have some.

    ``ends``: cumulative number of tokens at each word of the document.
    """
    starts = np.concatenate(([0], ends))
    spare = room - int(starts[b] - starts[a])
    after = min(spare - spare // 2, int(starts[-1] - starts[b]))
    before = min(spare - after, int(starts[a]))
    after = min(spare - before, int(starts[-1] - starts[b]))
    left = int(np.searchsorted(starts, starts[a] - before))
    right = int(np.searchsorted(starts, starts[b] + after, side="right")) - 1
    return left, right


def _row(words: Sequence[PlacedWord], asked: range, maker: RowMaker) -> Row:
    ids = [piece for word in words for piece in word.ids]
    sizes = np.array([len(word.ids) for word in words])
    ends = np.cumsum(sizes) + len(maker.layout.first)
    pieces = np.stack((ends - sizes, ends - 1), 1)
    cut = any(word.cut for word in words)
    return maker.row(maker.layout.single(ids), words=RowWords(pieces, np.array(asked, np.int64)), cut=cut)


def tag_answers(
    records: Sequence[Tagged], examples: Sequence[Example], outputs: Sequence[Outputs], config: TagConfig
) -> list[TaggedText]:
    """Decode the tags of each record, and its entities as character spans of its text."""
    tags: list[list[str]] = [[""] * len(record.spans) for record in records]
    sure: list[list[float]] = [[1.0] * len(record.spans) for record in records]
    windows, cut = Counter[int](), set[int]()
    for example, (row,) in zip(examples, outputs, strict=True):
        windows.update({word.record for word in example.about})
        cut.update(word.record for word in example.about if word.cut)
        for word, number, shares in zip(example.about, row["tag"], row["probability"], strict=True):
            for unit in range(word.first_unit, word.first_unit + word.n_units):
                tag = _in_bio(config.labels[int(number)], config.scheme)
                tags[word.record][unit] = tag if unit == word.first_unit else continued(tag)
                sure[word.record][unit] = float(shares[int(number)])
    found = []
    for number, record in enumerate(records):
        bio, shares = tuple(_filled(tags[number])), tuple(sure[number])
        spans = entities_of(record, bio, shares, config.scheme)
        words, offsets = record.words, tuple(record.spans)
        found.append(TaggedText(bio, shares, spans, words, offsets, windows[number], number in cut))
    return found


def _in_bio(tag: str, scheme: str) -> str:
    """Convert a predicted tag to BIO."""
    return f"{'BI'[tag[0] == 'E']}{tag[1:]}" if scheme == "BIOES" and tag[:2] in ("S-", "E-") else tag


def _filled(tags: list[str]) -> list[str]:
    """Tag the characters that no token covers: inside if the entity continues after them, else outside."""
    after = "O"
    for place in range(len(tags) - 1, -1, -1):
        tags[place] = tags[place] or (after if after.startswith("I-") else "O")
        after = tags[place]
    return tags
