"""Converting GPT: OpenAI's arrays, Hugging Face folders, and a vocabulary without special tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from firth.convert.hf_gpt import NAMES, config_to_hf
from firth.convert.renames import expand, to_theirs
from firth.errors import CheckpointError, ConfigError
from firth.export.convert import convert
from firth.folder import PRETRAINING, read_model, write_model
from firth.formats.reading import SPECIAL_TOKENS
from firth.formats.table import find_format, open_model
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdefgh"
MERGES = ["a b", "ab c</w>", "d e"]
# In OpenAI's order: <unk>, letters, letters that end a word, merged tokens.
BPE = {
    piece: i
    for i, piece in enumerate(["<unk>", *LETTERS, *(f"{c}</w>" for c in LETTERS), "ab", "abc</w>", "de", "\n</w>"])
}
NEW = ("_start_", "_delimiter_", "_classify_")
PIECES = "encoder.embeddings.pieces.weight"


def vocabulary(folder: Path, names: tuple[str, str] = ("encoder_bpe_40000.json", "vocab_40000.bpe")) -> None:
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(json.dumps(BPE))
    (folder / names[1]).write_text("\n".join(["#version: 0.2", *MERGES, ""]))


def language_model(vocab_size: int = len(BPE), width: int = 64) -> TiedLM:
    torch.manual_seed(0)
    config = GptConfig(vocab_size=vocab_size, width=width, n_layers=2, n_heads=width // 64, max_positions=16)
    made = TiedLM(Gpt(config), TiedLMConfig())
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made.eval()


def huggingface(folder: Path, made: TiedLM) -> Path:
    """A Hugging Face folder with OpenAI's vocabulary."""
    folder.mkdir()
    vocabulary(folder, ("vocab.json", "merges.txt"))
    theirs = to_theirs(made.state_dict(), expand(NAMES, 2))
    save_file(theirs, folder / "model.safetensors")
    tokenizer = Tokenizer.from_vocab(SPECIALS, lowercase=True)
    config = config_to_hf(made.encoder.config, "OpenAIGPTLMHeadModel", tokenizer)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}))
    return folder


def released(folder: Path, made: TiedLM, tmp_path: Path) -> Path:
    """OpenAI's arrays with OpenAI's vocabulary."""
    folder.mkdir()
    (tmp_path / "w").mkdir()
    write_model(
        tmp_path / "w", "gpt", PRETRAINING, made, Tokenizer.from_vocab(ids_without_specials(), lowercase=True), {}
    )
    convert(tmp_path / "w", tmp_path / "npy", "openai")
    for path in (tmp_path / "npy").glob("params_*"):
        path.rename(folder / path.name)
    vocabulary(folder)
    return folder


def ids_without_specials() -> list[str]:
    """A WordPiece vocabulary as large as BPE's, special tokens first, so that all embedding rows are written."""
    return [*SPECIALS, *(f"p{i}" for i in range(len(BPE) - len(SPECIALS)))]


@pytest.mark.parametrize("kind", ["openai", "hf"])
def test_special_pieces_are_put_behind_all_others(kind: str, tmp_path: Path) -> None:
    made = language_model()
    source = released(tmp_path / "m", made, tmp_path) if kind == "openai" else huggingface(tmp_path / "m", made)
    assert find_format(source).format.key == kind
    done = convert(source, tmp_path / "made")
    facts = done.facts
    assert ("new", f"the special tokens {', '.join(NEW)}: the checkpoint has none, so they begin at random") in facts
    loaded = read_model(tmp_path / "made")
    assert loaded.system_name == "gpt" and loaded.untrained == (SPECIAL_TOKENS,)
    tokenizer, state = loaded.tokenizer, loaded.objective.state_dict()
    # The ids of the other tokens do not change.
    assert tokenizer.pieces[: len(BPE)] == list(BPE) and tuple(tokenizer.pieces[len(BPE) :]) == NEW
    assert (tokenizer.start_id, tokenizer.between_id, tokenizer.end_id) == tuple(range(len(BPE), len(BPE) + 3))
    assert [tokenizer.pieces[i] for i in tokenizer.encode("abc de x").ids] == ["abc</w>", "d", "e</w>", "<unk>"]
    assert loaded.objective.encoder.config.vocab_size == len(BPE) + 3
    for name, tensor in made.state_dict().items():
        assert torch.equal(state[name][: len(tensor)], tensor), name
    new = state[PIECES][len(BPE) :]
    assert 0.01 < float(new.std()) < 0.03
    # The new rows are the same each time.
    assert torch.equal(open_model(source).objective.state_dict()[PIECES], state[PIECES])
    assert "special tokens" in (tmp_path / "made" / "README.md").read_text()


def test_a_folder_of_ours_has_its_special_pieces_already(tmp_path: Path) -> None:
    convert(huggingface(tmp_path / "m", language_model()), tmp_path / "made")
    (tmp_path / "made" / "firth.json").unlink()
    (tmp_path / "made" / "manifest.json").unlink()
    again = open_model(tmp_path / "made")
    assert find_format(tmp_path / "made").format.key == "hf" and again.untrained == ()
    assert again.objective.encoder.config.vocab_size == len(BPE) + 3


@pytest.mark.parametrize("more", [1, 2, 4, 11, 43])
def test_padded_embeddings_are_named(more: int, tmp_path: Path) -> None:
    """Rows that pad the table to a round number cannot be told from trained special tokens."""
    source = huggingface(tmp_path / "m", language_model(len(BPE) + more))
    with pytest.raises(CheckpointError, match=f"{len(BPE) + more} rows of embeddings for {len(BPE)} tokens") as caught:
        open_model(source)
    assert f"resize_token_embeddings to {len(BPE)}, or to {len(BPE) + 3} if the first" in str(caught.value)
    assert str(caught.value).endswith("are _start_, _delimiter_, _classify_, save it, and read that")


def test_special_pieces_of_others_are_the_rows_behind_the_vocabulary(tmp_path: Path) -> None:
    """Exactly as many extra rows as special tokens are those tokens, as after fine-tuning with transformers."""
    loaded = open_model(huggingface(tmp_path / "m", made := language_model(len(BPE) + 3)))
    assert loaded.untrained == () and loaded.tokenizer.pieces[-3:] == list(NEW)
    assert torch.equal(loaded.objective.state_dict()[PIECES], made.state_dict()[PIECES])


def test_to_openai_and_back(tmp_path: Path) -> None:
    convert(huggingface(tmp_path / "m", language_model()), tmp_path / "made")
    done = convert(tmp_path / "made", tmp_path / "npy", "openai")
    facts = dict(done.facts)
    assert facts["left out"] == f"the special tokens {', '.join(NEW)}: the released code makes its own"
    assert "encoder_bpe_40000.json" in facts["for OpenAI's code"]
    shapes = json.loads((tmp_path / "npy" / "params_shapes.json").read_text())
    assert shapes[:2] == [[16, 64], [len(BPE), 64]]
    arrays = [np.load(tmp_path / "npy" / f"params_{i}.npy", allow_pickle=False) for i in range(10)]
    assert sum(len(array) for array in arrays) == sum(int(np.prod(shape)) for shape in shapes)
    again, before = open_model(tmp_path / "npy"), read_model(tmp_path / "made")
    assert again.tokenizer.fingerprint == before.tokenizer.fingerprint
    # Special tokens are initialised as they were the first time.
    for name, tensor in before.objective.state_dict().items():
        assert torch.equal(again.objective.state_dict()[name], tensor), name


def test_a_vocabulary_whose_special_pieces_come_first_is_written_whole(tmp_path: Path) -> None:
    made = language_model()
    tokenizer = Tokenizer.from_vocab(ids_without_specials(), lowercase=True)
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m", "gpt", PRETRAINING, made, tokenizer, {})
    done = convert(tmp_path / "m", tmp_path / "npy", "openai")
    assert "left out" not in dict(done.facts)
    again = open_model(tmp_path / "npy")
    assert again.untrained == () and again.tokenizer.fingerprint == tokenizer.fingerprint
    for name, tensor in made.state_dict().items():
        assert torch.equal(again.objective.state_dict()[name], tensor), name


@pytest.mark.parametrize("kind", ["openai", "huggingface", "firth"])
def test_fewer_positions_are_the_first_ones(kind: str, tmp_path: Path) -> None:
    made = language_model()
    source = released(tmp_path / "m", made, tmp_path) if kind == "openai" else huggingface(tmp_path / "m", made)
    if kind == "firth":
        convert(source, tmp_path / "ours")
        source = tmp_path / "ours"
    done = convert(source, tmp_path / "made", max_positions=9)
    assert ("positions", "the first 9 are kept") in done.facts
    loaded = read_model(tmp_path / "made")
    assert loaded.max_length == 9 and loaded.objective.encoder.config.max_positions == 9
    name = "encoder.embeddings.positions.weight"
    assert torch.equal(loaded.objective.state_dict()[name], made.state_dict()[name][:9])
    for n in (0, 17):
        with pytest.raises(ConfigError, match=f"max_positions={n}: this model has 16 position embeddings"):
            convert(source, tmp_path / "x", max_positions=n)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("target", ["google", "st"])
def test_tools_that_do_not_know_gpt(target: str, tmp_path: Path) -> None:
    source = huggingface(tmp_path / "m", language_model())
    with pytest.raises(ConfigError, match=f"model is gpt: the format {target} is for bert and bert-ltr"):
        convert(source, tmp_path / "x", target)
    with pytest.raises(ConfigError, match="is gpt: only models of"):
        convert(source, tmp_path / "x", "onnx")
    assert not (tmp_path / "x").exists()


def test_the_wrong_vocabulary_is_refused(tmp_path: Path) -> None:
    source = huggingface(tmp_path / "m", language_model(len(BPE) - 1))
    with pytest.raises(CheckpointError, match=f"the tokenizer has {len(BPE) + 3} tokens, the model {len(BPE) - 1}"):
        open_model(source)
    vocabulary_of_none = huggingface(tmp_path / "n", language_model())
    (vocabulary_of_none / "vocab.json").unlink()
    with pytest.raises(CheckpointError, match="give its vocabulary with"):
        open_model(vocabulary_of_none)


def test_an_own_output_matrix_is_refused(tmp_path: Path) -> None:
    made = language_model()
    source = huggingface(tmp_path / "m", made)
    theirs = to_theirs(made.state_dict(), expand(NAMES, 2))
    save_file({**theirs, "lm_head.weight": torch.zeros(len(BPE), 64)}, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is not tokens_embed\.weight"):
        open_model(source)


def test_the_published_vocabulary_is_read_beside_released_arrays(shared_data: Path, tmp_path: Path) -> None:
    made = language_model(40478)
    (tmp_path / "w").mkdir()
    pieces = [*SPECIALS, *(f"p{i}" for i in range(40478 - len(SPECIALS)))]
    write_model(tmp_path / "w", "gpt", PRETRAINING, made, Tokenizer.from_vocab(pieces, lowercase=True), {})
    convert(tmp_path / "w", tmp_path / "npy", "openai")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "npy" / name).unlink()
    for name in ("encoder_bpe_40000.json", "vocab_40000.bpe"):
        (tmp_path / "npy" / name).symlink_to(shared_data / "openai-gpt-bpe" / name)
    loaded = open_model(tmp_path / "npy")
    assert loaded.tokenizer.size == loaded.objective.encoder.config.vocab_size == 40481
    assert loaded.tokenizer.start_id == 40478 and loaded.tokenizer.unk_id == 0
