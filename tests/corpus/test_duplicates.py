"""MinHash estimates, the recall of the bands, and which document of a group is kept."""

import random
from pathlib import Path

import numpy as np
import pytest

from firth.corpus.duplicates import (
    LEAST_WORDS,
    SIGNATURE,
    NearDuplicates,
    band_rows,
    bands,
    later_ones,
    paragraph_key,
    recurring,
    signatures,
    split_key,
)
from firth.corpus.fingerprints import fingerprint
from firth.corpus.spill import Spill


def text(seed: int, n: int) -> list[str]:
    random_words = random.Random(seed)
    return [f"w{random_words.randrange(5000)}" for _ in range(n)]


def similarity(a: list[str], b: list[str]) -> float:
    one, other = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (a, b))
    return len(one & other) / len(one | other)


@pytest.mark.parametrize("n", [40, 300, 3000])
def test_the_estimate_is_near_the_similarity(n: int) -> None:
    """The mean error is below 0.03, and each single error is within four standard deviations."""
    errors = []
    for seed in range(20):
        ours = text(seed, n)
        theirs = list(ours)
        for place in random.Random(seed).sample(range(n), max(1, n // 50)):
            theirs[place] = "changed"
        _, (a, b) = signatures(fingerprint([[" ".join(ours)], [" ".join(theirs)]]))
        errors.append(float(np.mean(a == b)) - similarity(ours, theirs))
    assert abs(np.mean(errors)) < 0.03 and np.max(np.abs(errors)) < 0.18


def test_short_documents_have_no_signature() -> None:
    block = fingerprint([[" ".join(text(0, LEAST_WORDS - 1))], [" ".join(text(1, LEAST_WORDS))], []])
    chosen, signed = signatures(block)
    assert chosen.tolist() == [1] and signed.shape == (1, SIGNATURE)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    rows = band_rows(threshold)
    assert 1 - (1 - threshold**rows) ** (SIGNATURE // rows) >= 0.95
    # and empirically: signatures that agree in about that share of their values
    random_numbers = np.random.default_rng(0)
    ours = random_numbers.integers(0, 1 << 16, (2000, SIGNATURE), np.uint16)
    theirs = np.where(random_numbers.random(ours.shape) < threshold, ours, ours ^ np.uint16(1))
    together = (bands(ours, rows) == bands(theirs, rows)).any(1)
    assert together.mean() > 0.93


def find(documents: list[list[str]], folder: Path, threshold: float = 0.8) -> list[tuple[int, int, float]]:
    near = NearDuplicates(folder / "signatures.bin", Spill(folder, "bands", 1 << 20), threshold)
    chosen, signed = signatures(fingerprint([[" ".join(words)] for words in documents]))
    near.add(chosen, signed, bands(signed, band_rows(threshold)))
    return list(near.find(np.zeros(len(documents), bool)))


def test_the_first_of_each_group_stays(tmp_path: Path) -> None:
    a, b = text(1, 400), text(2, 400)
    documents = [a, text(3, 400), b, [*a[:390], "x"], [*b, "y"], text(4, 20), [*a, "z"]]
    found = find(documents, tmp_path)
    assert [(document, earlier) for document, earlier, _ in found] == [(3, 0), (4, 2), (6, 0)]
    for document, earlier, estimate in found:
        assert abs(estimate - similarity(documents[document], documents[earlier])) < 0.15


def test_what_is_like_a_removed_document_alone_stays(tmp_path: Path) -> None:
    """Each document of a chain resembles the one before it; comparison is only with documents that are kept."""
    words = text(1, 400)
    chain = [[*words[shift:], *text(shift, shift)] for shift in (0, 25, 50, 75, 100, 125, 150)]
    assert similarity(chain[0], chain[1]) > 0.85 and similarity(chain[0], chain[4]) < 0.65
    found = find(chain, tmp_path)
    kept = set(range(len(chain))) - {document for document, _, _ in found}
    for document, earlier, _ in found:
        assert earlier in kept and similarity(chain[document], chain[earlier]) > 0.65
    assert 0 in kept and len(kept) > 1


def test_removed_documents_count_for_nothing(tmp_path: Path) -> None:
    a = text(1, 100)
    near = NearDuplicates(tmp_path / "signatures.bin", Spill(tmp_path, "bands", 1 << 20), 0.8)
    chosen, signed = signatures(fingerprint([[" ".join(a)]] * 3))
    near.add(chosen, signed, bands(signed, band_rows(0.8)))
    assert [found[:2] for found in near.find(np.array([True, False, False]))] == [(2, 1)]


def test_keys_of_paragraphs() -> None:
    documents, paragraphs, long = np.array([0, 7, 1 << 38]), np.array([0, 3, 2_000_000]), np.array([True, False, True])
    keys = paragraph_key(documents, paragraphs, long)
    for given, read in zip((documents, paragraphs, long), split_key(keys), strict=True):
        assert given.tolist() == read.tolist()
    assert (np.diff(keys.astype(object)) > 0).all()


def test_later_ones_and_recurring_paragraphs(tmp_path: Path) -> None:
    spill = Spill(tmp_path, "a", 1 << 20)
    spill.add(np.array([9, 5, 9, 5, 9], np.uint64), np.array([4, 2, 0, 1, 3], np.uint64))
    ((later, first),) = later_ones(spill)
    assert sorted(zip(later.tolist(), first.tolist(), strict=True)) == [(2, 1), (3, 0), (4, 0)]
    spill = Spill(tmp_path, "b", 1 << 20)
    keys = paragraph_key(np.arange(7), np.zeros(7, int), np.ones(7, bool))
    spill.add(np.array([9, 5, 9, 5, 9, 9, 5], np.uint64), keys)
    (recur,) = recurring(spill, np.arange(7) == 6)  # 5 then occurs only twice
    assert recur.tolist() == keys[[2, 4, 5]].tolist()
