"""Pairs read in both orders (Radford et al. 2018, §3.3, similarity): the head reads the sum."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from firth.data.batch import Batch
from firth.errors import ConfigError
from firth.finetuning.calibrate import calibrate
from firth.folder import read_model, write_model
from firth.inference.model import Model
from firth.inference.score import EncodedSplit
from firth.packed import Encoder
from firth.systems import SYSTEMS
from firth.tasks.config import ClassifyConfig, RegressConfig, WindowConfig
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker, collate
from firth.tasks.table import TASKS
from firth.text.records import Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS

TOKENIZER = Tokenizer.from_vocab([*SPECIALS, *"abcdefgh"], lowercase=True)
CUT = WindowConfig(long="cut")
CONFIGS: dict[str, Any] = {
    "classify": ClassifyConfig(labels=("n", "y"), both_orders=True, windows=CUT),
    "regress": RegressConfig(both_orders=True, windows=CUT),
}
PAIRS = [("a b", "c"), ("d", "e f g"), ("a b c d e f g h a b", "h g f e d c b a h"), ("c", "c")]
every_kind = pytest.mark.parametrize("kind", sorted(CONFIGS))
every_system = pytest.mark.parametrize("system", sorted(SYSTEMS))


def tokenizer_of(system: str) -> Tokenizer:
    """A tokenizer of subword tokens, or of whole words for a system that reads words by their characters."""
    if not SYSTEMS[system].characters:
        return TOKENIZER
    return SYSTEMS[system].reads(Tokenizer.from_words([*WORDS.specials, *"abcdefgh"], lowercase=True))


def encoder_of(system: str) -> Encoder:
    row = SYSTEMS[system]
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer_of(system).size,
        "width": 8,
        "n_layers": 2,
        "n_heads": 2,
        "feed_forward_width": 12,
        "max_positions": 16,
        "hidden_width": 12,
    }
    known = {f.name for f in fields(row.config)}
    sizes |= {name: 0.0 for name in known if name.endswith("dropout")}
    return row.encoder(row.config(**{name: n for name, n in sizes.items() if name in known}, **row.fixed))


def built(kind: str, system: str, config: Any = None) -> TaskModel:
    torch.manual_seed(0)
    model = TASKS[kind].model(encoder_of(system), config or CONFIGS[kind])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def records(kind: str, pairs: list[tuple[str, str | None]]) -> list[Text]:
    labels: list[Any] = ["y", "n", "y", "n"] if kind == "classify" else [0.5, 2.0, -1.0, 3.0]
    return [Text(a, label, "f:1", b) for (a, b), label in zip(pairs, labels, strict=False)]


def made(kind: str, system: str, pairs: Any, config: Any = None) -> list[Example]:
    tokenizer = tokenizer_of(system)
    maker = RowMaker(tokenizer, SYSTEMS[system].layout(tokenizer), CUT, 16)
    return TASKS[kind].examples(records(kind, pairs), maker, config or CONFIGS[kind])


def words(example: Example) -> list[str]:
    return [" ".join(TOKENIZER.pieces[i] for i in row.ids) for row in example.rows]


def test_rows_of_both_orders() -> None:
    first, _, long, _ = made("classify", "bert", PAIRS)
    assert words(first) == ["[CLS] a b [SEP] c [SEP]", "[CLS] c [SEP] a b [SEP]"]
    assert first.rows[1].segments.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.candidates == (2,) and not first.cut
    # Each order is truncated by the rule for pairs: of two equally long texts the second loses more.
    assert words(long) == [
        "[CLS] a b c d e f g [SEP] h g f e d c [SEP]",
        "[CLS] h g f e d c b [SEP] a b c d e f [SEP]",
    ]
    assert long.cut


def test_a_cut_pair_is_noted_once() -> None:
    maker = RowMaker(TOKENIZER, SYSTEMS["bert"].layout(TOKENIZER), CUT, 16)
    TASKS["classify"].examples(records("classify", PAIRS), maker, CONFIGS["classify"])
    assert maker.noted == {"cut": 1}


@every_system
@every_kind
def test_what_the_head_reads_is_added(kind: str, system: str) -> None:
    model = built(kind, system).train()
    batch = collate(made(kind, system, PAIRS))
    summaries = model.encoder(batch.tokens).summary.unflatten(0, (len(PAIRS), 2)).sum(1)
    logits = F.linear(summaries, model.head.weight, model.head.bias)
    target = next(iter(batch.targets.values())).label
    if kind == "classify":
        expected = F.cross_entropy(logits, target, reduction="sum")
    else:
        expected = F.mse_loss(logits[:, 0], target, reduction="sum")
    model.features.dropout.p = 0.0
    (loss,) = model(batch).losses.values()
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(x, list(model.head.parameters()), retain_graph=True) for x in (loss, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def stored(kind: str, system: str, folder: Path) -> Model:
    folder.mkdir()
    write_model(folder, system, kind, built(kind, system), tokenizer_of(system), {})
    return Model(read_model(folder), torch.device("cpu"))


@every_system
@every_kind
def test_the_order_of_a_pair_does_not_matter(kind: str, system: str, tmp_path: Path) -> None:
    model = stored(kind, system, tmp_path / "m")
    one, other = model.predict(PAIRS), model.predict([(b, a) for a, b in PAIRS])
    for a, b in zip(one, other, strict=True):
        if kind == "classify":
            assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)
        else:
            assert a.value == pytest.approx(b.value, abs=1e-6)
        assert a.windows == b.windows == 1
    # In one order alone the order matters, unless the summary is a mean of words.
    if system == "vectors":
        return
    plain = built(kind, system, type(CONFIGS[kind])(**({"labels": ("n", "y")} if kind == "classify" else {})))
    with torch.no_grad():
        rows = collate(made(kind, system, PAIRS)).tokens
        logits = plain.logits(plain.read(rows), rows).unflatten(0, (-1, 2))
    assert not torch.allclose(logits[:3, 0], logits[:3, 1])


def test_answers_are_those_that_were_trained(tmp_path: Path) -> None:
    """Merged outputs of single rows are the logits of the training step."""
    model = stored("classify", "bert-ltr", tmp_path / "m")
    task = model.loaded.objective
    assert isinstance(task, TaskModel)
    batch: Batch = collate(made("classify", "bert-ltr", PAIRS))
    with torch.no_grad():
        rows = task.logits(task.read(batch.tokens), batch.tokens)
        expected = rows.unflatten(0, (-1, 2)).sum(1).softmax(1)
    found = [[answer.probabilities[label] for label in ("n", "y")] for answer in model.predict(PAIRS)]
    torch.testing.assert_close(torch.tensor(found), expected)


def test_a_single_text_is_one_row_with_half_of_the_bias() -> None:
    model = built("regress", "bert")
    (example,) = made("regress", "bert", [("a b", None)])
    assert words(example) == ["[CLS] a b [SEP]"]
    tokens = collate([example]).tokens
    expected = F.linear(model.encoder(tokens).summary, model.head.weight, model.head.bias / 2)
    torch.testing.assert_close(model.outputs(tokens)["logits"], expected)


def test_the_temperature_is_fitted_to_merged_logits() -> None:
    model = built("classify", "bert")
    examples, texts = made("classify", "bert", PAIRS), records("classify", PAIRS)
    with torch.no_grad():
        outputs = [
            [{"logits": model.outputs(collate([Example((row,), (1,), {})]).tokens)["logits"].numpy()} for row in e.rows]
            for e in examples
        ]
    options, figures = calibrate("classify", model.config, EncodedSplit(texts, examples, {}), outputs)
    assert options.temperature == figures["temperature"] != 1


def test_other_tools_would_read_one_order_so_the_folder_has_our_names(tmp_path: Path) -> None:
    stored("classify", "bert", tmp_path / "m")
    assert '"model_type": "firth-bert"' in (tmp_path / "m" / "config.json").read_text()


@pytest.mark.parametrize("make", [lambda **o: ClassifyConfig(labels=("n", "y"), **o), RegressConfig])
def test_windows_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"both_orders=true .* set head\.windows\.long=cut"):
        make(both_orders=True)
