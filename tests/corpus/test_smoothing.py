"""Exponentially smoothed sampling of languages: shares computed by hand, and a corpus that has them."""

from pathlib import Path

import pytest

from firth.corpus import smoothing
from firth.corpus.prepare import prepare
from firth.corpus.smoothing import smoothed_languages, weights_by_file
from firth.corpus.vocab import build_vocab
from firth.errors import ConfigError, InputError


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """A large and a small language, with a 9:1 ratio of characters."""
    sentence = "the old farmer walked to the river."
    for name, n in (("en[1].txt", 90), ("ko.txt", 10)):
        documents = [f"{sentence[:30]} {name[:2]} {i:02}" for i in range(n)]
        (tmp_path / name).write_text("\n\n".join(documents) + "\n")
    return [tmp_path / "en[1].txt", tmp_path / "ko.txt"]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0])
def test_shares_by_hand(texts: list[Path], exponent: float) -> None:
    large, small = smoothed_languages(texts, exponent)
    assert (large.share, small.share) == pytest.approx((0.9, 0.1))
    total = 0.9**exponent + 0.1**exponent
    assert small.smoothed == pytest.approx(0.1**exponent / total)
    assert large.weight == pytest.approx(0.9**exponent / total / 0.9)
    assert large.share * large.weight + small.share * small.weight == pytest.approx(1)


def test_the_shares_are_those_of_limited_weights(texts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "MOST", 2.0)
    large, small = smoothed_languages(texts, 0.0)
    assert (large.weight, small.weight) == pytest.approx((5 / 9, 2))
    assert (large.smoothed, small.smoothed) == pytest.approx((0.5 / 0.7, 0.2 / 0.7))


def test_the_corpus_has_the_smoothed_shares(texts: list[Path], tiny_vocab: Path, tmp_path: Path) -> None:
    languages = smoothed_languages(texts, 0.0)
    report = prepare(texts, tiny_vocab, tmp_path / "c", hold_out=0, workers=1, weights=weights_by_file(languages))
    # 90 documents with weight 5/9, selected by hash, and 10 repeated five times each.
    assert report.documents == pytest.approx(100, abs=15)


def test_languages_may_have_files_of_one_name(
    texts: list[Path], tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ko").mkdir()
    texts[1].rename(tmp_path / "ko" / "train.txt")
    texts[0].rename(tmp_path / "train.txt")
    monkeypatch.chdir(tmp_path)
    paths = ["ko/train.txt", "train.txt"]
    weights = weights_by_file(smoothed_languages(paths, 0.0))
    prepare(paths, tiny_vocab, tmp_path / "c", hold_out=0, workers=1, weights=weights)
    card = (tmp_path / "c" / "README.md").read_text("utf-8")
    assert [line.split(" | ")[6] for line in card.splitlines() if line.startswith("| `train.txt`")] == ["5", "0.555556"]


def test_a_vocabulary_has_more_tokens_of_a_small_language(tmp_path: Path) -> None:
    large, small = tmp_path / "en.txt", tmp_path / "ko.txt"
    large.write_text("the old farmer walked to the river and the mill\n" * 400)
    small.write_text("늙은 농부가 강과 방앗간으로 걸어갔다\n" * 4)

    def hangul(smooth: float | None) -> int:
        out = tmp_path / str(smooth)
        build_vocab([large, small], out, size=62, smooth=smooth, workers=1, tell=lambda _: None)
        return sum(any("가" <= c <= "힣" for c in piece) and len(piece.strip("#")) > 1 for piece in pieces_of(out))

    def pieces_of(out: Path) -> list[str]:
        return (out / "vocab.txt").read_text("utf-8").splitlines()

    assert hangul(0.0) > hangul(None) == hangul(1.0)
    assert pieces_of(tmp_path / "1.0") == pieces_of(tmp_path / "None")


def test_what_cannot_be_smoothed(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--smooth 2: expected 0"):
        smoothed_languages(texts, 2)
    with pytest.raises(ConfigError, match="give a TEXT for each"):
        smoothed_languages(texts[:1])
    with pytest.raises(ConfigError, match="give each language files of its own"):
        smoothed_languages([texts[0].with_name("*.txt"), texts[1]])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="no text in it"):
        smoothed_languages([texts[1], tmp_path / "empty.txt"])
