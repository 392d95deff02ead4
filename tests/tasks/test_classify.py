"""One label, several, or a number: losses against torch's on merged logits, and answers made from outputs."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from network_options import network_of
from torch import Tensor

from firth.data.batch import Batch
from firth.errors import ConfigError, InputError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.classify import (
    Classifier,
    MultiLabelClassifier,
    Regressor,
    classify_answers,
    classify_decisions,
    classify_examples,
    merged,
    multilabel_answers,
    multilabel_examples,
    regress_answers,
    regress_examples,
)
from firth.tasks.config import ClassifyConfig, MultiLabelConfig, RegressConfig, TowersConfig, WindowConfig
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker, collate, make_row
from firth.text.layouts import bert_layout
from firth.text.records import Label, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer.from_vocab([*SPECIALS, *LETTERS], lowercase=True)
SIZES = BertConfig(
    vocab_size=TOKENIZER.size,
    width=8,
    n_layers=1,
    n_heads=2,
    feed_forward_width=12,
    max_positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
LABELS = ("bad", "fair", "good")
# One row, three rows, one row (a pair), two rows.
WORDS = ["a b c", " ".join(LETTERS * 4), "a", "h g f " * 6]


def texts(*labels: Label | None) -> list[Text]:
    seconds = [None, None, "b c", None]
    return [
        Text(word, label, f"f.tsv:{i}", second)
        for i, (word, label, second) in enumerate(zip(WORDS, labels, seconds, strict=True), 1)
    ]


def maker() -> RowMaker:
    return RowMaker(TOKENIZER, bert_layout(TOKENIZER), WindowConfig(), SIZES.max_positions)


def built(model: type[TaskModel], config: Any) -> Any:
    torch.manual_seed(0)
    made = model(Bert(SIZES), config)
    # Far from zero, so that windows differ.
    torch.nn.init.normal_(made.head.weight)
    return made.eval()


def by_text(model: TaskModel, examples: list[Example], how: str) -> Tensor:
    """The logits of each text, one text at a time."""
    rows = [model.outputs(collate([example]).tokens)["logits"] for example in examples]
    return torch.stack([x.mean(0) if how == "mean" else x.amax(0) for x in rows])


def step_of(model: TaskModel, examples: list[Example]) -> tuple[Batch, Tensor, Tensor]:
    batch = collate(examples)
    step = model(batch)
    (loss,), correct = step.losses.values(), step.correct.get("label", torch.tensor(0))
    return batch, loss, correct


@pytest.mark.parametrize(
    ("model", "examples", "options"),
    [
        (Classifier, classify_examples, {"labels": LABELS}),
        (MultiLabelClassifier, multilabel_examples, {"labels": LABELS}),
        (Regressor, regress_examples, {}),
    ],
)
def test_words_that_a_pair_shares_are_marked(model: type[TaskModel], examples: Any, options: dict[str, Any]) -> None:
    kind = model.__init__.__annotations__["config"]
    pair, single = Text("a b", second="c b"), Text("a b")
    config = kind(**options, mark_shared_words=True)
    marked, alone = examples([pair, single], maker(), config)
    (plain,) = examples([pair], maker(), kind(**options))
    assert marked.rows[0].segments.tolist() == [0, 0, 2, 0, 1, 3, 1]
    assert plain.rows[0].segments.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert not alone.rows[0].segments.any()
    made = built(model, config)
    assert made.encoder.config.n_segments == 4
    assert not torch.allclose(by_text(made, [marked], "mean"), by_text(made, [plain], "mean"))


@pytest.mark.parametrize("of", [partial(ClassifyConfig, labels=LABELS), RegressConfig])
def test_towers_mark_no_words(of: Any) -> None:
    with pytest.raises(ConfigError, match="^head.mark_shared_words=true: network.kind='towers' reads each text by its"):
        of(mark_shared_words=True, network=TowersConfig(), windows=WindowConfig(long="cut"))


@pytest.mark.parametrize("merge", ["mean", "max"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [(), (0.5, 1.0, 3.0)])
def test_the_loss_of_labels_is_torchs(merge: Any, smoothing: float, weights: tuple[float, ...]) -> None:
    windows = WindowConfig(merge=merge)
    config = ClassifyConfig(labels=LABELS, windows=windows, label_smoothing=smoothing, class_weights=weights)
    model = built(Classifier, config)
    examples = classify_examples(texts("good", "bad", "fair", "good"), maker(), config)
    assert [len(example.rows) for example in examples] == [1, 4, 1, 2]
    gold, logits = torch.tensor([2, 0, 1, 2]), by_text(model, examples, merge)
    expected = F.cross_entropy(
        logits, gold, torch.tensor(weights) if weights else None, reduction="sum", label_smoothing=smoothing
    )
    batch, loss, correct = step_of(model, examples)
    torch.testing.assert_close(loss, expected)
    assert batch.counts() == {"label": 4}
    assert correct == (logits.argmax(1) == gold).sum()


def test_two_passes_should_agree() -> None:
    config = ClassifyConfig(labels=LABELS, consistency=3.0)
    model, plain = built(Classifier, config), built(Classifier, ClassifyConfig(labels=LABELS))
    examples = classify_examples(texts("good", "bad", "fair", "good"), maker(), config)
    assert torch.equal(step_of(model, examples)[1], step_of(plain, examples)[1])  # without dropout there is one pass
    batch, gold = collate(examples), torch.tensor([2, 0, 1, 2])
    model.train()
    torch.manual_seed(5)
    loss = model(batch).losses["label"]
    torch.manual_seed(5)
    first, second = (merged(model.logits(model.read(batch.tokens), batch.tokens), batch, "mean") for _ in range(2))
    assert not torch.equal(first, second)
    p, q = first.log_softmax(1), second.log_softmax(1)
    losses = F.cross_entropy(first, gold, reduction="sum") + F.cross_entropy(second, gold, reduction="sum")
    apart = (F.kl_div(p, q, log_target=True, reduction="sum") + F.kl_div(q, p, log_target=True, reduction="sum")) / 2
    torch.testing.assert_close(loss, (losses + 3 * apart) / 2)
    assert (model.passes, plain.passes) == (2, 1)


def test_the_loss_of_label_sets_is_torchs() -> None:
    config = MultiLabelConfig(labels=LABELS)
    model = built(MultiLabelClassifier, config)
    examples = multilabel_examples(texts(("good", "bad"), (), ("fair",), LABELS), maker(), config)
    gold = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    logits = by_text(model, examples, "mean")
    batch, loss, correct = step_of(model, examples)
    assert torch.equal(batch.targets["label"].label, gold)
    # One prediction per label: their mean is torch's mean.
    assert batch.counts() == {"label": 12}
    torch.testing.assert_close(loss / 12, F.binary_cross_entropy_with_logits(logits, gold))
    assert correct == ((logits > 0) == gold.bool()).sum()


def test_the_loss_of_values_is_the_square_on_the_raw_scale() -> None:
    config = RegressConfig(windows=WindowConfig(merge="max"))
    model = built(Regressor, config)
    examples = regress_examples(texts(0.0, 5.0, 2, -1.25), maker(), config)
    batch, loss, _ = step_of(model, examples)
    gold = torch.tensor([0.0, 5.0, 2.0, -1.25])
    torch.testing.assert_close(loss / 4, F.mse_loss(by_text(model, examples, "max")[:, 0], gold))
    assert batch.targets["value"].label.dtype == torch.float32


@pytest.mark.parametrize("merge", ["mean", "max"])
def test_windows_are_merged_in_training_as_in_answers(merge: Any) -> None:
    config = ClassifyConfig(labels=LABELS, windows=WindowConfig(merge=merge))
    model = built(Classifier, config)
    examples = classify_examples(texts(None, None, None, None), maker(), config)
    with torch.no_grad():
        trained = by_text(model, examples, merge).softmax(1)
        outputs = [
            [{"logits": model.outputs(collate([Example((row,), (1,), {})]).tokens)["logits"].numpy()} for row in e.rows]
            for e in examples
        ]
    answers = classify_answers(texts(None, None, None, None), examples, outputs, config)
    shares = [[answer.probabilities[label] for label in LABELS] for answer in answers]
    np.testing.assert_allclose(shares, trained.numpy(), atol=1e-6)
    assert [answer.label for answer in answers] == [LABELS[i] for i in trained.argmax(1)]
    assert all(answer.probability == max(answer.probabilities.values()) for answer in answers)
    decided = classify_decisions(texts(None, None, None, None), examples, outputs, config)
    assert decided == [replace(answer, probabilities={}) for answer in answers]


def test_an_empty_second_text_is_none() -> None:
    single, empty, pair = classify_examples(
        [Text("a", "bad"), Text("a", "bad", second=""), Text("a", "bad", second="\x00")],
        maker(),
        ClassifyConfig(labels=LABELS),
    )
    assert empty.rows[0].ids.tolist() == single.rows[0].ids.tolist()
    # A second text that is cleaned to nothing still counts as a text.
    assert len(pair.rows[0].ids) == len(single.rows[0].ids) + 1


def test_a_text_without_label_has_no_target() -> None:
    (example,) = classify_examples([Text("a")], maker(), ClassifyConfig(labels=LABELS))
    assert example.targets == {} and collate([example]).targets == {}


@pytest.mark.parametrize(
    ("make", "config", "label", "message"),
    [
        (classify_examples, ClassifyConfig(labels=LABELS), "great", "label 'great': expected one of bad, fair, good"),
        (classify_examples, ClassifyConfig(labels=LABELS), 1.0, "label 1.0: expected one of bad"),
        (multilabel_examples, MultiLabelConfig(labels=LABELS), ("bad", "great"), "label 'great': expected one of bad"),
        (multilabel_examples, MultiLabelConfig(labels=LABELS), "bad", "labels 'bad': expected a list of labels"),
        (regress_examples, RegressConfig(), "bad", "value 'bad': expected a number"),
        (regress_examples, RegressConfig(), True, "value True: expected a number"),
    ],
)
def test_a_label_that_does_not_fit_is_named_with_its_place(make: Any, config: Any, label: Label, message: str) -> None:
    with pytest.raises(InputError, match=rf"^f\.tsv:7: {message}"):
        make([Text("a", label, "f.tsv:7")], maker(), config)


def rows_of(*logits: list[list[float]]) -> list[list[dict[str, np.ndarray]]]:
    """The outputs of texts, each given as the logits of its windows."""
    return [[{"logits": np.array([row], np.float32)} for row in windows] for windows in logits]


def read(*windows: int, cut: bool = False) -> list[Example]:
    """Examples of texts that were read in so many windows each."""
    return [Example((make_row([1], cut=cut),) * n, (n,), {}) for n in windows]


@pytest.mark.parametrize(
    ("answers", "config"),
    [
        (classify_answers, ClassifyConfig(labels=("n", "y"))),
        (multilabel_answers, MultiLabelConfig(labels=("n", "y"))),
        (regress_answers, RegressConfig()),
    ],
)
def test_answers_say_how_their_texts_were_read(answers: Any, config: Any) -> None:
    outputs = rows_of([[0, 1]], [[0, 1]] * 3, [[0, 1]])
    found = answers([Text("a")] * 3, [*read(1, 3), *read(1, cut=True)], outputs, config)
    assert [(answer.windows, answer.cut) for answer in found] == [(1, False), (3, False), (1, True)]


def test_a_temperature_divides_the_merged_logits() -> None:
    config = ClassifyConfig(labels=("n", "y"), temperature=2.0)
    (answer,) = classify_answers([Text("a")], read(2), rows_of([[0, 1], [0, 3]]), config)
    assert answer.label == "y"
    assert answer.probability == pytest.approx(1 / (1 + np.exp(-1)))
    assert answer.probabilities == pytest.approx({"n": 1 / (1 + np.e), "y": np.e / (1 + np.e)})


def test_labels_hold_from_the_threshold_on() -> None:
    config = MultiLabelConfig(labels=LABELS, threshold=0.5)
    some, none = multilabel_answers([Text("a")] * 2, read(1, 1), rows_of([[0, -0.01, 4]], [[-1, -2, -3]]), config)
    assert some.labels == ("bad", "good") and none.labels == ()
    assert some.probabilities["fair"] == pytest.approx(1 / (1 + np.exp(0.01)))


def test_values_stay_in_the_range_of_training() -> None:
    outputs = rows_of([[7.5]], [[-1]], [[2], [4]])
    within = regress_answers([], read(1, 1, 2), outputs, RegressConfig(lowest=0.0, highest=5.0))
    assert [answer.value for answer in within] == [5, 0, 3]
    assert [answer.value for answer in regress_answers([], read(1, 1, 2), outputs, RegressConfig())] == [7.5, -1, 3]


def test_values_are_learnt_on_the_scale_of_the_options() -> None:
    config = RegressConfig(lowest=0.0, highest=900.0, centre=500.0, scale=100.0)
    found = regress_answers([], read(1, 1, 2), rows_of([[7.5]], [[-1]], [[2], [4]]), config)
    assert [answer.value for answer in found] == [900, 400, 800]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ClassifyConfig, {"labels": ("a",)}),
        (ClassifyConfig, {"labels": ("a", "a")}),
        (ClassifyConfig, {"labels": LABELS, "label_smoothing": 1.0}),
        (ClassifyConfig, {"labels": LABELS, "class_weights": (1.0, 2.0)}),
        (ClassifyConfig, {"labels": LABELS, "class_weights": (1.0, 2.0, -1.0)}),
        (MultiLabelConfig, {"labels": ()}),
    ],
)
def test_impossible_options_of_labels_are_refused(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{list(options)[-1]}="):
        make(**options)


def test_head_dropout_falls_on_the_summary() -> None:
    """With a head that copies one component of the summary, dropout leaves 0 or 1 / 0.6 of it."""
    config = ClassifyConfig(labels=("n", "y"), network=network_of(dropout=0.4))
    model = built(Classifier, config)
    torch.nn.init.zeros_(model.head.weight)
    model.head.weight.data[1, 3] = 1.0
    batch = collate(classify_examples([Text("a b", "y")] * 2000, maker(), config))
    expected = model.encoder(batch.tokens).summary[0, 3]
    found = model.train().outputs(batch.tokens)["logits"][:, 1] / expected
    assert found[found != 0].detach().numpy() == pytest.approx(1 / 0.6, rel=1e-4)
    assert (found == 0).float().mean().item() == pytest.approx(0.4, abs=0.04)
