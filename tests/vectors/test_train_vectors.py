"""Word vectors trained by gensim: what they learn, what is written, and that a run is reproducible."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth.vectors.train as train_module
from firth.errors import ConfigError, InputError
from firth.folder import read_model
from firth.inference.word_table import open_table
from firth.models.vectors import Vectors
from firth.vectors.folder import VectorOptions
from firth.vectors.train import VectorTraining, train_vectors

ANIMALS, PLACES = ["cat", "dog", "고양이", "hen"], ["river", "market", "harbour", "mill"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Animals co-occur with animals, places with places."""
    rng = random.Random(1)
    lines = [" ".join(rng.choice(words) for _ in range(10)) for _ in range(400) for words in (ANIMALS, PLACES)]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\nThe Cat, once.\n", "utf-8")
    return tmp_path / "t.txt"


def training(**options) -> VectorTraining:
    plain = {"width": 8, "epochs": 5, "workers": 1, "sample": 0.5, "learning_rate": 0.1}
    if options.get("kind") == "fasttext":
        plain["n_buckets"] = 200
    return VectorTraining(**(plain | options))


pytest.importorskip("gensim", reason="gensim (extra: vectors) is not here")


@pytest.mark.parametrize("kind", ["word2vec", "fasttext"])
@pytest.mark.parametrize("algorithm", ["skip-gram", "cbow"])
def test_words_of_like_company_come_near(text: Path, tmp_path: Path, kind: str, algorithm: str) -> None:
    report = train_vectors([text], tmp_path / "m", training(kind=kind, algorithm=algorithm), VectorOptions())
    assert (report.words, report.width) == (8, 8)
    assert report.unknown == ("ngrams" if kind == "fasttext" else "one")
    table = open_table(tmp_path / "m")
    for words in (ANIMALS, PLACES):
        assert {one.word for one in table.nearest(words[0], 3)} == set(words[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "t.txt"], "nothing is left beside the folder"


def test_the_same_again_with_one_thread(text: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_vectors([text], tmp_path / name, training(epochs=1), VectorOptions())
    a, b = (read_model(tmp_path / name).objective.state_dict() for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_words_are_those_that_the_model_will_read(text: Path, tmp_path: Path) -> None:
    train_vectors([text], tmp_path / "m", training(min_count=1, lowercase=True, epochs=1), VectorOptions())
    tokenizer = read_model(tmp_path / "m").tokenizer
    assert set(tokenizer.pieces[4:]) == {*ANIMALS, *PLACES, "the", "once", ",", "."}
    assert tokenizer.lowercase


def test_a_sample_of_zero_leaves_no_word_out(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in word2vec; left out, it is what the kind's own program has. The learning rate falls to a ten-thousandth."""
    from gensim.models import FastText, Word2Vec

    seen, rates = list[float](), list[tuple[float, float]]()

    class StoppedError(Exception):
        pass

    def stop(*_: Any, sample: float, alpha: float, min_alpha: float, **__: Any) -> Any:
        seen.append(sample)
        rates.append((alpha, min_alpha))
        raise StoppedError

    for made in (Word2Vec, FastText):
        monkeypatch.setattr(made, "__init__", stop)
    for kind, sample in (("word2vec", 0.0), ("word2vec", None), ("fasttext", None)):
        with pytest.raises(StoppedError):
            train_vectors([text], tmp_path / "m", training(kind=kind, sample=sample), VectorOptions())
    assert seen == [0.0, 1e-3, 1e-4]
    assert rates == [(0.1, pytest.approx(1e-5))] * 3


def test_ngrams_are_gensims(text: Path, tmp_path: Path) -> None:
    """An unknown word's vector equals that of gensim's own model, trained identically."""
    from gensim.models import FastText

    options = training(kind="fasttext", epochs=2)
    train_vectors([text], tmp_path / "m", options, VectorOptions())
    lines = [line.replace(",", " ,").replace(".", " .").split() for line in text.read_text("utf-8").splitlines()]
    theirs = FastText(
        vector_size=8,
        window=5,
        min_count=5,
        sg=1,
        negative=5,
        sample=0.5,
        alpha=0.1,
        min_alpha=1e-5,
        epochs=2,
        seed=1,
        workers=1,
        bucket=200,
        min_n=3,
        max_n=6,
        ns_exponent=0.5,
    )
    theirs.build_vocab(lines)
    theirs.train(lines, total_examples=theirs.corpus_count, epochs=2)
    encoder = read_model(tmp_path / "m").objective.encoder
    assert isinstance(encoder, Vectors) and encoder.unknown is not None
    np.testing.assert_allclose(encoder.unknown.weight.detach(), theirs.wv.vectors_ngrams, atol=1e-5)
    unit = theirs.wv["harbours"] / np.linalg.norm(theirs.wv["harbours"])
    np.testing.assert_allclose(open_table(tmp_path / "m").unit("harbours"), unit, atol=1e-5)


def test_rules_for_unknown_words_are_as_for_files(text: Path, tmp_path: Path) -> None:
    report = train_vectors([text], tmp_path / "m", training(epochs=1), VectorOptions(unknown="hashed", n_buckets=30))
    assert (report.unknown, report.n_unknown) == ("hashed", 30)


def test_what_cannot_be_trained(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="occurs 100000 times"):
        train_vectors([text], tmp_path / "m", training(min_count=100_000), VectorOptions())
    (tmp_path / "there" / "mine").mkdir(parents=True)
    with pytest.raises(ConfigError, match="exists already"):
        train_vectors([text], tmp_path / "there", training(), VectorOptions())
    with monkeypatch.context() as unread:
        unread.setattr(train_module, "write_words", None)  # refused before the text is read
        with pytest.raises(ConfigError, match="word2vec has no n-grams for --unknown ngrams"):
            train_vectors([text], tmp_path / "m", training(), VectorOptions(unknown="ngrams"))
        with pytest.raises(ConfigError, match="n_buckets=9: vectors by hash"):
            train_vectors([text], tmp_path / "m", training(), VectorOptions(n_buckets=9))
    with pytest.raises(ConfigError, match="width=0"):
        training(width=0)
    for n_buckets in (0, -5):
        with pytest.raises(ConfigError, match=f"n_buckets={n_buckets}: expected at least 1"):
            training(kind="fasttext", n_buckets=n_buckets)
    with pytest.raises(ConfigError, match=r"^longest_ngram=2: expected at least shortest_ngram=3$"):
        training(kind="fasttext", longest_ngram=2)
    with pytest.raises(ConfigError, match="longest_ngram=5: n-grams are of fastText alone: --kind fasttext"):
        training(longest_ngram=5)
    with pytest.raises(ConfigError, match=r"^n_buckets=2147483648: expected at least 1 and less than 2\^31$"):
        training(kind="fasttext", n_buckets=2**31)
    # gensim reads a sample of 1 or more as a count.
    with pytest.raises(ConfigError, match="sample=1: expected at least 0 and less than 1"):
        training(sample=1)
    for options in ({"negative": 2**31}, {"seed": 2**32}, {"workers": 100_000}, {"learning_rate": 100.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
            training(**options)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r"pip install 'firth\[vectors\]'"):
        train_vectors([text], tmp_path / "m", training(), VectorOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt", "there"]


_WITHOUT_SOCKETS = """
import sys
made = []
sys.addaudithook(lambda event, _: made.append(event) if event.startswith("socket.") else None)
import socket
from firth.vectors.train import _gensim
had = socket.has_ipv6
_gensim()
print(made, socket.has_ipv6 == had)
connection = sys.modules.get("urllib3.util.connection")
print(connection is None or connection.HAS_IPV6 == had)
"""


def test_gensim_is_imported_without_a_socket() -> None:
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_SOCKETS], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["[]", "True", "True"]
