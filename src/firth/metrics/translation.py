"""BLEU and chrF of translations, as sacreBLEU computes them, with the signatures that say how.

The scores of papers before sacreBLEU depend on each group's own tokenisation and cannot be compared with these.
Source: Papineni et al. 2002; Popović 2015; Post 2018, "A Call for Clarity in Reporting BLEU Scores".
"""

from collections.abc import Sequence
from typing import Any

from firth.errors import ConfigError


def score_translations(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """``bleu`` and ``chrf`` of a corpus (0 to 100), and for each the signature of its computation.

    One reference per sentence; cased; BLEU uses tokenisation 13a. ConfigError without the library.
    """
    scores, signatures = {}, {}
    for name, metric in translation_metrics().items():
        scores[name] = float(metric.corpus_score(list(hypotheses), [list(references)]).score)
        signatures[name] = str(metric.get_signature())
    return scores, signatures


def translation_metrics() -> dict[str, Any]:
    """sacreBLEU's metrics by name. ConfigError without the library, so call it before translating."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise ConfigError("BLEU is computed by sacreBLEU: pip install 'firth[mt]'") from None
    return {"bleu": BLEU(), "chrf": CHRF()}
