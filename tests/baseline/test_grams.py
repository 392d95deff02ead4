"""n-grams and their weights: equal to scikit-learn's, for any batch size and any text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from firth.baseline import grams as module
from firth.baseline.config import GramConfig
from firth.baseline.grams import Vocabulary, fit_vocabulary, normalise, tfidf
from firth.errors import ConfigError

TEXTS = [
    "The cat sat on the mat.",
    "A cat, a dog; and the DOG's bone!",
    "",
    "   ",
    "don't stop  me\tnow",
    "고양이가 강가에서 잤다",
    "고양이는 시장에서 잤다!!",
    "naïve café naïve",
    "x",
    "𝒳 emoji 🙂🙂 end",
]


def dense(texts: list[str], vocabulary: Vocabulary, config: GramConfig) -> np.ndarray:
    """The weights, with columns sorted by n-gram."""
    order = sorted(range(len(vocabulary)), key=lambda i: vocabulary.grams[i])
    return tfidf(texts, vocabulary, config).toarray()[:, order]


def theirs(vectorizer: TfidfVectorizer) -> tuple[list[str], np.ndarray]:
    found = vectorizer.fit_transform([normalise(text) for text in TEXTS]).toarray()
    names = list(vectorizer.get_feature_names_out())
    order = sorted(range(len(names)), key=lambda i: names[i])
    return [names[i] for i in order], found[:, order]


def test_words_are_weighted_as_scikit_learn_does() -> None:
    config = GramConfig(words=1)
    vocabulary = fit_vocabulary(TEXTS, "words", config)
    names, weights = theirs(TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]"))
    assert sorted(vocabulary.grams) == names
    np.testing.assert_allclose(dense(TEXTS, vocabulary, config), weights, atol=1e-6)


def test_a_text_is_normalised_to_be_counted_and_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    def counted(text: str) -> str:
        calls.append(text)
        return normalise(text)

    monkeypatch.setattr(module, "normalise", counted)
    assert len(fit_vocabulary(TEXTS, "words", GramConfig())) > 2 * len(TEXTS) >= len(calls)


def test_characters_are_weighted_as_scikit_learn_does() -> None:
    config = GramConfig(shortest=2, longest=3, min_count=2)
    vocabulary = fit_vocabulary(TEXTS, "characters", config)
    names, weights = theirs(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), sublinear_tf=True, min_df=2))
    assert sorted(vocabulary.grams) == names
    np.testing.assert_allclose(dense(TEXTS, vocabulary, config), weights, atol=1e-6)


def test_pairs_of_words_are_substrings_and_stay_within_a_text() -> None:
    vocabulary = fit_vocabulary(["the cat, the cat", "dog"], "words", GramConfig(words=2))
    assert set(vocabulary.grams) == {"the", "cat", ",", "dog", "the cat", "cat,", ", the"}


def test_characters_may_cross_words_if_asked() -> None:
    apart = fit_vocabulary(["ab cd", "ab cd"], "characters", GramConfig(shortest=3, longest=3))
    across = fit_vocabulary(["ab cd", "ab cd"], "characters", GramConfig(shortest=3, longest=3, across=True))
    assert set(apart.grams) == {" ab", "ab ", " cd", "cd "}
    assert set(across.grams) - set(apart.grams) == {"b c"}


def test_the_commonest_are_kept() -> None:
    vocabulary = fit_vocabulary(["a b", "a c", "a b d"], "words", GramConfig(words=1, most=2))
    assert vocabulary.grams == ("a", "b")


def test_lots_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GramConfig(min_count=1)
    whole = [fit_vocabulary(TEXTS, block, config) for block in module.BLOCKS]
    vectors = [tfidf(TEXTS, vocabulary, config).toarray() for vocabulary in whole]
    monkeypatch.setattr(module, "_AT_ONCE", 10)
    monkeypatch.setattr(module, "_BEFORE_MERGE", 30)
    for block, vocabulary, expected in zip(module.BLOCKS, whole, vectors, strict=True):
        again = fit_vocabulary(TEXTS, block, config)
        assert again.grams == vocabulary.grams and np.array_equal(again.idf, vocabulary.idf)
        assert np.array_equal(tfidf(TEXTS, again, config).toarray(), expected)


@settings(max_examples=60)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.booleans())
def test_every_n_gram_of_any_text_is_counted(texts: list[str], across: bool) -> None:
    config = GramConfig(shortest=1, longest=3, min_count=1, across=across)
    vocabulary = fit_vocabulary(texts, "characters", config)
    framed = [f" {normalise(text)} " for text in texts]
    expected = {
        text[i : i + n]
        for text in framed
        for n in (1, 2, 3)
        for i in range(len(text) - n + 1)
        if text[i : i + n].strip(" ") and (across or " " not in text[i + 1 : i + n - 1])
    }
    assert set(vocabulary.grams) == expected
    norms = np.sqrt(tfidf(texts, vocabulary, config).multiply(tfidf(texts, vocabulary, config)).sum(1))
    assert np.allclose(np.asarray(norms).ravel(), [bool(text.strip(" ")) for text in framed])


def test_decomposed_hangul_is_the_same_text() -> None:
    config = GramConfig()
    vocabulary = fit_vocabulary(["강가에서 잤다"] * 2, "characters", config)
    apart = tfidf(["강가에서 잤다"], vocabulary, config)
    assert apart.nnz == len(vocabulary) > 0


def test_a_vocabulary_of_nothing_reads_nothing() -> None:
    config = GramConfig()
    vocabulary = fit_vocabulary(["", " "], "words", config)
    assert len(vocabulary) == 0 and tfidf(["a b", ""], vocabulary, config).shape == (2, 0)
    assert tfidf([], vocabulary, config).shape == (0, 0)


def test_texts_with_fewer_words_than_a_gram_have_none_of_it() -> None:
    vocabulary = fit_vocabulary(["a b c"], "words", GramConfig(words=5, longest=0))
    assert len(vocabulary) == 6  # a, b, c, a b, b c, a b c


@pytest.mark.parametrize("options", [{"words": 0, "longest": 0}, {"shortest": 4, "longest": 3}, {"most": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="grams"):
        GramConfig(**options)
