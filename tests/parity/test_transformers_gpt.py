"""GPT's folders in transformers and theirs here: the same ids, states, logits, losses and gradients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from network_options import network_of
from same_outputs import close
from torch import nn

from firth.convert import hf_gpt
from firth.convert.renames import expand, to_ours, to_theirs
from firth.data.batch import Batch, Target
from firth.folder import PRETRAINING, read_model, write_model
from firth.formats.table import open_model
from firth.inference.model import load_model
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM
from firth.packed import Rows, Tokens, to_padded
from firth.tasks.choose import Chooser
from firth.tasks.config import ChooseConfig
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("quiet")

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.!가나다라한국어é"
PIECES = [*SPECIALS, *(form for c in LETTERS for form in (c, "##" + c))]
SIZES = GptConfig(
    vocab_size=len(PIECES),
    width=32,
    n_layers=3,
    n_heads=4,
    max_positions=40,
    dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
)
LENGTHS = [9, 40, 1, 17, 16]


def shaken(objective: Any) -> Any:
    """Sample every parameter, so that no zero or one hides a mistake."""
    torch.manual_seed(0)
    for name, parameter in objective.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.1)
    return objective.eval()


def language_model(**changes: Any) -> TiedLM:
    return shaken(TiedLM(Gpt(replace(SIZES, **changes)), TiedLMConfig()))


def written(folder: Path, objective: nn.Module) -> Path:
    folder.mkdir()
    write_model(folder, "gpt", PRETRAINING, objective, Tokenizer.from_vocab(PIECES, lowercase=True), {})
    return folder


def batch() -> Tokens:
    torch.manual_seed(3)
    rows = Rows.from_lengths(LENGTHS)
    return Tokens(rows, torch.randint(len(PIECES), (rows.n_tokens,)))


@pytest.mark.parametrize("training", [False, True])
def test_states_of_every_layer(tmp_path: Path, training: bool) -> None:
    objective, tokens = language_model().train(training), batch()
    theirs = transformers.AutoModel.from_pretrained(written(tmp_path / "m", objective)).train(training)
    assert type(theirs).__name__ == "OpenAIGPTModel"
    ids, real = to_padded(tokens.ids, tokens.rows)
    out = theirs(ids, output_hidden_states=True)
    hidden = objective.encoder(tokens, keep=range(4))
    assert len(out.hidden_states) == 4
    for number, layer in enumerate(out.hidden_states):
        close(hidden.layers[number], layer[real])
    close(hidden.summary, out.last_hidden_state[range(5), [n - 1 for n in LENGTHS]])


def test_a_text_has_the_same_vector_there(tmp_path: Path) -> None:
    """A language model reads bare text. Fine-tuned, it reads special tokens around it, which its folder adds again."""
    folder = written(tmp_path / "m", language_model())
    theirs, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.AutoModel, transformers.AutoTokenizer))
    ids = tokenizer("한국 cab.", return_tensors="pt")
    ours = load_model(folder)
    assert ids["input_ids"][0].tolist() == [piece.id for piece in ours.tokenize("한국 cab.")]
    with torch.inference_mode():
        mean = theirs.eval()(**ids).last_hidden_state[0].mean(0)
    close(torch.from_numpy(ours.embed(["한국 cab."])[0]), mean)
    base = open_model(folder)
    objective = Chooser(base.objective.encoder, ChooseConfig())
    (tmp_path / "tuned").mkdir()
    write_model(tmp_path / "tuned", "gpt", "choose", objective, base.tokenizer, {})
    framed = transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    assert framed("cab")["input_ids"] == [
        base.tokenizer.start_id,
        *tokenizer("cab")["input_ids"],
        base.tokenizer.end_id,
    ]


def gradients_match(objective: nn.Module, theirs: nn.Module) -> None:
    """Each of our gradients equals theirs by name, and theirs has no others but tied duplicates."""
    ours = {name: p.grad for name, p in objective.named_parameters() if name.startswith("encoder.")}
    renamed = to_theirs(ours, expand(hf_gpt.NAMES, SIZES.n_layers))
    found = {name: p.grad for name, p in theirs.named_parameters() if name.startswith("transformer.")}
    assert set(found) == set(renamed)
    for name, grad in renamed.items():
        assert found[name] is not None and bool(grad.any()), name
        close(grad, found[name])


@pytest.mark.parametrize("training", [False, True])
def test_the_language_model_s_loss_and_gradients(tmp_path: Path, training: bool) -> None:
    objective, tokens = language_model().train(training), batch()
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(written(tmp_path / "m", objective)).train(training)
    ids, real = to_padded(tokens.ids, tokens.rows)
    out = theirs(ids, labels=ids.masked_fill(~real, -100))
    last = set(tokens.rows.last.tolist())
    index = torch.tensor([i for i in range(tokens.rows.n_tokens) if i not in last])
    loss = objective(Batch(tokens, {"lm": Target(index, tokens.ids[index + 1])})).losses["lm"] / len(index)
    close(loss, out.loss)
    close(objective.logits(objective.encoder(tokens).top), out.logits[real])
    loss.backward()
    out.loss.backward()
    gradients_match(objective, theirs)


@pytest.mark.parametrize("training", [False, True])
def test_choices_with_both_heads(training: bool) -> None:
    """Their multiple-choice head is that of our ``choose``: one score for the last token of each sequence."""
    theirs = transformers.OpenAIGPTDoubleHeadsModel(
        transformers.OpenAIGPTConfig(
            **{key: getattr(SIZES, ours) for key, ours in hf_gpt.CONFIG_KEYS.items()},
            num_labels=1,
            summary_first_dropout=0.0,
            summary_type="cls_index",
        )
    ).train(training)
    shaken(theirs).train(training)
    chooser = Chooser(Gpt(SIZES), ChooseConfig(network=network_of(dropout=0.0))).train(training)
    state, facts = hf_gpt.todays_names(theirs.state_dict(), "theirs")
    assert [name for name, _ in facts] == ["left out"]
    encoder = {name: tensor for name, tensor in chooser.state_dict().items() if name.startswith("encoder.")}
    ours = to_ours(state, expand(hf_gpt.NAMES, 3), encoder, "theirs")
    head = theirs.multiple_choice_head.summary
    chooser.load_state_dict({**ours, "head.weight": head.weight.detach(), "head.bias": head.bias.detach()})
    torch.manual_seed(5)
    lengths = [7, 11, 5, 9]
    rows = Rows.from_lengths(lengths)
    tokens = Tokens(rows, torch.randint(len(PIECES), (rows.n_tokens,)))
    ids, real = to_padded(tokens.ids, rows)
    places = torch.tensor([n - 1 for n in lengths]).view(2, 2)
    out = theirs(
        ids.view(2, 2, -1),
        mc_token_ids=places,
        mc_labels=torch.tensor([1, 0]),
        labels=ids.masked_fill(~real, -100).view(2, 2, -1),
    )
    logits = chooser.outputs(tokens)["logits"].flatten()
    close(logits, out.mc_logits.flatten())
    # Both losses, as in fine-tuning with the auxiliary language model: the choice, plus λ = 0.5 times the other.
    last = set(rows.last.tolist())
    index = torch.tensor([i for i in range(rows.n_tokens) if i not in last])
    top = chooser.encoder(tokens).top[index]
    lm = F.cross_entropy(top @ chooser.encoder.piece_embedding.T, tokens.ids[index + 1])
    close(lm, out.loss)
    total = F.cross_entropy(logits.view(2, 2), torch.tensor([1, 0])) + 0.5 * lm
    close(total, out.mc_loss + 0.5 * out.loss)
    total.backward()
    (out.mc_loss + 0.5 * out.loss).backward()
    gradients_match(chooser, theirs)


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("safe", [True, False])
def test_what_transformers_writes_is_read(tmp_path: Path, bare: bool, safe: bool) -> None:
    kind = transformers.OpenAIGPTModel if bare else transformers.OpenAIGPTLMHeadModel
    theirs = shaken(
        kind(transformers.OpenAIGPTConfig(**{key: getattr(SIZES, ours) for key, ours in hf_gpt.CONFIG_KEYS.items()}))
    )
    folder = tmp_path / "m"
    theirs.save_pretrained(folder)
    if not safe:
        # As in folders older than safetensors, which also saved the causal mask.
        (folder / "model.safetensors").unlink()
        prefix = "" if bare else "transformer."
        buffers = {f"{prefix}h.{i}.attn.bias": torch.ones(1, 1, 40, 40).tril() for i in range(3)}
        torch.save({**theirs.state_dict(), **buffers}, folder / "pytorch_model.bin")
    Tokenizer.from_vocab(PIECES, lowercase=True).save(folder)
    loaded = open_model(folder)
    assert (loaded.system_name, loaded.task, loaded.untrained) == ("gpt", PRETRAINING, ())
    assert loaded.objective.encoder.config == SIZES
    tokens = batch()
    ids, real = to_padded(tokens.ids, tokens.rows)
    body = theirs if bare else theirs.transformer
    close(loaded.objective.encoder(tokens).top, body(ids).last_hidden_state[real])


def test_there_and_back(tmp_path: Path) -> None:
    objective = language_model(init_range=0.05, dropout=0.2)
    folder = written(tmp_path / "m", objective)
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "theirs")
    Tokenizer.from_vocab(PIECES, lowercase=True).save(tmp_path / "theirs")
    again, ours = open_model(tmp_path / "theirs").objective, read_model(folder).objective
    assert again.encoder.config == ours.encoder.config == objective.encoder.config
    for name, tensor in objective.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor) and torch.equal(ours.state_dict()[name], tensor)


def test_greedy_and_beam_search_write_what_theirs_write(tmp_path: Path) -> None:
    objective = language_model()
    folder = written(tmp_path / "m", objective)
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    model, text = load_model(folder), "ab cd"
    ids = torch.tensor([model.loaded.tokenizer.encode(text).ids])
    banned = [[i] for i in model.loaded.tokenizer.special_ids]
    for asked, beams in (({"how": "greedy"}, 1), ({"how": "beam", "beam": 3}, 3)):
        found = model.generate(text, **asked, max_new_tokens=12)  # type: ignore[call-overload]
        out = theirs.generate(
            ids,
            max_new_tokens=12,
            min_new_tokens=12,
            num_beams=beams,
            do_sample=False,
            bad_words_ids=banned,
            pad_token_id=0,
            eos_token_id=None,
            length_penalty=0.0,
        )
        expected = out[0, ids.shape[1] :].tolist()
        assert found.tokens == [model.loaded.tokenizer.pieces[i] for i in expected], asked


def test_their_model_with_the_published_vocabulary(tmp_path: Path, shared_data: Path) -> None:
    """Read their model with the published 40,478 tokens, none of them special; then read ours in transformers."""
    source = tmp_path / "vocabulary"
    source.mkdir()
    for ours, name in (("encoder_bpe_40000.json", "vocab.json"), ("vocab_40000.bpe", "merges.txt")):
        (source / name).write_bytes((shared_data / "openai-gpt-bpe" / ours).read_bytes())
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(source)
    config = transformers.OpenAIGPTConfig(vocab_size=40478, n_embd=8, n_layer=1, n_head=1, n_positions=32)
    folder, made = tmp_path / "hf", tmp_path / "made"
    model = transformers.OpenAIGPTLMHeadModel(config).eval()
    model.save_pretrained(folder)
    theirs.save_pretrained(folder)
    loaded, text = open_model(folder), "The farmer didn't go to the river."
    ids = loaded.tokenizer.encode(text).ids
    assert ids == theirs(text).input_ids and loaded.tokenizer.size == 40481
    made.mkdir()
    write_model(made, "gpt", PRETRAINING, loaded.objective, loaded.tokenizer, {}, untrained=loaded.untrained)
    again = transformers.AutoModelForCausalLM.from_pretrained(made).eval()
    row = transformers.AutoTokenizer.from_pretrained(made)(text).input_ids
    assert row == ids
    close(again(torch.tensor([ids])).logits[..., :40478], model(torch.tensor([ids])).logits)
