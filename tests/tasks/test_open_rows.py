"""Rows whose words are read by their characters."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of

from firth.convert.elmo import spaced_words
from firth.data.rows import pack_lists, pack_words
from firth.finetuning.features import store_features
from firth.models.bilm import Bilm
from firth.models.config import BilmConfig
from firth.systems import SYSTEMS
from firth.tasks.config import AnswerConfig, ChooseConfig, ClassifyConfig, TagConfig, WindowConfig
from firth.tasks.rows import Example, PairText, RowMaker, collate, make_row
from firth.tasks.table import TASKS
from firth.tasks.tag import Tagger, tag_examples
from firth.text import open_words
from firth.text.open_words import OpenWords, opened
from firth.text.records import Choice, Question, Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

CONFIG = TagConfig(labels=("O", "B-X"), network=network_of(layers=(0, 1), mix="scalar"))


def tokenizer() -> OpenWords:
    return opened(spaced_words(["the", "cat"]))


def maker(made: Tokenizer, length: int = 12) -> RowMaker:
    return RowMaker(made, SYSTEMS["elmo"].layout(made), WindowConfig(length=length), None)


def tagged(*words: str) -> Tagged:
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].tolist()
    spans = tuple((a, a + len(word)) for a, word in zip(starts, words, strict=True))
    return Tagged(text, spans, ("O",) * len(words), "f:1")


def tagger() -> Tagger:
    torch.manual_seed(0)
    config = BilmConfig(
        vocab_size=6, width=4, cells=6, n_layers=1, character_width=3, filters=((1, 4), (2, 4)), n_highways=0
    )
    return Tagger(Bilm(config), CONFIG).eval()


def test_a_row_keeps_the_characters_of_words_outside_the_vocabulary() -> None:
    made = tokenizer()
    (row,) = maker(made).single(made.ids_many(["the zebra"])[0])
    assert row.ids.tolist() == [made.start_id, 4, made.unk_id, made.end_id]
    assert row.chars is not None and row.chars.shape == (4, 50)
    assert bytes(row.chars[2][1:6].astype(np.uint8)) == b"zebra"
    (pair,) = maker(made).pair(PairText([4]), PairText([5]))
    assert pair.ids.tolist() == [1, 4, 3, 1, 5, 3]
    closed = Tokenizer.from_vocab([*SPECIALS, "the"], lowercase=True)
    assert RowMaker(closed, SYSTEMS["bert"].layout(closed), WindowConfig(), None).single([5])[0].chars is None


def test_batches_have_the_characters_of_all_rows_and_move_them() -> None:
    made = tokenizer()
    rows = [maker(made).single(ids)[0] for ids in made.ids_many(["the zebra", "cat"])]
    tokens = collate([Example((row,), (1,), {}) for row in rows]).tokens
    assert tokens.chars is not None and tokens.chars.dtype == torch.int32
    assert np.array_equal(tokens.chars.numpy(), np.concatenate([row.chars for row in rows]))
    assert tokens.to("meta").chars.device.type == "meta"
    plain = make_row([1, 2])
    assert collate([Example((plain,), (1,), {})]).tokens.chars is None


def test_lists_of_ids_are_packed_with_their_characters() -> None:
    made = tokenizer()
    ids = made.ids_many(["the zebra", "yak"])
    tokens = pack_words(ids, made)
    assert tokens.ids.tolist() == [4, made.unk_id, made.unk_id]
    assert np.array_equal(tokens.chars.numpy(), made.characters(sum(ids, [])))
    closed = Tokenizer.from_vocab([*SPECIALS, "the"], lowercase=True)
    assert pack_words([[5, 5]], closed).ids.tolist() == pack_lists([[5, 5]]).ids.tolist()
    assert pack_words([[5]], closed).chars is None


def test_words_of_a_data_set_are_tokens_as_they_stand() -> None:
    made = tokenizer()
    (example,) = tag_examples([tagged("the", "U.S.-based", "cat")], maker(made), CONFIG)
    (row,) = example.rows
    assert row.words is not None and row.words.pieces.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert bytes(row.chars[2][1:11].astype(np.uint8)) == b"U.S.-based"


TEXTS = [f"one{i} two{i} the three{i}" for i in range(40)]
KINDS: dict[str, tuple[Any, Sequence[Any]]] = {
    "classify": (ClassifyConfig(labels=("a", "b")), [Text(text, second=text[::-1], label="a") for text in TEXTS]),
    "tag": (CONFIG, [tagged(*text.split()) for text in TEXTS]),
    "tag characters": (
        dataclasses.replace(CONFIG, unit="character"),
        [Tagged(text, tuple((i, i + 1) for i in range(len(text))), ("O",) * len(text)) for text in TEXTS],
    ),
    "choose": (ChooseConfig(), [Choice(text, "what", (text[::-1], "the"), 0) for text in TEXTS]),
    "answer": (AnswerConfig(), [Question(text, "why " + text[::-1], ()) for text in TEXTS]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_more_unknown_words_than_are_remembered_have_their_characters(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, records = KINDS[kind]
    examples = TASKS[kind.split()[0]].examples
    expected = examples(records, maker(tokenizer(), 24), config)
    monkeypatch.setattr(open_words, "MOST_WORDS", 70)  # fewer than all records have, more than any one has
    found = examples(records, maker(tokenizer(), 24), config)
    assert len(found) == len(expected) and all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.chars, b.chars)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one.rows, other.rows, strict=True)
    )


def test_words_that_differ_in_a_letter_have_other_vectors() -> None:
    made, model = tokenizer(), tagger()
    examples = tag_examples([tagged("the", word) for word in ("zebra", "zebru", "zebra")], maker(made), CONFIG)
    tokens = collate(examples).tokens
    assert tokens.ids.unflatten(0, (3, 4)).unique(dim=0).shape == (1, 4)
    first, second, third = model.read(tokens).layers[1].unflatten(0, (3, 4))
    assert torch.equal(first, third) and not torch.allclose(first[2], second[2])


def test_stored_features_are_of_the_characters_too(tmp_path: Path) -> None:
    made, model = tokenizer(), tagger()
    one, other = (tag_examples([tagged("the", word)], maker(made), CONFIG) for word in ("zebra", "zebru"))
    assert np.array_equal(one[0].rows[0].ids, other[0].rows[0].ids)
    places = []
    for examples in (one, other, one):
        stored, referring = store_features(model, examples, tmp_path / "f", dtype=torch.float32)
        places.append(np.array(stored.vectors[1]))
        assert all(row.chars is None for example in referring for row in example.rows)
    assert np.array_equal(places[0], places[2]) and not np.allclose(places[0], places[1])


def test_a_row_without_characters_cannot_be_read() -> None:
    row = dataclasses.replace(make_row([4, 5]), chars=None)
    with pytest.raises(ValueError, match="tokens.chars is missing"):
        tagger().encoder(collate([Example((row,), (1,), {})]).tokens)
