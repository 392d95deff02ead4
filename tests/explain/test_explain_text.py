"""The page of a text: its contents are right, all is escaped, nothing is fetched, every script keeps its place."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch
from tiny_language_models import PIECES, tiny_language_model

from firth.errors import InputError
from firth.explain.asked import Asked
from firth.explain.markup import Mark, head_maps, labelled_map, text_width, token_row, value_map, visible
from firth.explain.pieces import wordpiece_steps
from firth.explain.sentences import SENTENCES
from firth.explain.text import explain, input_embeddings, masked_rows, part_of
from firth.explain.words import cosine_table, repeated_word, word_cosines
from firth.export.convert import shortened
from firth.folder import PRETRAINING, Loaded
from firth.inference.fast import FastEncoder
from firth.inference.model import Model, load_model
from firth.page import COLOURS
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS

EVIL = "<script>alert('x')</script> & \"quotes\""


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(model: Model, texts: list[str], path: Path, **options: object) -> tuple[list[str], str]:
    found = explain(model, texts, path, **options)  # type: ignore[arg-type]
    return found, path.read_text("utf-8")


def test_a_bert_has_every_section(tiny_run: Path, tmp_path: Path) -> None:
    texts = ["The old farmer walked to the river. The queen waited near the river.", "Our teacher painted the mill."]
    found, page = page_of(load_model(tiny_run), texts, tmp_path / "a.html")
    assert len(found) == 9 and found[0] == "Tokens" and found[-2:] == ["Attention", "What each head is worth"]
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(drawing)
    tags = Tags(page)
    assert "script" not in tags.names
    outside = [v for k, v in tags.attributes if k in ("src", "href", "xlink:href") or "http" in (v or "")]
    assert outside == []
    assert found == re.findall(r"<h2>(.*?)</h2>", page)


def test_korean_page(tiny_run: Path, tmp_path: Path) -> None:
    found, page = page_of(
        load_model(tiny_run), ["늙은 농부는 강가에서 편지를 썼다."], tmp_path / "a.html", language="ko"
    )
    assert '<html lang="ko">' in page and found[0] == "토큰" and "확률" in found


def test_each_sentence_is_there_in_both_languages() -> None:
    fields = re.compile(r"\{\w+\}")
    for key, both in SENTENCES.items():
        assert set(both) == {"en", "ko"} and all(both.values()), key
        assert sorted(fields.findall(both["en"])) == sorted(fields.findall(both["ko"])), key
        assert both["en"].count("|") == both["ko"].count("|"), key


@pytest.mark.parametrize("name", ["gpt", "lstm", "awd-lstm backward", "elmo", "bert-ltr"])
def test_other_models_have_what_they_have(name: str, tmp_path: Path) -> None:
    found, page = page_of(tiny_language_model(name), ["a1 b2 a1", "c3 zzz"], tmp_path / "a.html")
    assert "Probabilities" in found
    assert ("Attention" in found) == (name in ("gpt", "bert-ltr"))
    assert "Masks of a batch" not in found
    assert ("The input: embeddings that are added" in found) == (name in ("gpt", "bert-ltr"))
    if name == "elmo":
        assert "Each token given those after it" in page
    made = tiny_language_model(name)
    backward = name == "awd-lstm backward"
    assert "The next token" in found and (("tokens before the text" in page) == backward)
    best = made.next_tokens("c3 zzz", 1)[0]
    assert f'title="p = {best.probability:.2g}"' in page
    assert ("What each head is worth" in found) == (name in ("gpt", "bert-ltr"))
    # Every whole-word model has a vector for each word, except ELMo, which has only characters.
    assert "Nearest words" not in found


def test_everything_is_escaped(tiny_run: Path, tmp_path: Path) -> None:
    found, page = page_of(load_model(tiny_run), [EVIL, f"{EVIL} again"], tmp_path / "a.html", name=EVIL)
    tags = Tags(page)
    assert "script" not in tags.names and not any(k.startswith("on") for k, _ in tags.attributes)
    assert any(EVIL in word for word in tags.words)


def test_scripts_of_the_world_keep_their_place(tiny_run: Path, tmp_path: Path) -> None:
    texts = ["שלום עולם the river", "e\u0301te\u0301 นี้ 고양이 \u202eevil\u0007 the river"]
    _, page = page_of(load_model(tiny_run), texts, tmp_path / "a.html")
    assert "\u202e" not in page and "\u0007" not in page
    # A row that took its direction from its text would be reversed in one section and not in the next.
    assert page.count('<p class="tokens" dir="ltr">') >= 4 and 'dir="auto"' not in page
    assert '<small><bdi dir="ltr">' in page and 'unicode-bidi="isolate"' in page
    assert visible("##\u0301") == "##\u25cc\u0301" and visible("\u0000") == "\u2400" and visible("") == "\u2205"
    assert text_width("고양이") == 2 * text_width("abc") and text_width("e\u0301") == text_width("e")


def test_steps_are_the_tokenizers_own() -> None:
    pieces = [*SPECIALS, "un", "##believ", "##able", "##a", "##b", "a", "the", "고", "##양이"]
    tokenizer = Tokenizer.from_vocab(pieces, lowercase=True)
    for word in ("unbelievable", "the", "ab", "aba", "unx", "고양이", "x", "a" * 201):
        steps = wordpiece_steps(word, frozenset(pieces))
        tokens = ["[UNK]"] if steps[-1].found is None else [step.found for step in steps]
        assert tokens == [tokenizer.piece(i) for i in tokenizer.encode(word).ids], word
    steps = wordpiece_steps("unbelievable", frozenset(pieces))
    assert [(s.rest, s.tried, s.found) for s in steps] == [
        ("unbelievable", 11, "un"),
        ("believable", 5, "##believ"),
        ("able", 1, "##able"),
    ]


def test_the_added_embeddings_are_the_models() -> None:
    made = tiny_language_model("bert")
    tokens, parts, _ = input_embeddings(made, ["a1 b2", "c3"]) or ([], {}, 0)
    assert tokens == ["[CLS]", "a1", "b2", "[SEP]", "c3", "[SEP]"]
    assert [names for _, names in parts.values()][1] == ["E(A)"] * 4 + ["E(B)"] * 2
    table = made.loaded.objective.encoder.embeddings
    assert parts["token"][0][1] == pytest.approx(float(table.pieces.weight[PIECES.index("a1")].detach().norm()))
    assert parts["position"][0][5] == pytest.approx(float(table.positions.weight[5].detach().norm()))


def test_the_added_embeddings_are_shown_in_any_precision() -> None:
    made = tiny_language_model("bert")
    plain = made.loaded.objective
    slot = replace(made.loaded, objective=SimpleNamespace(encoder=FastEncoder(plain.encoder, torch.float32)))
    assert input_embeddings(replace(made, loaded=slot), ["a1 b2", "c3"]) is not None


def test_added_embeddings_end_with_the_models_positions() -> None:
    base = tiny_language_model("bert")
    made = replace(base, loaded=shortened(base.loaded, 8))
    for texts in (["a1 b2 " * 9], ["a1 " * 9, "b2 " * 9]):
        tokens, parts, _ = input_embeddings(made, texts) or ([], {}, 0)
        assert len(tokens) <= 8 and parts["position"][1] == [f"E({i})" for i in range(len(tokens))]


def test_the_added_segments_are_those_of_a_model_that_marks_shared_words() -> None:
    base = tiny_language_model("bert")
    marks = Classifier(base.loaded.objective.encoder, ClassifyConfig(labels=("n", "y"), mark_shared_words=True))
    made = replace(base, loaded=replace(base.loaded, objective=marks, task="classify"))
    tokens, parts, _ = input_embeddings(made, ["a1 b2", "c3 b2"]) or ([], {}, 0)
    assert tokens == ["[CLS]", "a1", "b2", "[SEP]", "c3", "b2", "[SEP]"]
    assert parts["segment"][1] == ["E(A)", "E(A)", "E(A shared)", "E(A)", "E(B)", "E(B shared)", "E(B)"]


def test_what_masks_replace_is_named_and_told_by_more_than_colour() -> None:
    made = tiny_language_model("bert")
    texts = tuple(" ".join(f"{c}{i}" for c in "abc") for i in range(6)) * 4
    kinds = set()
    for rows in masked_rows(made, Asked(texts=texts)):
        for row, text in zip(rows, texts, strict=True):
            answers = [m.below or m.text for m in row[1:-1]]
            assert " ".join(answers) == text
            for mark in row:
                if mark.below:
                    kinds.add((mark.kind, mark.colour))
                    assert (mark.text == "[MASK]") == (mark.kind == "masked")
                    assert (mark.text == mark.below) == (mark.kind == "kept")
                    assert f"</bdi> ({mark.kind})</small>" in token_row([mark])
    assert {kind for kind, _ in kinds} == {"masked", "random", "kept"} and len({colour for _, colour in kinds}) == 3


def test_masks_are_those_of_the_models_own_pretraining(tmp_path: Path) -> None:
    base = tiny_language_model("bert")
    _, published = page_of(base, ["a1 b2 c3"], tmp_path / "published.html")
    assert "predicts 15% of the tokens" in published and "80% of them" in published
    recipe = {"masking.share": 0.5, "masking.mask": 1.0, "masking.keep": 0.0, "masking.whole_words": True}
    made = replace(base, loaded=replace(base.loaded, provenance={"recipe": recipe}))
    _, page = page_of(made, ["a1 b2 c3"], tmp_path / "own.html")
    assert "predicts 50% of the tokens" in page and "100% of them" in page
    kinds = {mark.kind for rows in masked_rows(made, Asked(texts=("a1 b2 c3",) * 9)) for row in rows for mark in row}
    assert kinds == {"", "masked"}


def test_what_is_left_out_of_a_section_is_said(tmp_path: Path) -> None:
    sentences = " ".join(f"{a}{i}." for i in range(4) for a in "ABC")
    _, page = page_of(tiny_language_model("bert"), [sentences], tmp_path / "a.html")
    assert "Only the first 8 of 12 sentences are paired." in page
    assert re.search(r"Shown are 14 of \d\d\.", page), "tokens of the input"
    assert page.count("Only the first 14 tokens of the text are read here.") >= 2, "attention, and what heads are worth"


def test_colours_differ_in_lightness_not_only_in_hue() -> None:
    """For readers without colour vision: relative luminance of the three kinds of mask."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    values = sorted(luminance(COLOURS[i][0]) for i in range(3))
    assert all(b - a > 0.02 for a, b in zip(values, values[1:], strict=False))


def test_cosines_of_one_word_in_two_contexts() -> None:
    made = tiny_language_model("elmo")
    found = made.vectors(["a1 b2 c3", "d4 b2"])
    places = [(0, 1), (1, 1)]
    assert cosine_table(found, places, 0) == pytest.approx(np.ones((2, 2)), abs=1e-5)
    top = cosine_table(found, places, 2)
    a, b = found[0].word_layers[2, 1], found[1].word_layers[2, 1]
    assert top[0, 1] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5) and top[0, 1] < 0.999
    assert repeated_word(made.vectors(["apple b2", "Apple c3 c3"])) == "apple"


def test_a_word_is_the_same_whether_its_letters_are_composed_or_not(tmp_path: Path) -> None:
    made, apart = tiny_language_model("bert"), normalize("NFD", "농부")
    texts = ["a1 농부", f"b2 {apart}"]
    assert repeated_word(made.vectors(texts)) == "농부"
    assert word_cosines(made, texts, apart) == pytest.approx(
        word_cosines(made, ["a1 농부", "b2 농부"], "농부"), abs=1e-5
    )
    found, _ = page_of(made, texts, tmp_path / "a.html", word=apart)
    assert any("농부" in normalize("NFC", heading) for heading in found)


def test_one_word_in_several_models(tmp_path: Path) -> None:
    texts = ["a1 b2 c3", "d4 b2 e5"]
    models = [tiny_language_model(name) for name in ("bert", "elmo", "lstm")]
    found, page = page_of(
        models[0], texts, tmp_path / "a.html", word="b2", others=[("elmo", models[1]), ("lstm", models[2])]
    )
    assert "The same word in several models: b2" in found
    for made in models:
        same, different = word_cosines(made, texts, "b2")
        a, b = (one.of_words(one.layer(-1))[1] for one in made.vectors(texts))
        assert same == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
        words = np.concatenate([one.of_words(one.layer(-1)) for one in made.vectors(texts)])
        words /= np.linalg.norm(words, axis=1, keepdims=True)
        every = [float(words[i] @ words[j]) for i in range(6) for j in range(i) if (i, j) != (4, 1)]
        assert different == pytest.approx(np.mean(every), abs=1e-5)
        assert f">{same:.3f}</text>" in page or f">{same:+.3f}</text>" in page
    assert np.isnan(word_cosines(models[0], ["a1 b2"], "a1")[0])


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    made = tiny_language_model("bert")
    with pytest.raises(InputError, match="a text has no tokens"):
        explain(made, ["a1", " "], tmp_path / "a.html")
    with pytest.raises(InputError, match="--word 'zebra': no text has this word"):
        explain(made, ["a1 b2"], tmp_path / "a.html", word="zebra")
    with pytest.raises(InputError, match="--word 'b2' is in the texts once"):
        explain(made, ["a1 b2"], tmp_path / "a.html", word="b2")
    with pytest.raises(InputError, match="--with compares a word .* no word occurs twice"):
        explain(made, ["a1 b2"], tmp_path / "a.html", others=[("elmo", tiny_language_model("elmo"))])
    assert not (tmp_path / "a.html").exists()


def test_sentences_of_other_texts_do_not_follow(tmp_path: Path) -> None:
    made = tiny_language_model("bert")
    for texts, n_following in ((["a1 b2.", "c3 d4.", "e5 f0."], 0), (["A1 b2. C3 d4. E5 f0."], 2)):
        _, page = page_of(made, texts, tmp_path / f"{n_following}.html")
        assert page.count("<td>follows</td>") == n_following
        assert page.count("<td>from elsewhere</td>") == 2


def test_one_token_has_no_perplexity(tmp_path: Path) -> None:
    """From left to right, nothing precedes it."""
    _, page = page_of(tiny_language_model("gpt"), ["a1"], tmp_path / "a.html")
    assert not re.search(r"\bnan\b", page) and "Each token given those before it" not in page


def test_a_text_longer_than_the_model(tmp_path: Path) -> None:
    found, page = page_of(tiny_language_model("bert"), ["a1 b2 c3 " * 20], tmp_path / "a.html")
    # Two of the 16 tokens are special.
    assert "Only the first 14 tokens" in page and {"Probabilities", "Attention"} <= set(found)
    _, page = page_of(tiny_language_model("bert"), ["a1 " * 15], tmp_path / "b.html")
    assert "Only the first 14 tokens" in page
    _, page = page_of(tiny_language_model("bert"), ["a1 " * 14], tmp_path / "c.html")
    assert "Only the first" not in page


def test_a_model_of_words_has_neighbours_and_analogies(tmp_path: Path) -> None:
    made = word_vectors(["king", "queen", "man", "woman"], [[1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0]])
    found, page = page_of(made, ["man king woman", "queen zebra"], tmp_path / "a.html")
    assert "Nearest words" in found and not {"Attention", "Probabilities", "The next token"} & set(found)
    assert "<td>man : king = woman : ?</td><td>queen" in page and "<td>zebra</td>" not in page
    near = made.nearest("queen", 5)
    assert f"<td>{', '.join(f'{one.word} {one.cosine:.2f}' for one in near)}</td>" in page


def word_vectors(words: list[str], rows: list[list[float]]) -> Model:
    system = SYSTEMS["vectors"]
    tokenizer = system.reads(Tokenizer.from_words([*WORDS.specials, *words], lowercase=True))
    config = system.config(vocab_size=tokenizer.size, width=len(rows[0]))
    objective = system.objective(system.encoder(config), system.objective_config())
    with torch.no_grad():
        objective.encoder.piece_embedding[-len(words) :] = torch.tensor(rows, dtype=torch.float32)
    return Model(Loaded("vectors", PRETRAINING, objective.eval(), tokenizer), torch.device("cpu"))


def test_a_translation_model_shows_where_its_translation_reads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    system = SYSTEMS["transformer"]
    config = system.config(vocab_size=len(PIECES), width=16, n_layers=2, n_heads=2, feed_forward_width=24)
    objective = system.objective(system.encoder(config), system.objective_config())
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    made = Model(Loaded("transformer", PRETRAINING, objective.eval(), tokenizer), torch.device("cpu"))
    found, page = page_of(made, ["a1 b2"], tmp_path / "a.html")
    assert found[-1] == "Cross-attention" and "Probabilities" not in found
    weights = made.cross_attention("a1 b2").weights.mean((0, 1))
    assert f"<title>{weights[0, 0]:.2f}</title>" in page


def test_numbers_below_zero_have_another_colour_and_a_sign() -> None:
    drawing = value_map(["a", "b"], ["x", "y"], np.array([[0.5, -0.25], [np.nan, 0.0]]), "t", full=0.5)
    root = ET.fromstring(drawing)
    assert [t.text for t in root.iter("text")] == ["a", "b", "x", "y", "+0.50", "-0.25", "\u2013", "+0.00"]
    assert [(r.get("fill"), r.get("fill-opacity")) for r in root.iter("rect")] == [
        ("var(--c0)", "0.60"),
        ("var(--c1)", "0.30"),
        ("var(--c0)", "0.00"),
        ("var(--c0)", "0.00"),
    ]


def test_maps_draw_what_is_not_faint() -> None:
    weights = np.array([[0.5, 0.001], [0.2, 0.8]])
    drawing = labelled_map(["a", "b"], ["a", "b"], weights, "t")
    titles = [t.text for t in ET.fromstring(drawing).iter("title")]
    assert titles == ["0.50", "0.20", "0.80"]
    heads = head_maps(["a", "b"], np.stack([weights] * 5), "t", [f"h{i}" for i in range(5)])
    assert heads.count("fill-opacity") == 15 and "h4" in heads
    # Rows of 10 px: names of 12 px would overlap, and the longest would be cut off on the left.
    tokens = ["a" * 20, *"bcdefghijklmno"]
    drawn = [
        e
        for e in ET.fromstring(head_maps(tokens, np.zeros((1, 15, 15)), "t", ["head"])).iter("text")
        if e.text != "head"
    ]
    assert len(drawn) == 15 and {float(e.get("font-size", 0)) for e in drawn} == {10.0}
    assert float(drawn[0].get("x", 0)) >= text_width(tokens[0]) * 10 / 12
    assert 'style="background: color-mix(in srgb, var(--c2) 100%, transparent);' in token_row([Mark("a", 3.0, 2)])


@pytest.mark.parametrize("backward", [False, True])
def test_a_part_of_a_text_has_no_more_tokens_than_fit(backward: bool) -> None:
    """A word of two tokens becomes one token per letter if it is cut, as with byte pairs."""

    class Pieces:
        def tokenize(self, text: str) -> list[Any]:
            whole = [SimpleNamespace(start=m.start(), end=m.end()) for m in re.finditer(r"ab|cd|\w", text)]
            return whole if text.count("abcd") * 2 == len(whole) else [*whole, *whole[:1]]

    for room in (3, 4, 5):
        part = part_of(Pieces(), "abcd" * 4, room, backward)  # type: ignore[arg-type]  # tokenize is all that is asked
        assert part and len(Pieces().tokenize(part)) <= room
        assert ("abcd" * 4).startswith(part) if backward else ("abcd" * 4).endswith(part)
