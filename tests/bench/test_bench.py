"""What ``firth bench`` measures, for each system and for folders."""

from pathlib import Path

import pytest

from firth.bench import measure
from firth.bench.run import bench, encode_work
from firth.bench.synthetic import plain_tokenizer
from firth.data.batch import Batch
from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.folder import write_model
from firth.inference.model import load_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PRODUCT", (8, 8, 8))


@pytest.mark.parametrize("model", ["bert-tiny", "bert-ltr-tiny", "lstm-small"])
def test_a_size(model: str) -> None:
    result = bench(model, repeats=1, n_texts=10, batch_tokens=512, vocab_size=200)
    rates = {rate.name: rate for rate in result.rates}
    assert list(rates)[-3:] == ["encode", "pre-training step", "loader, one thread"]
    assert len(rates) > 3 and result.facts()["machine"]["processor"]
    for name in ("encode", "pre-training step"):
        assert rates[name].tokens_per_s and rates[name].flops_per_s and rates[name].share
    assert rates["loader, one thread"].tokens_per_s and rates["loader, one thread"].share is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("transformer-tiny", "does not measure models that learn from translations"),
        ("cove-small", "does not measure models that learn from translations"),
        ("elmo-mini", "from a trained model's folder"),
        ("vectors-small", "from a trained model's folder"),
    ],
)
def test_a_size_that_the_synthetic_text_does_not_suit(model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(model, repeats=1, n_texts=5)


def test_a_run_keeps_its_sizes(tiny_run: Path) -> None:
    # Its sequences are shorter than those of a new model: it has only 64 positions.
    before = sorted(tiny_run.rglob("*"))
    result = bench(f"{tiny_run}/", repeats=1, n_texts=5, batch_tokens=256)
    assert [rate.name for rate in result.rates][-2:] == ["pre-training step", "loader, one thread"]
    assert sorted(tiny_run.rglob("*")) == before


@pytest.mark.parametrize("task", ["classify", "pretraining"])
def test_other_folders(tmp_path: Path, task: str) -> None:
    """A fine-tuned model has no pre-training step; one without next-sentence prediction reads documents."""
    tokenizer = plain_tokenizer(100)
    encoder = Bert(BertConfig(vocab_size=100, width=16, n_layers=1, n_heads=2, feed_forward_width=16))
    options = ClassifyConfig(labels=("a", "b"))
    plain = MaskedLM(encoder, MaskedLMConfig(next_sentence=False))
    objective = Classifier(encoder, options) if task == "classify" else plain
    write_model(tmp_path, "bert", task, objective, tokenizer, {})
    said = list[str]()
    result = bench(str(tmp_path), repeats=1, n_texts=5, batch_tokens=256, tell=said.append)
    names = [rate.name for rate in result.rates if "matrix" not in rate.name]
    if task == "classify":
        assert names == ["encode"] and "only its encoder" in said[0]
    else:
        assert names == ["encode", "pre-training step", "loader, one thread"] and said == []


def test_operations_of_encoding_are_those_without_a_vocabulary(tiny_run: Path) -> None:
    model = load_model(tiny_run)
    work = encode_work(model, 10)
    config = model.loaded.objective.encoder.config
    one = Batch(pack_lists([[1] * work.tokens]), {})
    many = Batch(pack_lists([[1]] * work.tokens), {})
    flops = SYSTEMS["bert"].flops
    assert flops(config, many) / 3 < work.flops < flops(config, one) / 3


def test_an_unknown_size() -> None:
    with pytest.raises(ConfigError, match="bert-huge"):
        bench("bert-huge")
