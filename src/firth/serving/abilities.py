"""The abilities of a served model, its encoder, and the vectors of its words."""

from typing import TYPE_CHECKING

from firth.baseline.model import Baseline
from firth.errors import ConfigError

if TYPE_CHECKING:
    from firth.inference.model import Model
    from firth.inference.word_table import WordTable


def encoder_of(predictor: "Model | Baseline") -> "Model | None":
    """The model that reads tokens: of a joint model, its encoder; None for other baselines."""
    if not isinstance(predictor, Baseline):
        return predictor
    if predictor.system != "joint":
        return None
    from firth.inference.joint import Joint

    assert isinstance(predictor.method, Joint)
    return predictor.method.encoder


def words_of(predictor: "Model | Baseline") -> "WordTable | None":
    """The vectors of a model's words; None if it reads no whole words."""
    if isinstance(predictor, Baseline):
        return None
    from firth.inference.word_table import table_of

    try:
        return table_of(predictor.loaded)
    except ConfigError:
        return None


def abilities_of(predictor: "Model | Baseline") -> frozenset[str]:
    """The abilities of a model: what clients can ask it for."""
    if isinstance(predictor, Baseline):
        return frozenset({"predict"})
    from firth.folder import PRETRAINING
    from firth.inference.attention_maps import attention_layers
    from firth.inference.language_models import language_model
    from firth.inference.masks import check_masked
    from firth.inference.next_sentence import next_sentence_model
    from firth.inference.translating import translates
    from firth.objectives.translation import Translation

    loaded = predictor.loaded
    found = {"embed"} if loaded.task == PRETRAINING else {"embed", "predict"}
    try:
        check_masked(loaded, 1)
        found.add("fill-mask")
    except ConfigError:
        pass
    try:
        if not language_model(loaded).backward:
            found.add("generate")
    except ConfigError:
        pass
    if translates(loaded):
        found.add("translate")
    if attention_layers(loaded.objective.encoder):
        found.add("attention")
    if isinstance(loaded.objective, Translation):
        found.add("cross-attention")
    try:
        next_sentence_model(loaded)
        found.add("follow")
    except ConfigError:
        pass
    return frozenset(found)
