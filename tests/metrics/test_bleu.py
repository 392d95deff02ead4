"""BLEU and chrF are sacreBLEU's own numbers."""

import sys

import pytest

from firth.errors import ConfigError
from firth.metrics.translation import score_translations

sacrebleu = pytest.importorskip("sacrebleu")

GOLD = ["the cat sat on the mat .", "a dog runs in the park .", "two birds sing"]


def test_scores_and_signatures_are_sacrebleus() -> None:
    found = ["the cat sat on a mat .", "a dog is running in the park .", ""]
    scores, signatures = score_translations(found, GOLD)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(found, [GOLD]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(found, [GOLD]).score)
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert score_translations(GOLD, GOLD)[0] == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sacrebleu.metrics.bleu", "sacrebleu.metrics.chrf"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'firth\[mt\]'"):
        score_translations(GOLD, GOLD)
