"""Fine-tuning settings of small encoders: BERT below base size, pre-trained without next-sentence prediction.

They were compared on held-out parts of training sets; docs/learning.md has the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.recipes import laid_over

# The tables of a recipe, and what is laid over them from each number of training examples on, until the next.
Tables = Mapping[str, Mapping[str, Any]]
ByNumber = tuple[tuple[int, Tables], ...]
_WIDTH = 512
# Kinds that read a text as one vector, and not one vector for each of several answers.
_TEXTS = ("classify", "multilabel", "regress")
# The longest sequence of a tagger, even if the model reads 512 tokens: with a small file those would make too few
# updates.
SMALL_TAGGER_LENGTH = 128


@dataclass(frozen=True, slots=True)
class SmallSettings:
    """``tables``: of a recipe; ``by_number``: laid over them, ascending.

    ``epochs``: over many examples; over fewer, as many as make the updates.
    ``updates``: the least for up to 1,000 examples; for n examples ``growth(n)`` times as many, if they ``grow``.
    ``averaged``: for few examples, the number of seeds whose weights are averaged.
    """

    tables: Tables
    epochs: float
    updates: int
    by_number: ByNumber = ((0, {}),)
    grow: bool = False
    averaged: int = 1

    def tables_of(self, n_train: int) -> Tables:
        """The tables for ``n_train`` examples."""
        *_, above = (tables for least, tables in self.by_number if least <= n_train)
        return laid_over(self.tables, above)

    def updates_of(self, n_train: int) -> float:
        """The least number of updates for ``n_train`` examples."""
        return self.updates * growth(n_train) if self.grow else self.updates


_TAGGER = SmallSettings(
    {
        "head": {"network": {"words": "mean"}},
        "adapt": {"dropout": 0.1},
        "optim": {"kind": "adamw", "learning_rate": 4 / 3 * 1e-4},
    },
    epochs=5.0,
    updates=200,
)
_ANSWERER = SmallSettings(
    {
        "head": {"mark_shared_words": True},
        "optim": {"kind": "adamw", "learning_rate": 1e-4},
        "train": {"batch_examples": 16},
    },
    epochs=3.0,
    updates=200,
)
_TEXT_NETWORK: Mapping[str, Any] = {"pool": "mean", "mix": "concat", "dropout": 0.3}
_TEXT_TABLES: Tables = {"adapt": {"dropout": 0.2}, "optim": {"learning_rate": 1e-4}}
# With few examples every update is one of the first, which are several times larger without bias correction.
_FEW: Tables = {"optim": {"kind": "adamw"}}
# So many examples are hardly memorised, and the dropout that few need would only slow down learning.
_MANY: Tables = {"adapt": {"dropout": 0.1}, "head": {"network": {"dropout": 0.1}}}
# With thousands of texts, agreement of two passes is the better remedy against memorising; with more it costs hours.
_THOUSANDS: Tables = laid_over(_MANY, {"head": {"consistency": 1.0}})
_TEXTS_BY_NUMBER: ByNumber = ((0, _FEW), (500, {}), (4_000, _THOUSANDS), (20_000, _MANY))
# Of a few thousand pairs none gained by either.
_PAIRS_BY_NUMBER: ByNumber = ((0, _FEW), (500, {}), (50_000, _MANY))


def growth(n_train: int) -> float:
    """The updates of ``n_train`` examples relative to 1,000: more examples, more updates, but fewer epochs."""
    return max(n_train / 1000, 1.0) ** 0.6


def is_small(width: int, has_summary: bool) -> bool:
    """Whether an encoder is one of these. ``has_summary``: whether its summary vector of a text was trained."""
    return not has_summary and width <= _WIDTH


def small_settings(kind: str, head: Mapping[str, Any], n_layers: int, *, pairs: bool) -> SmallSettings | None:
    """The settings for a kind of task; None if the usual ones apply. Learning rates are those of 768 units.

    ``head``: the recipe's options of it. ``n_layers``: of the encoder. ``pairs``: whether the texts are pairs.
    """
    network = _table(head, "network")
    if kind == "tag":
        return _TAGGER
    if kind == "answer":
        return _ANSWERER
    if kind not in _TEXTS or network.get("kind", "linear") != "linear" or network.get("pool") == "summary":
        return None
    read = dict(_TEXT_NETWORK)
    if "layers" in network or "mix" in network:
        del read["mix"]
    else:
        read["layers"] = list(range(n_layers + 1))
    marks = {"mark_shared_words": True} if pairs else {}
    tables = {**_TEXT_TABLES, "head": {"network": read, **marks}}
    return SmallSettings(
        tables,
        epochs=3.0,
        updates=350,
        by_number=_PAIRS_BY_NUMBER if pairs else _TEXTS_BY_NUMBER,
        grow=True,
        averaged=3,
    )


def compares_apart(kind: str, plain: Mapping[str, Any]) -> bool:
    """Whether a frozen small encoder reads the two texts of a pair apart, as two towers, because a recipe does not say
    how.

    It cannot learn what marks of shared words mean, nor attention between the texts: docs/learning.md compares both.
    """
    head = plain.get("head", {})
    network, windows = _table(head, "network"), _table(head, "windows")
    return (
        bool(plain.get("adapt", {}).get("frozen_groups"))
        and kind in ("classify", "regress")
        and "head_preset" not in plain
        and not head.get("both_orders")
        and not {"kind", "hidden_width"} & set(network)
        and network.get("pool") != "summary"
        and not {"long", "merge", "stride"} & set(windows)
    )


def _table(head: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of the head; empty if it is not a table, which is refused when the recipe is built."""
    table = head.get(name, {})
    return table if isinstance(table, Mapping) else {}
