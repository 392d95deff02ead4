"""Translate head options that earlier versions stored in ``firth.json`` to today's keys."""

from collections.abc import Mapping
from typing import Any

from firth.errors import ConfigError
from firth.tasks.config import BiattentiveConfig, BiLstmConfig, LinearConfig


def with_network(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace ``features`` and a ``network`` name with its widths by one table ``network``.

    A ``weighted`` mix is called ``scalar`` now. Today's options, and those of models without a head, are returned
    unchanged. ConfigError for a hidden layer or a biattentive network above a BiLSTM, which is no longer supported.
    """
    if "features" not in options:
        return _with_scalar_mix(dict(options))
    found = {key: value for key, value in options.items() if key not in ("features", *_OLD)}
    name = options.get("network", "linear")
    hidden_width, attention_width = options.get("hidden_width", 50), options.get("attention_width", 300)
    features = dict(options["features"])
    above = features.get("lstm_layers", 0) or features.get("own_words", 0)
    above = above or features.get("own_characters", "none") != "none"
    if above and name != "linear":
        raise ConfigError(f"a head of network {name!r} above a BiLSTM or words of its own: train it again")
    if above:
        if features.get("pool") == "summary":  # words and tokens are not pooled
            del features["pool"]
        features = {"lstm_layers": 0, **features}
    more = {"linear": {}, "pooled": {"hidden_width": hidden_width}, "biattentive": {"width": attention_width}}[name]
    variant: Any = BiLstmConfig if above else BiattentiveConfig if name == "biattentive" else LinearConfig
    known = variant.__dataclass_fields__
    kept = {key: value for key, value in features.items() if key in known}
    return _with_scalar_mix(found | {"network": {"kind": known["kind"].default, **kept, **more}})


def _with_scalar_mix(options: dict[str, Any]) -> dict[str, Any]:
    network = options.get("network")
    if isinstance(network, Mapping) and network.get("mix") == "weighted":
        return options | {"network": {**network, "mix": "scalar"}}
    return options


_OLD = ("network", "hidden_width", "attention_width")
