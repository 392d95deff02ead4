"""Fine-tuned models in transformers: the same logits, losses and gradients, and what they save is read here."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from network_options import network_of
from same_outputs import close
from torch import Tensor, nn

from firth.convert import hf_bert
from firth.convert.renames import expand, to_theirs
from firth.data.batch import Batch
from firth.errors import CheckpointError
from firth.folder import read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowWords, collate, make_row, target
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quiet")

PIECES = [*SPECIALS, *(form for c in "abcdefghijkl" for form in (c, "##" + c))]
SIZES = BertConfig(
    vocab_size=len(PIECES),
    width=32,
    n_layers=2,
    n_heads=4,
    feed_forward_width=48,
    max_positions=20,
    dropout=0.0,
    attention_dropout=0.0,
)
# All of one length: without padding, their softmax over the tokens of a sequence has the same terms as ours.
N_ROWS, LENGTH = 6, 12
NO_DROPOUT = network_of(dropout=0.0)
OPTIONS: dict[str, Any] = {
    "classify": ClassifyConfig(labels=("a", "b", "c"), network=NO_DROPOUT),
    "multilabel": MultiLabelConfig(labels=("a", "b", "c"), network=NO_DROPOUT),
    "regress": RegressConfig(network=NO_DROPOUT),
    "tag": TagConfig(labels=("O", "B-X", "I-X"), network=NO_DROPOUT),
    "answer": AnswerConfig(network=NO_DROPOUT),
    "choose": ChooseConfig(network=NO_DROPOUT),
}
CLASSES = {
    "classify": transformers.BertForSequenceClassification,
    "multilabel": transformers.BertForSequenceClassification,
    "regress": transformers.BertForSequenceClassification,
    "tag": transformers.BertForTokenClassification,
    "answer": transformers.BertForQuestionAnswering,
    "choose": transformers.BertForMultipleChoice,
}
every_task = pytest.mark.parametrize("task", list(TASKS))


def model(task: str, options: Any = None) -> TaskModel:
    """A task model with every parameter sampled, so that no zero or one hides a mistake."""
    made = TASKS[task].model(Bert(SIZES), options or OPTIONS[task])
    torch.manual_seed(0)
    for name, parameter in made.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.1)
    return made.eval()


def written(folder: Path, task: str, made: TaskModel) -> Path:
    folder.mkdir()
    write_model(folder, "bert", task, made, Tokenizer.from_vocab(PIECES, lowercase=True), {})
    return folder


def examples(task: str) -> list[Example]:
    """Six sequences as six texts, or as two questions with three choices each; some tokens continue a word."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(1, len(PIECES), (N_ROWS, LENGTH), generator=draw).numpy()
    segments = [0] * 5 + [1] * (LENGTH - 5)
    firsts = torch.tensor([1, 2, 4, 5, 8]).numpy()
    words = RowWords(torch.tensor([[1, 1], [2, 3], [4, 4], [5, 7], [8, 10]]).numpy(), torch.arange(5).numpy())
    rows = [make_row(row, segments, words if task == "tag" else None) for row in ids]
    if task == "choose":
        right = [target([0], [label]) for label in (2, 0)]
        return [Example(tuple(rows[3 * i : 3 * i + 3]), (1, 1, 1), {"choice": right[i]}) for i in range(2)]
    found = []
    for number, row in enumerate(rows):
        label = [number % 3]
        targets: dict[str, Any] = {
            "classify": {"label": target([0], label)},
            "multilabel": {"label": target([0], torch.eye(3)[label].numpy())},
            "regress": {"value": target([0], torch.tensor([number / 2]).numpy())},
            "tag": {"tag": target(range(5), [(number + i) % 3 for i in range(len(firsts))])},
            "answer": {"start": target([0], [number]), "end": target([0], [(number * 5) % LENGTH])},
        }[task]
        found.append(Example((row,), (1,), targets))
    return found


def given(task: str, batch: Batch) -> dict[str, Tensor]:
    """The inputs of their model for the same batch, with labels."""
    shape = (-1, 3, LENGTH) if task == "choose" else (-1, LENGTH)
    assert batch.tokens.segments is not None
    read = {"input_ids": batch.tokens.ids.view(shape), "token_type_ids": batch.tokens.segments.view(shape)}
    if task == "answer":
        start, end = (batch.targets[term].label for term in ("start", "end"))
        return {**read, "start_positions": start, "end_positions": end}
    (labels,) = (found.label for found in batch.targets.values())
    if task == "tag":
        # -100 (ignored) wherever no word begins.
        every = torch.full((batch.tokens.rows.n_tokens,), -100)
        assert batch.tokens.words is not None
        every[batch.tokens.words.first] = labels
        labels = every.view(shape)
    return {**read, "labels": labels}


def same_logits(task: str, made: TaskModel, batch: Batch, out: Any) -> None:
    logits = made.logits(made.read(batch.tokens), batch.tokens)
    if task == "answer":
        close(logits[:, 0], out.start_logits.flatten())
        close(logits[:, 1], out.end_logits.flatten())
    elif task == "tag":
        assert batch.tokens.words is not None
        close(logits, out.logits.flatten(0, 1)[batch.tokens.words.first])
    else:
        close(logits, out.logits.reshape(logits.shape))


@every_task
@pytest.mark.parametrize("training", [False, True])
def test_logits_losses_and_gradients(tmp_path: Path, task: str, training: bool) -> None:
    made, batch = model(task).train(training), collate(examples(task))
    folder = written(tmp_path / "m", task, made)
    theirs = CLASSES[task].from_pretrained(folder, attn_implementation="eager").train(training)
    out = theirs(**given(task, batch))
    same_logits(task, made, batch, out)
    step, counts = made(batch), batch.counts()
    loss = sum(weight * step.losses[term] / counts[term] for term, weight in made.weights.items())
    close(loss, out.loss)  # type: ignore[arg-type]  # every task has a term
    loss.backward()  # type: ignore[union-attr]
    out.loss.backward()
    ours = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    renamed = to_theirs(ours, expand(hf_bert.TASK_NAMES[task], SIZES.n_layers))
    found = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert set(found) == set(renamed)
    assert len(found) == len(list(theirs.parameters()))
    for name, gradient in renamed.items():
        close(gradient, found[name])
        assert bool(gradient.any()), name


@every_task
def test_the_class_and_what_it_is_told(tmp_path: Path, task: str) -> None:
    folder = written(tmp_path / "m", task, model(task))
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.architectures == [CLASSES[task].__name__]
    automatic = {
        "tag": transformers.AutoModelForTokenClassification,
        "answer": transformers.AutoModelForQuestionAnswering,
        "choose": transformers.AutoModelForMultipleChoice,
    }.get(task, transformers.AutoModelForSequenceClassification)
    theirs = automatic.from_pretrained(folder)
    assert type(theirs) is CLASSES[task]
    if labels := getattr(OPTIONS[task], "labels", ()):
        assert [config.id2label[i] for i in range(len(labels))] == list(labels)
    if task in ("classify", "multilabel", "regress"):
        assert (
            config.problem_type
            == {
                "classify": "single_label_classification",
                "multilabel": "multi_label_classification",
                "regress": "regression",
            }[task]
        )


@every_task
def test_no_tensor_of_theirs_is_made_up(tmp_path: Path, task: str) -> None:
    """Our folder lacks no tensor of theirs; they ignore at most the pooler, if their class has none."""
    folder = written(tmp_path / "m", task, model(task))
    _, info = CLASSES[task].from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    left_out = {f"bert.pooler.dense.{part}" for part in ("weight", "bias")} if task in ("tag", "answer") else set()
    assert set(info["unexpected_keys"]) == left_out


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress", "choose"])
def test_what_they_saved_reads_here(tmp_path: Path, task: str) -> None:
    """A model changed and saved by transformers, with our other files added, gives the same logits."""
    folder = written(tmp_path / "m", task, model(task))
    theirs = CLASSES[task].from_pretrained(folder).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "theirs")
    for path in folder.iterdir():
        if not (tmp_path / "theirs" / path.name).exists():
            shutil.copy(path, tmp_path / "theirs")
    loaded, batch = read_model(tmp_path / "theirs"), collate(examples(task))
    assert isinstance(loaded.objective, TaskModel)
    same_logits(task, loaded.objective, batch, theirs(**given(task, batch)))


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_what_they_saved_without_a_pooler_is_refused_by_name(tmp_path: Path, task: str) -> None:
    folder = written(tmp_path / "m", task, model(task))
    CLASSES[task].from_pretrained(folder).save_pretrained(tmp_path / "theirs")
    for path in folder.iterdir():
        if not (tmp_path / "theirs" / path.name).exists():
            shutil.copy(path, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=r"lacks bert\.pooler\.dense\.weight, .* \(2 missing"):
        read_model(tmp_path / "theirs")


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress", "tag", "choose"])
def test_dropout_falls_on_what_the_head_reads(tmp_path: Path, task: str) -> None:
    """Their model takes the dropout rate from our folder. A head that sums its input shows how much was kept."""
    rate, times = 0.3, 150
    made = model(task, replace(OPTIONS[task], network=network_of(dropout=rate)))
    nn.init.constant_(made.head.weight, 1.0)
    nn.init.zeros_(made.head.bias)
    theirs = CLASSES[task].from_pretrained(written(tmp_path / "m", task, made)).train()
    batch = collate(examples(task) * times)
    torch.manual_seed(0)
    with torch.no_grad():
        ours = made.train().logits(made.read(batch.tokens), batch.tokens)[:, 0]
        drawn = theirs(**given(task, batch)).logits.reshape(-1, made.head.out_features)[:, 0]
        hidden = made.eval().features(made.read(batch.tokens), batch.tokens)
    if task == "tag":
        assert batch.tokens.words is not None
        drawn = drawn[batch.tokens.words.first]
    # The mean of the sum of x is its value without dropout; the standard deviation is √(p / (1 - p) Σ x²).
    deviation = (rate / (1 - rate) * hidden.square().sum(1)).sqrt()
    for found in (ours, drawn):
        standard = ((found - hidden.sum(1)) / deviation).view(times, -1)
        assert bool((standard.mean(0).abs() < 5 / times**0.5).all())
        torch.testing.assert_close(standard.std(0), torch.ones(standard.shape[1]), rtol=0, atol=0.25)


def test_their_head_for_answers_has_no_dropout_and_ours_none_unless_said(tmp_path: Path) -> None:
    assert AnswerConfig().network.dropout == 0
    folder = written(tmp_path / "m", "answer", model("answer"))
    assert "classifier_dropout" not in json.loads((folder / "config.json").read_text())
    theirs = CLASSES["answer"].from_pretrained(folder).train()
    read = given("answer", collate(examples("answer")))
    assert torch.equal(theirs(**read).start_logits, theirs(**read).start_logits)
