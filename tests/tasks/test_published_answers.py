"""Answer texts as BERT's published code recovers them."""

import pytest

from firth.errors import ConfigError
from firth.tasks.predictions import Answered, Span
from firth.tasks.published_answers import find_in_words, recover_published
from firth.text.records import Question
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS


@pytest.mark.parametrize(
    ("predicted", "original", "expected"),
    [
        # Results of the published function (specification of tasks §4).
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("cafe", "café", "café"),
        ("zurich", "Zürich,", "Zürich"),
        ("12 %", "12%", "12%"),
        ("nothing", "Steve", "Steve"),
        ("john", "John·\u200b Smith", "John·\u200b Smith"),
        ("1394년", "1394년부터", "1394년부터"),
    ],
)
def test_lower_cased(predicted: str, original: str, expected: str) -> None:
    begin, end = find_in_words(predicted, original, lowercase=True)
    assert original[begin:end] == expected


def test_cased_korean_is_found() -> None:
    assert find_in_words("1394년", "1394년부터", lowercase=False) == (0, 5)


def answered(context: str, *texts: str) -> Answered:
    spans = [Span(text, context.index(text), context.index(text) + len(text), 1.0, 0.5) for text in texts]
    return Answered(texts[0], spans[0].start, spans[0].end, 0.5, None, tuple(spans))


def test_answers_take_the_words_around_what_is_not_found() -> None:
    """An unknown token is never found in the text, so the answer is the whole word; other answers are cut as before."""
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "the", "cafe", "##s", ",", "."], lowercase=True, google=True)
    context = "The  Cafés, (Paris)."
    (found,) = recover_published(
        [Question("q", context)], [answered(context, "Paris", "Cafés", "Café", "The  Cafés")], tokenizer
    )
    assert (found.text, found.start, found.end) == ("(Paris).", 12, 20)
    assert [(span.text, context[span.start : span.end]) for span in found.n_best] == [
        ("(Paris).", "(Paris)."),
        ("Cafés", "Cafés"),
        ("Café", "Café"),
        ("The Cafés", "The  Cafés"),
    ]


def test_the_same_text_is_kept_once_and_no_answer_stays() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "(", ")"], lowercase=True, google=True)
    context = "(Paris)"
    given = answered(context, "Paris", "Paris)")
    given = Answered("", 0, 0, 0.5, 1.0, (Span("", 0, 0, 2.0, 0.5), *given.n_best))
    (found,) = recover_published([Question("q", context)], [given], tokenizer)
    assert (found.text, [span.text for span in found.n_best]) == ("", ["", "(Paris)"])


def test_other_tokenizers_are_refused() -> None:
    with pytest.raises(ConfigError, match="require a WordPiece model, this one has words"):
        recover_published([], [], Tokenizer.from_words(WORDS.specials, lowercase=True))
