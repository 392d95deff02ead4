"""A checkpoint of google-research/bert, here and in transformers, with the same weights by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.config import read_json
from firth.convert.google_bert import config_from_google, config_to_google, is_weight, to_ours, to_theirs
from firth.convert.tf_bundle import read_bundle, write_bundle
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Rows, Tokens, to_padded

transformers = pytest.importorskip("transformers")

SIZES = BertConfig(
    vocab_size=40,
    width=24,
    n_layers=3,
    n_heads=4,
    feed_forward_width=36,
    max_positions=20,
    dropout=0.0,
    attention_dropout=0.0,
)


def their_state(weights: dict[str, np.ndarray], n_layers: int) -> dict[str, Tensor]:
    """Each of their tensors from one variable of the file, written out: kernels transposed, heads not."""

    def tensor(name: str, turned: bool = False) -> Tensor:
        array = np.array(weights[name], np.float32)
        return torch.from_numpy(np.ascontiguousarray(array.T) if turned else array)

    state = {
        "bert.embeddings.word_embeddings.weight": tensor("bert/embeddings/word_embeddings"),
        "bert.embeddings.position_embeddings.weight": tensor("bert/embeddings/position_embeddings"),
        "bert.embeddings.token_type_embeddings.weight": tensor("bert/embeddings/token_type_embeddings"),
        "bert.embeddings.LayerNorm.weight": tensor("bert/embeddings/LayerNorm/gamma"),
        "bert.embeddings.LayerNorm.bias": tensor("bert/embeddings/LayerNorm/beta"),
        "bert.pooler.dense.weight": tensor("bert/pooler/dense/kernel", True),
        "bert.pooler.dense.bias": tensor("bert/pooler/dense/bias"),
        "cls.predictions.transform.dense.weight": tensor("cls/predictions/transform/dense/kernel", True),
        "cls.predictions.transform.dense.bias": tensor("cls/predictions/transform/dense/bias"),
        "cls.predictions.transform.LayerNorm.weight": tensor("cls/predictions/transform/LayerNorm/gamma"),
        "cls.predictions.transform.LayerNorm.bias": tensor("cls/predictions/transform/LayerNorm/beta"),
        "cls.predictions.bias": tensor("cls/predictions/output_bias"),
        "cls.predictions.decoder.weight": tensor("bert/embeddings/word_embeddings"),
        "cls.predictions.decoder.bias": tensor("cls/predictions/output_bias"),
        "cls.seq_relationship.weight": tensor("cls/seq_relationship/output_weights"),
        "cls.seq_relationship.bias": tensor("cls/seq_relationship/output_bias"),
    }
    dense = (
        "attention/self/query",
        "attention/self/key",
        "attention/self/value",
        "attention/output/dense",
        "intermediate/dense",
        "output/dense",
    )
    for i in range(n_layers):
        theirs, ours = f"bert/encoder/layer_{i}/", f"bert.encoder.layer.{i}."
        for part in dense:
            state[ours + part.replace("/", ".") + ".weight"] = tensor(f"{theirs}{part}/kernel", True)
            state[ours + part.replace("/", ".") + ".bias"] = tensor(f"{theirs}{part}/bias")
        for part in ("attention/output", "output"):
            state[ours + part.replace("/", ".") + ".LayerNorm.weight"] = tensor(f"{theirs}{part}/LayerNorm/gamma")
            state[ours + part.replace("/", ".") + ".LayerNorm.bias"] = tensor(f"{theirs}{part}/LayerNorm/beta")
    return state


def in_transformers(weights: dict[str, np.ndarray], sizes: dict[str, Any], activation: str) -> Any:
    config = transformers.BertConfig(**{**sizes, "hidden_act": activation})
    model = transformers.BertForPreTraining(config)
    missing, unexpected = model.load_state_dict(their_state(weights, sizes["num_hidden_layers"]), strict=False)
    assert not unexpected
    assert [name for name in missing if "position_ids" not in name] == []
    return model.eval()


def compare(objective: MaskedLM, theirs: Any) -> None:
    config = objective.encoder.config
    rows = Rows.from_lengths([config.max_positions, 5, 1, 12])
    torch.manual_seed(0)
    tokens = Tokens(
        rows, torch.randint(config.vocab_size, (rows.n_tokens,)), torch.randint(config.n_segments, (rows.n_tokens,))
    )
    assert tokens.segments is not None
    ids, real = to_padded(tokens.ids, rows)
    segments, _ = to_padded(tokens.segments, rows)
    with torch.no_grad():
        out = theirs(input_ids=ids, token_type_ids=segments, attention_mask=real.long(), output_hidden_states=True)
        hidden = objective.encoder(tokens, keep=range(config.n_layers + 1))
        pairs = [(hidden.layers[number], layer[real]) for number, layer in enumerate(out.hidden_states)]
        pairs.append((objective.logits(hidden.top), out.prediction_logits[real]))
        pairs.append((objective.next_sentence_logits(hidden.summary), out.seq_relationship_logits))
    assert len(pairs) == config.n_layers + 3
    for ours, expected in pairs:
        assert bool(expected.any())
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def read(prefix: Path, config: BertConfig) -> MaskedLM:
    objective = MaskedLM(Bert(config), MaskedLMConfig()).eval()
    weights = read_bundle(prefix, is_weight)
    objective.load_state_dict(to_ours(weights, "pretraining", objective.state_dict(), config.n_layers, str(prefix)))
    return objective


@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh")])
def test_a_file_of_the_original_code(shared_data: Path, ours: Any, theirs: str) -> None:
    folder = shared_data / "tf-bert-fixture"
    sizes = read_json(folder / "bert_config.json")
    objective = read(folder / "bert_model.ckpt", config_from_google(sizes, "bert_config.json", ours))
    compare(objective, in_transformers(read_bundle(folder / "bert_model.ckpt", is_weight), sizes, theirs))


def test_a_file_of_ours(tmp_path: Path) -> None:
    """Larger, so that no size equals the number of heads, and sampled, so that no tensor is all zeros or ones."""
    objective = MaskedLM(Bert(SIZES), MaskedLMConfig())
    torch.manual_seed(1)
    for name, parameter in objective.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.1)
    write_bundle(tmp_path / "m.ckpt", to_theirs(objective.state_dict(), "pretraining", SIZES.n_layers))
    weights = read_bundle(tmp_path / "m.ckpt")
    compare(objective.eval(), in_transformers(weights, config_to_google(SIZES), "gelu"))
