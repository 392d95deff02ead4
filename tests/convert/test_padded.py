"""The padded form of BERT gives the results of the packed one, whatever the padding contains."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from network_options import network_of
from published_folders import SIZES, drawn, fine_tuned, masked
from torch import Tensor

from firth.convert.padded import PAIR_INPUTS, POOLER, make_padded, naming
from firth.data.batch import Objective
from firth.errors import ConfigError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM
from firth.packed import Rows, Tokens, Words, from_padded
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    TowersConfig,
    WindowConfig,
)

LEFT_TO_RIGHT = BertConfig(
    vocab_size=43,
    width=8,
    n_layers=2,
    n_heads=2,
    feed_forward_width=12,
    max_positions=32,
    causal=True,
    activation="gelu_tanh",
)
LABELS = ("a", "b", "c")
TAGS = ("O", "B-X", "I-X")


def rectangle(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, in the padding too, with a mask."""
    shape = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(SIZES.vocab_size, shape, generator=generator)
    return ids, mask, torch.randint(2, shape, generator=generator)


def packed(ids: Tensor, mask: Tensor, segments: Tensor) -> Tokens:
    tokens, rows = from_padded(ids, mask.bool())
    every = torch.arange(len(tokens))
    return Tokens(rows, tokens, from_padded(segments, mask.bool())[0], Words(every, every, rows, every, rows))


def left_to_right(options: ClassifyConfig) -> Objective:
    return drawn(Classifier(Bert(LEFT_TO_RIGHT), options))


MIXED = network_of(pool="mean", layers=(0, 2), mix="scalar")
MODELS: dict[str, Objective] = {
    "classify": fine_tuned("classify", ClassifyConfig(labels=LABELS)),
    "mean of a weighted sum": fine_tuned("classify", ClassifyConfig(labels=LABELS, network=MIXED)),
    "max": fine_tuned("classify", ClassifyConfig(labels=LABELS, network=network_of(pool="max"))),
    "first": fine_tuned("classify", ClassifyConfig(labels=LABELS, network=network_of(pool="first", layers=(1,)))),
    "attention": fine_tuned("classify", ClassifyConfig(labels=LABELS, network=network_of(pool="attention"))),
    "last": fine_tuned("classify", ClassifyConfig(labels=LABELS, network=network_of(pool="last"))),
    "left to right": left_to_right(ClassifyConfig(labels=LABELS)),
    "left to right, mean": left_to_right(ClassifyConfig(labels=LABELS, network=network_of(pool="mean"))),
    "multilabel": fine_tuned("multilabel", MultiLabelConfig(labels=LABELS)),
    "regress": fine_tuned("regress", RegressConfig()),
    "regress, both orders": fine_tuned("regress", RegressConfig(both_orders=True, windows=WindowConfig(long="cut"))),
    "choose": fine_tuned("choose", ChooseConfig()),
    "tag": fine_tuned("tag", TagConfig(labels=TAGS)),
    "tag on two layers": fine_tuned("tag", TagConfig(labels=TAGS, network=network_of(layers=(-2, -1), mix="concat"))),
    "answer": fine_tuned("answer", AnswerConfig(network=network_of(layers=(1, 2), mix="sum"))),
}


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_heads(name: str) -> None:
    model: Any = MODELS[name]
    given = rectangle(32, 1, 7, 20)
    expected = naming(model)(model.logits(model.read(packed(*given)), packed(*given)))
    found = make_padded(model, ())[0](*given)
    assert list(found) == list(expected)
    for output, values in found.items():
        if model.unit != "row":
            values, _ = from_padded(values, given[1].bool())
        torch.testing.assert_close(values, expected[output], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_both_texts_of_a_pair_have_a_single_segment_embedding() -> None:
    model = drawn(MaskedLM(Bert(replace(SIZES, n_segments=1)), MaskedLMConfig(next_sentence=False)))
    given = rectangle(32, 7)
    found, _ = from_padded(make_padded(model, ())[0](*given)["last_hidden_state"], given[1].bool())
    torch.testing.assert_close(found, model.encoder(packed(*given)).top, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("compare", ["features", "cosine"])
@pytest.mark.parametrize("pool", ["mean", "attention", "first"])
def test_towers_read_the_texts_of_a_pair_as_rows_of_their_own(compare: Any, pool: Any) -> None:
    network = TowersConfig(pool=pool, layers=(0, 2), mix="concat", compare=compare)
    model: Any = fine_tuned(
        "classify", ClassifyConfig(labels=LABELS, network=network, windows=WindowConfig(long="cut"))
    )
    (ids, mask, _), (second_ids, second_mask, _) = rectangle(3, 1, 9), rectangle(2, 7, 32)
    # In packed form, the texts of a pair follow each other, and segment 1 marks the second one.
    texts = [
        text for a, m, b, n in zip(ids, mask, second_ids, second_mask, strict=True) for text in (a[m > 0], b[n > 0])
    ]
    segments = torch.cat([torch.full_like(text, i % 2) for i, text in enumerate(texts)])
    tokens = Tokens(Rows.from_lengths([len(text) for text in texts]), torch.cat(texts), segments)
    expected = model.logits(model.read(tokens), tokens)[::2]
    padded, names = make_padded(model, ())
    assert names == PAIR_INPUTS
    (found,) = padded(ids, mask, second_ids, second_mask).values()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("causal", [False, True])
def test_pre_trained_models(causal: bool) -> None:
    model: Any = drawn(CausalLM(Bert(LEFT_TO_RIGHT), CausalLMConfig())) if causal else masked()
    given = rectangle(3, 32, 1)
    hidden = model.encoder(packed(*given))
    found = make_padded(model, ())[0](*given)
    assert list(found) == ["last_hidden_state", "pooler_output", "logits"]
    head = model.lm if causal else model.mlm
    expected = {"last_hidden_state": hidden.top, "logits": head.logits(hidden.top, model.encoder.piece_embedding)}
    for name, values in expected.items():
        real, _ = from_padded(found[name], given[1].bool())
        torch.testing.assert_close(real, values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["pooler_output"], hidden.summary, rtol=1e-5, atol=1e-5)


def test_what_nothing_has_trained_is_left_out() -> None:
    assert list(make_padded(masked(), (POOLER, "mlm"))[0](*rectangle(4, 2))) == ["last_hidden_state"]
    assert list(make_padded(masked(), ("mlm",))[0](*rectangle(4, 2))) == ["last_hidden_state", "pooler_output"]


def test_a_row_of_pads_alone_is_finite() -> None:
    ids, mask, segments = rectangle(5, 5)
    mask[1] = 0
    (logits,) = make_padded(MODELS["left to right"], ())[0](ids, mask, segments).values()
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TagConfig(labels=TAGS, crf=True), "a tagger with a CRF"),
        (TagConfig(labels=TAGS, network=network_of(lstm_layers=1, lstm_width=4)), "a head of network.kind='bilstm'"),
    ],
)
def test_heads_without_a_padded_form(options: TagConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message}.* has no padded form"):
        make_padded(fine_tuned("tag", options), ())


def test_other_encoders_have_none() -> None:
    lstm = SYSTEMS["lstm"]
    objective = lstm.objective(lstm.encoder(lstm.config(vocab_size=43, width=8, n_layers=1)), lstm.objective_config())
    with pytest.raises(ConfigError, match="an encoder of the kind Lstm has no padded form"):
        make_padded(objective, ())
