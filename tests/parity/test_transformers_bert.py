"""Our folders in transformers and theirs here: the same ids, states, logits, losses and gradients."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from same_outputs import close, padded
from torch import Tensor, nn

from firth.convert import hf_bert
from firth.convert.renames import expand, to_ours, to_theirs
from firth.data.batch import Batch, Target
from firth.folder import PRETRAINING, Loaded, read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM
from firth.packed import Rows, Tokens, to_padded
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quiet")

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.!가나다라한국어漢字中文🙂é"
PIECES = [*SPECIALS, *(form for c in LETTERS for form in (c, "##" + c))]
SIZES = BertConfig(
    vocab_size=len(PIECES),
    width=32,
    n_layers=3,
    n_heads=4,
    feed_forward_width=48,
    max_positions=40,
    dropout=0.0,
    attention_dropout=0.0,
)
LENGTHS = [9, 40, 1, 17, 16]


def shaken(objective: nn.Module) -> nn.Module:
    """Sample every parameter, so that no zero or one hides a mistake."""
    torch.manual_seed(0)
    for name, parameter in objective.named_parameters():
        around = 1.0 if "norm.weight" in name else 0.0
        nn.init.normal_(parameter, mean=around, std=0.1)
    return objective.eval()


def tokenizer(*, lowercase: bool = False) -> Tokenizer:
    return Tokenizer.from_vocab(PIECES, lowercase=lowercase)


def masked(*, next_sentence: bool = True, **changes: Any) -> MaskedLM:
    encoder = Bert(replace(SIZES, **changes))
    return shaken(MaskedLM(encoder, MaskedLMConfig(next_sentence=next_sentence)))  # type: ignore[return-value]


def causal() -> CausalLM:
    return shaken(CausalLM(Bert(replace(SIZES, causal=True)), CausalLMConfig()))  # type: ignore[return-value]


def written(folder: Path, objective: nn.Module, system: str = "bert") -> Path:
    folder.mkdir()
    write_model(folder, system, PRETRAINING, objective, tokenizer(), {})
    return folder


def batch() -> Tokens:
    torch.manual_seed(3)
    rows = Rows.from_lengths(LENGTHS)
    # Without [PAD], whose embedding transformers never trains.
    return Tokens(rows, torch.randint(1, len(PIECES), (rows.n_tokens,)), torch.randint(2, (rows.n_tokens,)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_states_of_every_layer(tmp_path: Path, activation: str) -> None:
    objective, tokens = masked(activation=activation), batch()
    theirs = transformers.AutoModel.from_pretrained(written(tmp_path / "m", objective)).eval()
    assert type(theirs).__name__ == "BertModel"
    given = padded(tokens)
    out = theirs(**given, output_hidden_states=True)
    hidden = objective.encoder(tokens, keep=range(4))
    real = given["attention_mask"].bool()
    assert len(out.hidden_states) == 4
    for number, layer in enumerate(out.hidden_states):
        close(hidden.layers[number], layer[real])
    close(hidden.summary, out.pooler_output)


def gradients_match(objective: nn.Module, theirs: nn.Module, rows: tuple[Any, ...]) -> None:
    """Each of our gradients equals theirs by name, and theirs has no others but tied duplicates."""
    ours = {name: p.grad for name, p in objective.named_parameters()}
    assert not [name for name, grad in ours.items() if grad is None and "pooler" not in name]
    renamed = to_theirs({n: g for n, g in ours.items() if g is not None}, expand(rows, SIZES.n_layers))
    found = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert set(found) == set(renamed)
    for name, grad in renamed.items():
        close(grad, found[name])
        assert bool(grad.any()), name


TARGETS = torch.tensor([0, 4, 8, 9, 30, 48, 49, 55, 66, 67, 82])


def asked(tokens: Tokens) -> Batch:
    label = torch.randint(len(PIECES), (len(TARGETS),), generator=torch.Generator().manual_seed(4))
    follows = torch.tensor([0, 1, 1, 0, 1])
    return Batch(tokens, {"mlm": Target(TARGETS, label), "nsp": Target(torch.arange(5), follows)})


def their_labels(data: Batch) -> Tensor:
    """Padded labels, with -100 (ignored) wherever there is no target."""
    flat = torch.full((data.tokens.rows.n_tokens,), -100)
    flat[data.targets["mlm"].index] = data.targets["mlm"].label
    return to_padded(flat, data.tokens.rows, fill=-100.0)[0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_pretraining_logits_losses_and_gradients(tmp_path: Path, activation: str, training: bool) -> None:
    objective, tokens = masked(activation=activation).train(training), batch()
    folder = written(tmp_path / "m", objective)
    theirs = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").train(training)
    data, given = asked(tokens), padded(tokens)
    out = theirs(**given, labels=their_labels(data), next_sentence_label=data.targets["nsp"].label)
    hidden = objective.encoder(tokens)
    close(objective.logits(hidden.top), out.prediction_logits[given["attention_mask"].bool()])
    close(objective.next_sentence_logits(hidden.summary), out.seq_relationship_logits)
    step, counts = objective(data), data.counts()
    loss = step.losses["mlm"] / counts["mlm"] + step.losses["nsp"] / counts["nsp"]
    close(loss, out.loss)
    loss.backward()
    out.loss.backward()
    gradients_match(objective, theirs, hf_bert.NAMES)


def test_masked_lm_without_next_sentence(tmp_path: Path) -> None:
    objective, tokens = masked(next_sentence=False), batch()
    folder = written(tmp_path / "m", objective)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert type(theirs).__name__ == "BertForMaskedLM"
    data, given = asked(tokens), padded(tokens)
    out = theirs(**given, labels=their_labels(data))
    close(objective.logits(objective.encoder(tokens).top), out.logits[given["attention_mask"].bool()])
    loss = objective(data).losses["mlm"] / data.counts()["mlm"]
    close(loss, out.loss)
    loss.backward()
    out.loss.backward()
    gradients_match(objective, theirs, hf_bert.NAMES)


def test_left_to_right(tmp_path: Path) -> None:
    objective, tokens = causal(), batch()
    folder = written(tmp_path / "m", objective, "bert-ltr")
    theirs = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    given = padded(tokens)
    out = theirs(**given, output_hidden_states=True)
    real = given["attention_mask"].bool()
    hidden = objective.encoder(tokens, keep=range(4))
    for number, layer in enumerate(out.hidden_states):
        close(hidden.layers[number], layer[real])
    embedding = objective.encoder.embeddings.pieces.weight
    close(objective.lm.logits(hidden.top, embedding), out.logits[real])
    has_next = torch.ones(tokens.rows.n_tokens, dtype=torch.bool)
    has_next[tokens.rows.last] = False
    index = has_next.nonzero()[:, 0]
    data = Batch(tokens, {"lm": Target(index, tokens.ids[index + 1])})
    loss = objective(data).losses["lm"]
    expected = F.cross_entropy(out.logits[real][index], tokens.ids[index + 1], reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    (loss / len(index)).backward()
    (expected / len(index)).backward()
    gradients_match(objective, theirs, hf_bert.CAUSAL_NAMES)


def read_back(folder: Path) -> Loaded:
    loaded = read_model(folder)
    assert not loaded.objective.training
    return loaded


@pytest.mark.parametrize("next_sentence", [True, False])
def test_our_folder_reads_back_equal(tmp_path: Path, next_sentence: bool) -> None:
    objective = masked(next_sentence=next_sentence, activation="gelu_tanh")
    loaded = read_back(written(tmp_path / "m", objective))
    assert loaded.objective.encoder.config == objective.encoder.config
    assert loaded.objective.config == objective.config
    state = loaded.objective.state_dict()
    assert {n: t.tolist() for n, t in state.items()} == {n: t.tolist() for n, t in objective.state_dict().items()}


def test_a_folder_that_transformers_saved_reads_equal(tmp_path: Path) -> None:
    """Their model, initialised and saved by transformers, with our firth.json added."""
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=40,
        max_position_embeddings=40,
        hidden_act="gelu_pytorch_tanh",
    )
    torch.manual_seed(5)
    theirs = transformers.BertForPreTraining(config).eval()
    folder = tmp_path / "theirs"
    theirs.save_pretrained(folder)
    tokenizer().save(folder)
    about = {"format": "firth-model", "version": 1, "system": "bert", "task": PRETRAINING, "options": {}}
    (folder / "firth.json").write_text(json.dumps(about))
    loaded = read_back(folder)
    assert loaded.objective.encoder.config.activation == "gelu_tanh"
    tokens = batch()
    given = padded(tokens)
    out = theirs(**given)
    hidden = loaded.objective.encoder(tokens)
    close(loaded.objective.logits(hidden.top), out.prediction_logits[given["attention_mask"].bool()])
    close(loaded.objective.next_sentence_logits(hidden.summary), out.seq_relationship_logits)


def test_there_and_back_is_the_identity() -> None:
    for objective, names in ((masked(), hf_bert.NAMES), (causal(), hf_bert.CAUSAL_NAMES)):
        state, rows = objective.state_dict(), expand(names, SIZES.n_layers)
        again = to_ours(to_theirs(state, rows), rows, state, "here")
        assert list(again) == list(state)
        assert all(torch.equal(again[name], state[name]) for name in state)


TEXTS = [
    "abc, DEF! 123.",
    "한국어 가나다라",
    unicodedata.normalize("NFD", "한국어 가나다라"),
    "a" * 150,
    "b" * 201,
    "漢字中文abc",
    "🙂🙂 a🙂b",
    "cafe\u0301 café",
    "[MASK] and [CLS]",
    "unknown ∑ signs",
    "  \t\n ",
    "",
]


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_gives_the_same_ids(tmp_path: Path, lowercase: bool) -> None:
    made = tokenizer(lowercase=lowercase)
    folder = tmp_path / "m"
    folder.mkdir()
    write_model(folder, "bert", PRETRAINING, masked(), made, {})
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (theirs.model_max_length, theirs.pad_token_id, theirs.mask_token_id) == (
        40,
        made.pad_id,
        made.mask_id,
    )
    plain = [text for text in TEXTS if "[" not in text]
    for text in plain:
        ours = made.encode(text).ids
        # By design, transformers reads [MASK] in a text as the special token.
        assert theirs(text)["input_ids"] == [made.start_id, *ours, made.end_id], text
    assert read_model(folder).tokenizer.ids_many(TEXTS) == made.ids_many(TEXTS)
    assert theirs("[MASK] a")["input_ids"][1] == made.mask_id
    pair = theirs("a", "b")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_a_pad_piece_elsewhere_in_the_vocabulary(tmp_path: Path) -> None:
    """transformers does not train the embedding of the token that its configuration calls [PAD]."""
    moved = [*SPECIALS[1:], *PIECES[len(SPECIALS) :], SPECIALS[0]]
    folder = tmp_path / "m"
    folder.mkdir()
    write_model(folder, "bert", PRETRAINING, masked(), Tokenizer.from_vocab(moved, lowercase=False), {})
    assert transformers.AutoConfig.from_pretrained(folder).pad_token_id == len(PIECES) - 1
