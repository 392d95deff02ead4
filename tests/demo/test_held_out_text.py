"""Masked words and nearest sentences: which are chosen, and what is counted."""

from pathlib import Path

import numpy as np
import pytest

from firth.demo.held_out_text import Sentence, commonest_word, fill_masked_words, find_alike, new_sentences, of_length
from firth.inference.model import load_model
from firth.text.records import Document

TEXTS = ["The old farmer walked to the river.", "A young doctor painted the mill.", "Our teacher never forgot the war!"]
SENTENCES = [Sentence(text, f"d{i // 2}") for i, text in enumerate(TEXTS)]


def test_only_sentences_that_training_did_not_see_are_new() -> None:
    held = [Document(("One is here. Two is here.", "Two is here."), "a"), Document(("Three is here.",), "b")]
    train = [Document(("Three is here. Four is here.",), "c")]
    assert new_sentences(held, train) == [Sentence("One is here.", "a"), Sentence("Two is here.", "a")]


def test_a_mask_hides_one_whole_word(tiny_run: Path) -> None:
    model = load_model(tiny_run)
    masked = fill_masked_words(model, SENTENCES, top_k=3)
    assert masked == fill_masked_words(model, SENTENCES, top_k=3) and masked
    for one in masked:
        assert len(one.candidates) == 3 and one.truth.isalpha()
        assert any(one.text.replace("[MASK]", one.truth) == text for text in TEXTS)
        assert one.right == (one.candidates[0].token == one.truth)


def test_what_cannot_be_masked_is_left_out(tiny_run: Path) -> None:
    left_out = [Sentence("...", "d"), Sentence("the [MASK] the", "d")]
    assert fill_masked_words(load_model(tiny_run), left_out + SENTENCES[:1], 2)[0].text.endswith(".")
    assert len(fill_masked_words(load_model(tiny_run), left_out + SENTENCES[:1], 2)) == 1


def test_the_commonest_word_is_a_word(tiny_run: Path) -> None:
    assert commonest_word(["the the , , , , the war"], load_model(tiny_run).loaded.tokenizer) == "the"
    assert commonest_word(["..."], load_model(tiny_run).loaded.tokenizer) == ""


def test_length_is_in_pieces_and_the_order_depends_on_the_text_alone(tiny_run: Path) -> None:
    tokenizer = load_model(tiny_run).loaded.tokenizer
    sizes = [len(ids) for ids in tokenizer.ids_many(TEXTS)]
    kept = of_length(SENTENCES, tokenizer, fewest=min(sizes), most=min(sizes))
    assert {s.text for s in kept} == {t for t, n in zip(TEXTS, sizes, strict=True) if n == min(sizes)}
    everything = of_length(SENTENCES, tokenizer, fewest=1, most=99)
    assert everything == of_length(SENTENCES[::-1], tokenizer, fewest=1, most=99) and len(everything) == 3


def test_nearest_ones_are_others_in_order_with_their_chance(tiny_run: Path) -> None:
    # A sentence and its copy with other final punctuation are nearer than unrelated sentences.
    sentences = [*SENTENCES, Sentence(TEXTS[0].replace(".", "?"), "d0")]
    alike = find_alike(load_model(tiny_run), sentences, n_nearest=2)
    assert alike.neighbours[0].nearest[0][0] is sentences[3] and alike.neighbours[3].nearest[0][0] is sentences[0]
    for item in alike.neighbours:
        cosines = [cosine for _, cosine in item.nearest]
        assert item.query not in [s for s, _ in item.nearest] and cosines == sorted(cosines, reverse=True)
        assert np.all(np.abs(cosines) <= 1 + 1e-6)
    # One document has three sentences, the other one: 3 · 2 of the 4 · 3 ordered pairs share a document.
    assert alike.chance == pytest.approx(0.5) and 0.5 <= alike.same_document <= 1
