"""Models saved by transformers, in every layout that its versions wrote, give the same numbers here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from same_outputs import close, padded
from torch import Tensor, nn

from firth.folder import Loaded
from firth.formats.table import find_format, open_model, read_format
from firth.packed import Rows, Tokens
from firth.tasks.model import TaskModel
from firth.text.tokenizer_kinds import SPECIALS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quiet")

PIECES = [*SPECIALS, *(form for c in "abcdefghijklmnopqrstuvwxyzé,." for form in (c, "##" + c))]
LENGTHS = [9, 24, 1, 17]
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3}
BASE_WIDTH = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 2}


def theirs(kind: str = "BertForPreTraining", **config: Any) -> nn.Module:
    """A transformers model with every parameter sampled, so that no zero or one hides a mistake."""
    sizes = {"vocab_size": len(PIECES), "max_position_embeddings": 24, **SMALL, **config}
    made = getattr(transformers, kind)(transformers.BertConfig(**sizes))
    torch.manual_seed(0)
    for name, parameter in made.named_parameters():
        around = 1.0 if "LayerNorm.weight" in name else 0.0
        # Keep sums over the hidden size at the same scale for any hidden size.
        nn.init.normal_(parameter, mean=around, std=0.1 if sizes["hidden_size"] < 100 else 0.02)
    return made.eval()


def saved(folder: Path, made: nn.Module, **how: Any) -> Path:
    made.save_pretrained(folder, **how)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), "utf-8")
    return folder


def batch() -> Tokens:
    torch.manual_seed(3)
    rows = Rows.from_lengths(LENGTHS)
    return Tokens(rows, torch.randint(1, len(PIECES), (rows.n_tokens,)), torch.randint(2, (rows.n_tokens,)))


@torch.no_grad()
def same_states(loaded: Loaded, made: nn.Module, *, summary: bool = True) -> None:
    """Every layer, and the pooler's output."""
    tokens, encoder = batch(), loaded.objective.encoder
    given = padded(tokens)
    out = getattr(made, "bert", made)(**given, output_hidden_states=True)
    hidden = encoder(tokens, keep=range(len(out.hidden_states)))
    for number, layer in enumerate(out.hidden_states):
        close(hidden.layers[number], layer[given["attention_mask"].bool()])
    if summary:
        close(hidden.summary, out.pooler_output)


@torch.no_grad()
def same_pretraining(loaded: Loaded, made: nn.Module) -> None:
    """The states, and the logits of both heads if the model has both."""
    objective, tokens = loaded.objective, batch()
    given = padded(tokens)
    out = made(**given)
    hidden = objective.encoder(tokens)
    logits = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    close(objective.logits(hidden.top), logits[given["attention_mask"].bool()])
    if objective.nsp is not None:
        close(objective.next_sentence_logits(hidden.summary), out.seq_relationship_logits)
    same_states(loaded, made, summary=objective.nsp is not None)


def as_pickle(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], *, zipped: bool = True) -> None:
    """Rewrite the folder's weights as an older version saved them."""
    state = change(load_file(folder / "model.safetensors"))
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (folder / "model.safetensors").unlink()


def unchanged(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


def of_2018(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names gamma and beta, a copy of the tied matrix, and a buffer."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in state.items()
    }
    embedding = old["bert.embeddings.word_embeddings.weight"]
    buffers = {"bert.embeddings.position_ids": torch.arange(24).expand((1, -1))}
    return old | buffers | {"cls.predictions.decoder.weight": embedding}


def bias_in_the_decoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("cls.predictions.bias", "cls.predictions.decoder.bias"): t for name, t in state.items()}


def test_as_it_is_saved_now(tmp_path: Path) -> None:
    made = theirs()
    loaded = open_model(saved(tmp_path / "m", made))
    assert (loaded.system_name, loaded.task, loaded.untrained) == ("bert", "pretraining", ())
    same_pretraining(loaded, made)


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertModel"])
def test_at_the_width_of_base(kind: str, tmp_path: Path) -> None:
    made = theirs(kind, **BASE_WIDTH)
    loaded = open_model(saved(tmp_path / "m", made))
    same_states(loaded, made)
    if kind == "BertForPreTraining":
        same_pretraining(loaded, made)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("change", [unchanged, of_2018, bias_in_the_decoder])
def test_pickles_of_every_age(change: Callable[..., Any], zipped: bool, tmp_path: Path) -> None:
    made = theirs()
    as_pickle(saved(tmp_path / "m", made), change, zipped=zipped)
    same_pretraining(open_model(tmp_path / "m"), made)


def test_the_first_archives(tmp_path: Path) -> None:
    """bert_config.json without a model type, pytorch_model.bin in the stream format, vocab.txt."""
    made = theirs()
    folder = saved(tmp_path / "m", made)
    as_pickle(folder, of_2018, zipped=False)
    about = json.loads((folder / "config.json").read_text())
    for key in ("model_type", "architectures", "layer_norm_eps"):
        del about[key]
    (folder / "bert_config.json").write_text(json.dumps(about))
    (folder / "config.json").unlink()
    same_pretraining(open_model(folder), made)


def test_several_files(tmp_path: Path) -> None:
    made = theirs()
    folder = saved(tmp_path / "m", made, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    loaded = open_model(folder)
    same_pretraining(loaded, made)


def test_several_pickles(tmp_path: Path) -> None:
    made = theirs()
    folder = saved(tmp_path / "m", made, max_shard_size="20KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for path in folder.glob("*.safetensors"):
        torch.save(load_file(path), path.with_suffix(".bin"))
        path.unlink()
    places = {name: file.replace(".safetensors", ".bin") for name, file in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    same_pretraining(open_model(folder), made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("pickled", [False, True])
def test_other_types_of_numbers(dtype: torch.dtype, pickled: bool, tmp_path: Path) -> None:
    made = theirs().to(dtype)
    folder = saved(tmp_path / "m", made)
    if pickled:
        as_pickle(folder, unchanged)
    found = read_format(find_format(folder))
    assert {t.dtype for t in found.loaded.objective.state_dict().values()} == {torch.float32}
    assert any("read as float32" in value for _, value in found.facts)
    same_pretraining(found.loaded, made.float())


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    made = theirs(hidden_act=activation)
    same_pretraining(open_model(saved(tmp_path / "m", made)), made)


@pytest.mark.parametrize("sizes", [{"layer_norm_eps": 1e-3}, {"type_vocab_size": 3}, {"num_attention_heads": 2}])
def test_other_sizes(sizes: dict[str, Any], tmp_path: Path) -> None:
    made = theirs(**sizes)
    same_pretraining(open_model(saved(tmp_path / "m", made)), made)


def test_an_encoder_alone(tmp_path: Path) -> None:
    made = theirs("BertModel")
    folder = saved(tmp_path / "m", made)
    assert "embeddings.LayerNorm.weight" in load_file(folder / "model.safetensors")
    loaded = open_model(folder)
    assert loaded.untrained == ("mlm",) and loaded.objective.nsp is None
    same_states(loaded, made)


def test_an_encoder_without_pooler(tmp_path: Path) -> None:
    config = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=24, **SMALL)
    made = transformers.BertModel(config, add_pooling_layer=False).eval()
    loaded = open_model(saved(tmp_path / "m", made))
    assert loaded.untrained == ("encoder.pooler", "mlm")
    same_states(loaded, made, summary=False)


@pytest.mark.parametrize(
    ("kind", "untrained", "next_sentence"),
    [("BertForMaskedLM", ("encoder.pooler",), False), ("BertForNextSentencePrediction", ("mlm",), True)],
)
def test_one_of_the_two_heads(kind: str, untrained: tuple[str, ...], next_sentence: bool, tmp_path: Path) -> None:
    made = theirs(kind)
    loaded = open_model(saved(tmp_path / "m", made))
    assert loaded.untrained == untrained and (loaded.objective.nsp is not None) is next_sentence
    if next_sentence:
        tokens = batch()
        with torch.no_grad():
            logits = loaded.objective.next_sentence_logits(loaded.objective.encoder(tokens).summary)
            close(logits, made(**padded(tokens)).logits)
    else:
        same_pretraining(loaded, made)


def test_left_to_right(tmp_path: Path) -> None:
    made = theirs("BertLMHeadModel", is_decoder=True)
    loaded = open_model(saved(tmp_path / "m", made))
    assert (loaded.system_name, loaded.untrained) == ("bert-ltr", ("encoder.pooler",))
    tokens = batch()
    given = padded(tokens)
    with torch.no_grad():
        out = made(**given).logits[given["attention_mask"].bool()]
        hidden = loaded.objective.encoder(tokens)
        close(loaded.objective.lm.logits(hidden.top, loaded.objective.encoder.piece_embedding), out)


def test_an_output_matrix_of_its_own_is_left_out(tmp_path: Path) -> None:
    """With the embedding in its place, the masked-LM head would give other numbers than theirs."""
    made = theirs("BertForMaskedLM", tie_word_embeddings=False)
    found = read_format(find_format(saved(tmp_path / "m", made)))
    assert "mlm" in found.loaded.untrained
    assert any(name == "left out" and "cls.predictions" in value for name, value in found.facts)
    same_states(found.loaded, made, summary=False)


HEADS = {
    "classify": ("BertForSequenceClassification", {"num_labels": 3}),
    "multilabel": ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "regress": ("BertForSequenceClassification", {"num_labels": 1}),
    "tag": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-X", 2: "I-X"}}),
    "choose": ("BertForMultipleChoice", {}),
    "answer": ("BertForQuestionAnswering", {}),
}


@torch.no_grad()
def logits_of(task: str, model: TaskModel, tokens: Tokens) -> Tensor:
    """Logits of every sequence or of every token, regardless of word boundaries."""
    hidden = model.encoder(tokens)
    return model.head(hidden.top if task in ("tag", "answer") else hidden.summary)


@pytest.mark.parametrize("task", list(HEADS))
@pytest.mark.parametrize("pickled", [False, True])
def test_fine_tuned_models(task: str, pickled: bool, tmp_path: Path) -> None:
    kind, about = HEADS[task]
    made = theirs(kind, **about)
    folder = saved(tmp_path / "m", made)
    if pickled:
        as_pickle(folder, unchanged)
    loaded = open_model(folder)
    pools = task not in ("tag", "answer")
    assert (loaded.system_name, loaded.task) == ("bert", task)
    assert loaded.untrained == (() if pools else ("encoder.pooler",))
    same_states(loaded, made, summary=pools)
    assert isinstance(loaded.objective, TaskModel)
    tokens = batch()
    given = padded(tokens)
    real = given["attention_mask"].bool()
    if task == "choose":
        given = {name: tensor[:, None] for name, tensor in given.items()}
    with torch.no_grad():
        out = made(**given)
    found = logits_of(task, loaded.objective, tokens)
    if task == "answer":
        close(found[:, 0], out.start_logits[real])
        close(found[:, 1], out.end_logits[real])
    else:
        close(found, out.logits[real] if task == "tag" else out.logits)


def test_labels_and_dropout_of_a_classifier(tmp_path: Path) -> None:
    names = {0: "나쁨", 1: "good"}
    made = theirs("BertForSequenceClassification", id2label=names, classifier_dropout=0.3)
    options: Any = open_model(saved(tmp_path / "m", made)).objective.config
    assert options.labels == ("나쁨", "good") and options.network.dropout == 0.3
    made = theirs("BertForSequenceClassification", hidden_dropout_prob=0.2)
    options = open_model(saved(tmp_path / "n", made)).objective.config
    assert options.labels == ("LABEL_0", "LABEL_1") and options.network.dropout == 0.2


def test_a_published_tagger_in_which_the_pooler_was_kept(tmp_path: Path) -> None:
    made = theirs("BertForTokenClassification", num_labels=2)
    folder = saved(tmp_path / "m", made)
    state = load_file(folder / "model.safetensors")
    pooler = {"bert.pooler.dense.weight": torch.randn(32, 32), "bert.pooler.dense.bias": torch.randn(32)}
    save_file(state | pooler, folder / "model.safetensors")
    loaded = open_model(folder)
    assert loaded.untrained == ()
    assert torch.equal(loaded.objective.encoder.state_dict()["pooler.weight"], pooler["bert.pooler.dense.weight"])


@pytest.mark.parametrize("kind", ["RobertaModel", "ElectraModel", "DistilBertModel", "AlbertModel"])
def test_other_models_are_named(kind: str, tmp_path: Path) -> None:
    from firth.errors import CheckpointError

    config = getattr(transformers, kind).config_class(vocab_size=len(PIECES))
    tmp_path.joinpath("m").mkdir()
    (tmp_path / "m" / "config.json").write_text(config.to_json_string())
    known = "this Firth reads 'bert' and 'openai-gpt'"
    with pytest.raises(CheckpointError, match=f"model_type '{config.model_type}': {known}"):
        open_model(tmp_path / "m")
