"""Classification of texts and pairs: one label, several, or a number.

Source: google-research/bert run_classifier.py (specification of tasks §2, §3).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.batch import Batch, Step
from firth.errors import InputError
from firth.layers.towers import TowersNetwork
from firth.metrics.calibration import sigmoid, softmax
from firth.packed import Carry, Encoder
from firth.tasks.config import (
    BiattentiveConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TowersConfig,
    reads_apart,
)
from firth.tasks.features import Unit
from firth.tasks.model import SharedBias, TaskModel, merge_rows
from firth.tasks.predictions import Labelled, MultiLabelled, Valued
from firth.tasks.rows import Example, Outputs, PairText, Row, RowMaker, merge_outputs, target
from firth.text.open_words import in_blocks
from firth.text.records import Text

# Makes sequences from a pair.
PairRows = Callable[[PairText, PairText], list[Row]]
_Config = ClassifyConfig | MultiLabelConfig | RegressConfig


class Classifier(TaskModel):
    """Predicts one of K labels with any head network; term ``label``."""

    unit = "row"

    def __init__(self, encoder: Encoder, config: ClassifyConfig):
        super().__init__()
        # A biattentive network attends over tokens, not over one vector per text.
        reads: Unit | None = "token" if isinstance(config.network, BiattentiveConfig) else None
        head = SharedBias if config.both_orders else None
        self.build(encoder, config, len(config.labels), {"label": 1.0}, head, reads)

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        """With ``consistency`` the loss in training is half of R-Drop's: the mean over two passes with different
        dropout, and their symmetric divergence. Source: Liang et al. 2021, equations 1 to 3.
        """
        hidden, label = self.read(batch.tokens), batch.targets["label"].label
        logits = merged(self.logits(hidden, batch.tokens), batch, self.config.merge)
        loss = self._loss(logits, label)
        if self.config.consistency and self.training:
            other = merged(self.logits(self.read(batch.tokens), batch.tokens), batch, self.config.merge)
            loss = (loss + self._loss(other, label) + self.config.consistency * _divergence(logits, other)) / 2
        return self.step({"label": loss}, {"label": (logits.argmax(1) == label).sum()}, hidden, batch)

    def _loss(self, logits: Float[Tensor, "E K"], label: Int[Tensor, " E"]) -> Tensor:
        weights, smoothing = self.config.class_weights, self.config.label_smoothing
        weight = torch.tensor(weights, device=logits.device) if weights else None
        return F.cross_entropy(logits, label, weight, reduction="sum", label_smoothing=smoothing)


def _divergence(logits: Float[Tensor, "E K"], other: Float[Tensor, "E K"]) -> Tensor:
    """The mean of both Kullback-Leibler divergences between two distributions, summed over the texts."""
    p, q = logits.log_softmax(1), other.log_softmax(1)
    return ((p.exp() - q.exp()) * (p - q)).sum() / 2


class MultiLabelClassifier(TaskModel):
    """Predicts any of K labels, each by its own logistic regression; term ``label``, counted once per label."""

    unit = "row"

    def __init__(self, encoder: Encoder, config: MultiLabelConfig):
        super().__init__()
        self.build(encoder, config, len(config.labels), {"label": 1.0})

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, label = self.read(batch.tokens), batch.targets["label"].label
        logits = merged(self.logits(hidden, batch.tokens), batch, self.config.windows.merge)
        loss = F.binary_cross_entropy_with_logits(logits, label, reduction="sum")
        return self.step({"label": loss}, {"label": ((logits > 0) == (label > 0)).sum()}, hidden, batch)


class Regressor(TaskModel):
    """Predicts a number by least squares, on its raw scale unless the options have another; term ``value``."""

    unit = "row"

    def __init__(self, encoder: Encoder, config: RegressConfig):
        super().__init__()
        self.build(encoder, config, 1, {"value": 1.0}, SharedBias if config.both_orders else None)
        if isinstance(self.head, TowersNetwork) and config.lowest < config.highest:
            self.head.start_at(*((end - config.centre) / config.scale for end in (config.lowest, config.highest)))

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, value = self.read(batch.tokens), batch.targets["value"].label
        values = merged(self.logits(hidden, batch.tokens), batch, self.config.merge)[:, 0]
        return self.step({"value": F.mse_loss(values, value, reduction="sum")}, {}, hidden, batch)


def merged(logits: Float[Tensor, "B K"], batch: Batch, how: str) -> Float[Tensor, "E K"]:
    """The logits of each text, merged over its sequences."""
    return logits if batch.rows_per_example is None else merge_rows(logits, batch.rows_per_example, how)


def classify_examples(texts: Sequence[Text], maker: RowMaker, config: ClassifyConfig) -> list[Example]:
    """Build the sequences and label index of each text; InputError for an unknown label."""
    numbers = {label: i for i, label in enumerate(config.labels)}

    def number(text: Text) -> np.int64:
        return np.int64(numbers[_known(text.label, numbers, text)])

    return _examples(texts, maker, config, "label", number)


def multilabel_examples(texts: Sequence[Text], maker: RowMaker, config: MultiLabelConfig) -> list[Example]:
    """Build the sequences of each text, and for each label whether it applies."""
    numbers = {label: i for i, label in enumerate(config.labels)}

    def holds(text: Text) -> np.ndarray:
        row = np.zeros(len(numbers), np.float32)
        for label in _several(text):
            row[numbers[_known(label, numbers, text)]] = 1
        return row

    return _examples(texts, maker, config, "label", holds)


def regress_examples(texts: Sequence[Text], maker: RowMaker, config: RegressConfig) -> list[Example]:
    """Build the sequences of each text, and its value."""

    def value(text: Text) -> np.float32:
        if isinstance(text.label, bool) or not isinstance(text.label, (int, float)):
            raise InputError(f"{text.where}: value {text.label!r}: expected a number")
        return np.float32((text.label - config.centre) / config.scale)

    return _examples(texts, maker, config, "value", value)


def _pairs(maker: RowMaker, config: _Config) -> PairRows:
    if reads_apart(config.network):
        return maker.apart
    both_orders = not isinstance(config, MultiLabelConfig) and config.both_orders
    return maker.both_orders if both_orders else maker.pair


def _examples(
    texts: Sequence[Text], maker: RowMaker, config: _Config, term: str, label: Callable[[Text], Any]
) -> list[Example]:
    """Two towers compare each text with its second one, which may be empty; a single text is an error.

    Otherwise an empty second text counts as none (google-research/bert run_classifier.py).
    """
    found, pair, both = [], _pairs(maker, config), isinstance(config.network, TowersConfig)
    for block in in_blocks(texts, lambda text: len(text.text) + len(text.second or "")):
        pairs = [(text.text, text.second or "") for text in block]
        read = maker.pair_texts(pairs, mark=config.mark_shared_words)
        for text, (a, b) in zip(block, read, strict=True):
            if both and text.second is None:
                place = f"{text.where}: " if text.where else ""  # none for a call in Python
                raise InputError(f"{place}found one text, expected two to compare")
            rows = pair(a, b) if both or text.second else maker.single(a.ids)
            targets = {} if text.label is None else {term: target([0], [label(text)])}
            found.append(Example(tuple(rows), (len(rows),), targets))
    return found


def _several(text: Text) -> tuple[str, ...]:
    if not isinstance(text.label, tuple):
        raise InputError(f"{text.where}: labels {text.label!r}: expected a list of labels")
    return text.label


def _known(label: Any, numbers: dict[str, int], text: Text) -> str:
    if label not in numbers:
        raise InputError(f"{text.where}: label {label!r}: expected one of {', '.join(numbers)}")
    return str(label)


def text_logits(outputs: Sequence[Outputs], merge: str) -> Float[np.ndarray, "E K"]:
    """The logits of each text, merged over its sequences."""
    return np.stack([merge_outputs([row["logits"][0] for row in rows], merge) for rows in outputs])


def classify_answers(
    texts: Sequence[Text], examples: Sequence[Example], outputs: Sequence[Outputs], config: ClassifyConfig
) -> list[Labelled]:
    """Predict the most probable label of each text."""
    shares = _shares(outputs, config)
    decided = _decided(shares, examples, config)
    rows = (dict(zip(config.labels, row.tolist(), strict=True)) for row in shares)
    return [replace(answer, probabilities=row) for answer, row in zip(decided, rows, strict=True)]


def classify_decisions(
    texts: Sequence[Text], examples: Sequence[Example], outputs: Sequence[Outputs], config: ClassifyConfig
) -> list[Labelled]:
    """``classify_answers`` without the probabilities of all labels, which would fill the memory if there are many."""
    return _decided(_shares(outputs, config), examples, config)


def _shares(outputs: Sequence[Outputs], config: ClassifyConfig) -> Float[np.ndarray, "E K"]:
    """The probability of each label."""
    return softmax(text_logits(outputs, config.merge) / config.temperature)


def _decided(shares: Float[np.ndarray, "E K"], examples: Sequence[Example], config: ClassifyConfig) -> list[Labelled]:
    best, most = shares.argmax(1).tolist(), shares.max(1).tolist()
    return [
        Labelled(config.labels[i], share, {}, _windows(example, config), example.cut)
        for i, share, example in zip(best, most, examples, strict=True)
    ]


def multilabel_answers(
    texts: Sequence[Text], examples: Sequence[Example], outputs: Sequence[Outputs], config: MultiLabelConfig
) -> list[MultiLabelled]:
    """Predict the labels of each text whose probability reaches the threshold."""
    found = []
    rows = sigmoid(text_logits(outputs, config.windows.merge))
    for row, example in zip(rows, examples, strict=True):
        shares = dict(zip(config.labels, row.tolist(), strict=True))
        labels = tuple(k for k, v in shares.items() if v >= config.threshold)
        found.append(MultiLabelled(labels, shares, example.windows, example.cut))
    return found


def regress_answers(
    texts: Sequence[Text], examples: Sequence[Example], outputs: Sequence[Outputs], config: RegressConfig
) -> list[Valued]:
    """Predict the value of each text, within the range seen in training."""
    values = config.centre + config.scale * text_logits(outputs, config.merge)[:, 0].astype(np.float64)
    if config.lowest < config.highest:
        values = values.clip(config.lowest, config.highest)
    return [Valued(value, _windows(e, config), e.cut) for value, e in zip(values.tolist(), examples, strict=True)]


def _windows(example: Example, config: ClassifyConfig | RegressConfig) -> int:
    """Number of windows of a text; the two orders, or the two texts, of a pair do not count as windows."""
    return 1 if config.merge == "sum" else example.windows
