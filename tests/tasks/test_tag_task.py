"""Token classification: windows over documents, tokens of several characters, scheme conversion, entities."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import ConfigError, InputError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.config import TagConfig, WindowConfig
from firth.tasks.predictions import TaggedText
from firth.tasks.rows import Example, RowMaker, collate
from firth.tasks.tag import Tagger, cores, documents, surround, tag_answers, tag_examples
from firth.text.layouts import bert_layout
from firth.text.records import Tagged
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

_LETTERS = "abcdefgh"
_KOREAN = ["이순신", "##은", "이", "##순신은", "신이", "##순", "##신", "서울", "##에", "##서", "살다", "."]
TOKENIZER = Tokenizer.from_vocab([*SPECIALS, *_LETTERS, *(f"##{c}" for c in _LETTERS), *_KOREAN], lowercase=False)
BIO = ("O", "B-PS", "I-PS", "B-LC", "I-LC")
BIOES = ("O", *(f"{p}-{e}" for e in ("PS", "LC") for p in "BIES"))
SIZES = BertConfig(
    vocab_size=TOKENIZER.size,
    width=8,
    n_layers=1,
    n_heads=2,
    feed_forward_width=12,
    max_positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)


def maker(length: int = 16, stride: int = 0) -> RowMaker:
    return RowMaker(TOKENIZER, bert_layout(TOKENIZER), WindowConfig(length=length, stride=stride), None)


def config(**options: Any) -> TagConfig:
    return TagConfig(**{"labels": BIOES if options.get("scheme") == "BIOES" else BIO, **options})


def sentence(words: Sequence[str], tags: Sequence[str] | None = None, group: str = "") -> Tagged:
    """A sentence with a space after each word."""
    ends = np.cumsum([len(word) + 1 for word in words]).tolist()
    spans = tuple((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))
    return Tagged(" ".join(words), spans, None if tags is None else tuple(tags), "f.tsv:1", group=group)


def characters(text: str, tags: Sequence[str] | None = None) -> Tagged:
    """A record in which every character except spaces is a unit."""
    spans = tuple((i, i + 1) for i, c in enumerate(text) if c != " ")
    return Tagged(text, spans, None if tags is None else tuple(tags), "f.tsv:1")


def shown(example: Example) -> list[str]:
    """A row's words, the asked ones in brackets."""
    (row,) = example.rows
    assert row.words is not None
    words = ["".join(TOKENIZER.pieces[i] for i in row.ids[a : b + 1]).replace("##", "") for a, b in row.words.pieces]
    return [f"[{word}]" if i in row.words.asked else word for i, word in enumerate(words)]


def answered(records: Sequence[Tagged], examples: Sequence[Example], options: TagConfig) -> list[TaggedText]:
    """The answers if every asked word gets its gold tag, with probability 0.75."""
    outputs = []
    for example in examples:
        tags = example.targets["tag"][1]
        shares = np.full((len(tags), len(options.labels)), 0.25 / (len(options.labels) - 1))
        shares[np.arange(len(tags)), tags] = 0.75
        outputs.append([{"tag": tags, "probability": shares}])
    return tag_answers(records, examples, outputs, options)


# --- windows of documents -------------------------------------------------------------------------

SIZES_OF_WORDS = st.lists(st.integers(1, 7), min_size=1, max_size=40)


@settings(max_examples=200)
@given(SIZES_OF_WORDS, st.integers(7, 30), st.integers(1, 30))
def test_every_word_is_in_one_core(sizes: list[int], room: int, core: int) -> None:
    found = cores(sizes, room, min(core, room))
    assert found[0][0] == 0 and found[-1][1] == len(sizes)
    assert all(one[1] == other[0] for one, other in pairwise(found))
    for a, b in found:
        assert a < b
        assert sum(sizes[a:b]) <= room
        if len(found) > 1:
            assert sum(sizes[a:b]) <= min(core, room) or b - a == 1
    if sum(sizes) <= room:
        assert len(found) == 1
    # None has room for the next word.
    if len(found) > 1:
        assert all(sum(sizes[a : b + 1]) > min(core, room) for a, b in found[:-1])


@settings(max_examples=300)
@given(SIZES_OF_WORDS, st.integers(7, 30), st.integers(1, 30))
def test_context_is_balanced_and_fills_the_row(sizes: list[int], room: int, core: int) -> None:
    ends = np.cumsum(sizes)
    for a, b in cores(sizes, room, min(core, room)):
        left, right = surround(ends, a, b, room)
        assert 0 <= left <= a < b <= right <= len(sizes)
        before, after = sum(sizes[left:a]), sum(sizes[b:right])
        spare = room - sum(sizes[a:b])
        assert before + after <= spare
        # The unused room is less than the next word on each side needs.
        slack_left = sizes[left - 1] - 1 if left else 0
        slack_right = sizes[right] - 1 if right < len(sizes) else 0
        unused = spare - before - after
        assert unused <= slack_left + slack_right or (left == 0 and right == len(sizes))
        # A side gets more than half only if the other side has no more words.
        if left and right < len(sizes):
            assert before <= spare / 2 and after <= spare - spare // 2
            assert abs(before - after) <= slack_left + slack_right + 1


def test_context_by_hand() -> None:
    ends = np.cumsum([1] * 10)
    assert surround(ends, 4, 6, 6) == (2, 8)
    assert surround(ends, 4, 6, 7) == (2, 9)
    assert surround(ends, 0, 2, 6) == (0, 6)
    assert surround(ends, 8, 10, 6) == (4, 10)
    assert surround(ends, 1, 3, 8) == (0, 8)
    assert surround(ends, 0, 10, 10) == (0, 10)


def test_documents_are_neighbours_of_one_group() -> None:
    records = [sentence(["a"], group=group) for group in ("x", "x", "", "", "y", "x")]
    assert list(documents(records)) == [[0, 1], [2], [3], [4], [5]]


def test_context_stays_within_the_document() -> None:
    records = [
        sentence(["a", "b"], ["O", "O"], "1"),
        sentence(["c"], ["O"], "1"),
        sentence(["d"], ["O"], "2"),
    ]
    made = maker(16)
    assert [shown(e) for e in tag_examples(records, made, config())] == [["[a]", "[b]", "[c]"], ["[d]"]]
    assert not made.noted


def test_a_long_document_is_tagged_core_by_core() -> None:
    records = [sentence(list("abcd"), "OOOO", "1"), sentence(list("efgh"), "OOOO", "1")]
    made = maker(11, stride=3)  # room for nine tokens
    assert [shown(e) for e in tag_examples(records, made, config())] == [
        ["[a]", "[b]", "[c]", "[d]", "[e]", "[f]", "[g]", "[h]"]
    ]
    records.append(sentence(list("abc"), "OOO", "1"))
    assert [shown(e) for e in tag_examples(records, made, config())] == [
        ["[a]", "[b]", "[c]", "d", "e", "f", "g", "h", "a"],
        ["a", "b", "c", "[d]", "[e]", "[f]", "g", "h", "a"],
        ["c", "d", "e", "f", "[g]", "[h]", "[a]", "b", "c"],
        ["c", "d", "e", "f", "g", "h", "a", "[b]", "[c]"],
    ]
    assert made.noted == {"document read in windows": 1}


_WORDS = st.lists(st.text("abcd", min_size=1, max_size=14), max_size=12)


@settings(max_examples=60)
@given(st.lists(st.tuples(_WORDS, st.sampled_from("xyy")), max_size=5), st.integers(0, 12), st.integers(11, 20))
def test_every_word_of_every_record_is_asked_once(made_of: list[Any], stride: int, length: int) -> None:
    records = [sentence(words, ["O"] * len(words), group) for words, group in made_of]
    examples = tag_examples(records, maker(length, stride), config())
    seen = Counter((word.record, word.first_unit) for example in examples for word in example.about)
    assert seen == {(i, j): 1 for i, (words, _) in enumerate(made_of) for j in range(len(words))}
    for example in examples:
        (row,) = example.rows
        assert row.words is not None
        assert len(row.ids) <= length
        assert len(example.about) == len(row.words.asked) == len(example.targets["tag"][1])
        # The tokens of a row's words are contiguous, without the special tokens.
        flat = [place for a, b in row.words.pieces.tolist() for place in range(a, b + 1)]
        assert flat == list(range(1, len(row.ids) - 1))
        for word, place in zip(example.about, row.words.asked, strict=True):
            a, b = row.words.pieces[place]
            assert row.ids[a : b + 1].tolist() == list(word.ids)[: length - 2]


def test_a_sentence_of_600_words_loses_none() -> None:
    tags = [BIO[i % 3] for i in range(600)]
    record = sentence(["abc"] * 600, tags)
    examples = tag_examples([record], maker(512), config())
    assert len(examples) > 1 and all(len(e.rows[0].ids) <= 512 for e in examples)
    (answer,) = answered([record], examples, config())
    assert answer.tags == tuple(tags)
    assert (answer.windows, answer.cut) == (len(examples), False)


def test_a_word_that_tokenises_to_nothing_is_unknown_but_not_lost() -> None:
    record = sentence(["a", "\u200b", "b"], ["O", "B-PS", "O"])
    (example,) = tag_examples([record], maker(), config())
    assert example.rows[0].ids.tolist()[2] == TOKENIZER.unk_id
    assert example.targets["tag"][1].tolist() == [0, 1, 0]


def test_a_word_longer_than_a_row_is_read_as_far_as_it_goes() -> None:
    made, records = maker(12), [sentence(["a", "b" * 30, "c"], ["O", "B-PS", "O"], "1"), sentence(["a"], ["O"], "1")]
    examples = tag_examples(records, made, config())
    assert made.noted == {"document read in windows": 1, "word longer than a sequence cut": 1}
    assert [shown(e) for e in examples] == [
        ["[a]"],
        ["[" + "b" * 10 + "]"],
        ["[c]", "[a]"],
    ]
    assert [e.targets["tag"][1].tolist() for e in examples] == [[0], [1], [0, 0]]
    assert [(answer.windows, answer.cut) for answer in answered(records, examples, config())] == [(3, True), (1, False)]


def test_sentences_without_words_have_no_row() -> None:
    records = [Tagged("", (), ()), sentence(["a"], ["O"])]
    examples = tag_examples(records, maker(), config())
    assert len(examples) == 1
    answers = answered(records, examples, config())
    assert [(answer.tags, answer.windows) for answer in answers] == [((), 0), (("O",), 1)]


# --- characters and schemes -----------------------------------------------------------------------


def test_characters_that_share_a_piece_are_tagged_together() -> None:
    record = characters("이순신은 서울에서.", ["B-PS", "I-PS", "I-PS", "O", "B-LC", "I-LC", "O", "O", "O"])
    (example,) = tag_examples([record], maker(), config(unit="character"))
    units = [(word.first_unit, word.n_units) for word in example.about]
    assert units == [(0, 3), (3, 1), (4, 2), (6, 1), (7, 1), (8, 1)]
    assert example.targets["tag"][1].tolist() == [1, 0, 3, 0, 0, 0]
    (answer,) = answered([record], [example], config(unit="character"))
    assert answer.tags == record.tags
    found = [(e.label, e.start, e.end, e.text) for e in answer.entities]
    assert found == [("PS", 0, 3, "이순신"), ("LC", 5, 7, "서울")]
    assert answer.probabilities == (0.75,) * 9
    assert answer.entities[0].score == 0.75


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_an_entity_that_begins_within_a_piece_begins_with_the_next(scheme: str) -> None:
    """A token has the tag of its first character; every transition of the gold tags must be valid for a CRF."""
    options = config(unit="character", scheme=scheme, crf=True)
    #               신이 순 신
    record = characters("신이순신", ["O", "B-PS", "I-PS", "I-PS"])
    (example,) = tag_examples([record], maker(), options)
    tags = [options.labels[i] for i in example.targets["tag"][1]]
    assert tags == (["O", "B-PS", "I-PS"] if scheme == "BIO" else ["O", "B-PS", "E-PS"])
    model = Tagger(Bert(SIZES), options)
    assert torch.isfinite(model(collate([example])).losses["tag"])


def test_an_entity_of_one_piece_is_a_single_one_in_bioes() -> None:
    options = config(unit="character", scheme="BIOES", crf=True)
    record = characters("이순신은", ["B-PS", "I-PS", "I-PS", "O"])
    (example,) = tag_examples([record], maker(), options)
    assert [options.labels[i] for i in example.targets["tag"][1]] == ["S-PS", "O"]
    assert torch.isfinite(Tagger(Bert(SIZES), options)(collate([example])).losses["tag"])
    (answer,) = answered([record], [example], options)
    assert answer.tags == record.tags


def test_characters_without_a_piece_follow_their_neighbours() -> None:
    """Covers spaces that are units, and a character that the tokenizer drops."""
    text = "서울\u200b 에서 살다"
    record = Tagged(text, tuple((i, i + 1) for i in range(len(text))), ("B-LC", *["I-LC"] * 5, "O", "O", "O"))
    (example,) = tag_examples([record], maker(), config(unit="character"))
    (answer,) = answered([record], [example], config(unit="character"))
    assert answer.tags == ("B-LC", *["I-LC"] * 5, "O", "O", "O")
    assert [e.text for e in answer.entities] == ["서울\u200b 에서"]


def test_spaces_that_are_no_units_are_within_an_entity_that_goes_on() -> None:
    record = characters("서울 에서 살다", ["B-LC", "I-LC", "I-LC", "I-LC", "O", "O"])
    (example,) = tag_examples([record], maker(), config(unit="character"))
    (answer,) = answered([record], [example], config(unit="character"))
    assert [(e.start, e.end, e.text) for e in answer.entities] == [(0, 5, "서울 에서")]


def test_a_text_of_nothing_but_spaces_is_outside() -> None:
    record = Tagged("  ", ((0, 1), (1, 2)), ("O", "O"))
    examples = tag_examples([record], maker(), config(unit="character"))
    assert examples == []
    assert answered([record], examples, config(unit="character"))[0].tags == ("O", "O")


_CHUNKS = st.lists(st.tuples(st.sampled_from(["O", "PS", "LC"]), st.integers(1, 4)), min_size=1, max_size=8)


def bio(chunks: list[tuple[str, int]]) -> list[str]:
    return [
        tag for label, n in chunks for tag in (["O"] * n if label == "O" else [f"B-{label}", *[f"I-{label}"] * (n - 1)])
    ]


@settings(max_examples=60)
@given(_CHUNKS, st.sampled_from(["BIO", "BIOES"]), st.integers(0, 9))
def test_tags_come_back_in_bio_whatever_the_scheme(chunks: Any, scheme: str, stride: int) -> None:
    tags = bio(chunks)
    record = sentence(["ab"] * len(tags), tags)
    options = config(scheme=scheme)
    examples = tag_examples([record], maker(13, stride), options)
    (answer,) = answered([record], examples, options)
    assert answer.tags == tuple(tags)
    found = [(e.label, e.text.count(" ") + 1) for e in answer.entities]
    assert found == [chunk for chunk in chunks if chunk[0] != "O"]
    assert all(record.text[e.start : e.end] == e.text for e in answer.entities)


def test_an_inner_tag_that_follows_nothing_begins_an_entity() -> None:
    (example,) = tag_examples([sentence(list("abc"), ["I-PS", "O", "I-LC"])], maker(), config())
    assert [BIO[i] for i in example.targets["tag"][1]] == ["B-PS", "O", "B-LC"]


def test_plain_tags_make_no_entities() -> None:
    options = TagConfig(labels=("NOUN", "VERB", "O"), scheme="plain")
    record = sentence(["a", "b"], ["NOUN", "VERB"])
    (answer,) = answered([record], tag_examples([record], maker(), options), options)
    assert answer.tags == ("NOUN", "VERB") and answer.entities == ()


def test_entities_are_in_characters_of_the_raw_text() -> None:
    text = "A (Bob  Lee), c"
    spans = ((0, 1), (2, 3), (3, 6), (8, 11), (11, 13), (14, 15))
    record = Tagged(text, spans, ("O", "O", "B-PS", "I-PS", "O", "B-LC"))
    (answer,) = answered([record], tag_examples([record], maker(), config()), config())
    assert [(e.start, e.end, e.text) for e in answer.entities] == [(3, 11, "Bob  Lee"), (14, 15, "c")]


@pytest.mark.parametrize(
    ("tags", "scheme", "message"),
    [
        (["O", "B-XX"], "BIO", "tag 'B-XX': expected one of O, B-PS"),
        (["O", "B-XX"], "BIOES", "tag 'S-XX': expected one of O, B-PS"),
        (["O", "E-PS"], "BIO", "found E-PS after O"),
    ],
)
def test_a_tag_that_does_not_fit_is_named_with_its_place(tags: list[str], scheme: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^f.tsv:1: {message}"):
        tag_examples([sentence(["a", "b"], tags)], maker(), config(scheme=scheme))


def test_smoothing_and_a_crf_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="label_smoothing does not apply with crf=true"):
        config(crf=True, label_smoothing=0.1)


# --- the model ------------------------------------------------------------------------------------

RECORDS = [
    sentence(["ab", "c", "def"], ["B-PS", "I-PS", "O"]),
    sentence(["h"], ["B-LC"]),
    sentence(list("abcdefghabcdefgh"), ["O"] * 13 + ["B-PS", "I-PS", "I-PS"]),
]


def built(options: TagConfig) -> Tagger:
    torch.manual_seed(0)
    model = Tagger(Bert(SIZES), options)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_the_first_pieces(smoothing: float) -> None:
    options = config(label_smoothing=smoothing)
    model = built(options)
    examples = tag_examples(RECORDS, maker(16, 5), options)
    batch = collate(examples)
    top = model.encoder(batch.tokens).top
    places, start = [], 0
    for (row,) in (e.rows for e in examples):
        assert row.words is not None
        places += [start + int(row.words.pieces[i, 0]) for i in row.words.asked]
        start += len(row.ids)
    logits = F.linear(top[places], model.head.weight, model.head.bias)
    gold = torch.tensor([BIO.index(tag) for record in RECORDS for tag in record.tags or ()])
    step = model(batch)
    torch.testing.assert_close(
        step.losses["tag"], F.cross_entropy(logits, gold, reduction="sum", label_smoothing=smoothing)
    )
    assert step.correct["tag"] == (logits.argmax(1) == gold).sum()
    assert batch.counts() == {"tag": 20}
    found = model.outputs(batch.tokens)
    torch.testing.assert_close(found["probability"], logits.softmax(1))
    assert torch.equal(found["tag"], logits.argmax(1))


def test_a_crf_never_breaks_the_scheme() -> None:
    """The scores favour O, I-PS, which no scheme allows; greedy decoding returns it, the CRF does not."""
    record = [sentence(["a", "b"], ["O", "O"])]
    for crf in (False, True):
        options = config(crf=crf)
        model = built(options)
        batch = collate(tag_examples(record, maker(), options))
        scores = torch.tensor([[9.0, 0, 0, 0, 0], [0, 8, 9, 0, 0]])
        model.logits = lambda hidden, tokens, scores=scores: scores  # type: ignore[method-assign]
        tags = [BIO[i] for i in model.outputs(batch.tokens)["tag"]]
        assert tags == (["O", "B-PS"] if crf else ["O", "I-PS"])
        if crf:
            assert float(model.outputs(batch.tokens)["probability"][1, 2]) < 1e-3


def test_a_crf_scores_the_asked_words_of_each_row() -> None:
    options = config(crf=True)
    model = built(options)
    assert model.crf is not None
    torch.nn.init.normal_(model.crf.transition_scores)
    examples = tag_examples(RECORDS, maker(16, 5), options)
    batch = collate(examples)
    alone = [model(collate([example])).losses["tag"] for example in examples]
    torch.testing.assert_close(model(batch).losses["tag"], torch.stack(alone).sum())
    assert batch.tokens.words is not None
    logits = model.logits(model.read(batch.tokens), batch.tokens)
    rows = batch.tokens.words.asked_rows
    expected = model.crf.loss(logits, batch.targets["tag"].label, rows)
    torch.testing.assert_close(model(batch).losses["tag"], expected)
    found = model.outputs(batch.tokens)
    assert torch.equal(found["tag"], model.crf.decode(logits, rows))
    torch.testing.assert_close(found["probability"].sum(1), torch.ones(20))


def test_a_window_may_begin_within_an_entity() -> None:
    """The first word of a core may be inside an entity that began in the previous window."""
    options = config(crf=True)
    record = sentence(list("abcdefghabcd"), ["B-PS", *["I-PS"] * 11])
    examples = tag_examples([record], maker(11, 4), options)
    assert len(examples) == 3
    assert torch.isfinite(built(options)(collate(examples)).losses["tag"])
    (answer,) = answered([record], examples, options)
    assert [(e.start, e.end) for e in answer.entities] == [(0, len(record.text))]


def test_every_token_of_a_character_is_read(tmp_path: Path) -> None:
    """An uncased published vocabulary splits a syllable into jamo, which share its place in the text."""
    jamo = unicodedata.normalize("NFD", "한글")
    pieces = [*SPECIALS, *dict.fromkeys(jamo), *(f"##{one}" for one in dict.fromkeys(jamo))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt", lowercase=True)
    rows = RowMaker(tokenizer, bert_layout(tokenizer), WindowConfig(length=16, stride=0), None)
    (example,) = tag_examples([characters("한글", ["B-LC", "I-LC"])], rows, config(unit="character"))
    assert list(example.rows[0].ids[1:-1]) == tokenizer.encode("한글").ids and len(example.rows[0].ids) == 2 + 6
    assert [(word.first_unit, word.n_units) for word in example.about] == [(0, 1), (1, 1)]
