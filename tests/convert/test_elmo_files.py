"""ELMo's published files: bit-exact round trips, and one-line errors."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.convert import elmo
from firth.convert.elmo import find_parts, read_elmo, read_vocabulary, write_elmo
from firth.errors import CheckpointError, ConfigError, InputError
from firth.export.convert import convert
from firth.folder import PRETRAINING, read_model, write_model
from firth.formats.table import find_format, open_model
from firth.models.config import BilmConfig
from firth.objectives.bilm import BilmLM
from firth.objectives.config import BilmLMConfig
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS

h5py = pytest.importorskip("h5py")

CONFIG = BilmConfig(
    vocab_size=4,
    width=5,
    cells=6,
    n_layers=2,
    cell_clip=2.5,
    projection_clip=0.0,
    character_width=3,
    filters=((1, 4), (3, 6)),
    n_highways=1,
    activation="tanh",
)


def state(config: BilmConfig = CONFIG) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = BilmLM(SYSTEMS["elmo"].encoder(config), BilmLMConfig())
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return {name: tensor for name, tensor in made.state_dict().items() if name.startswith("encoder.")}


def written(folder: Path, config: BilmConfig = CONFIG) -> Path:
    folder.mkdir()
    write_elmo(folder, config, state(config))
    return folder


def changed(folder: Path, table: str, **values: Any) -> Path:
    options = json.loads((folder / "options.json").read_text())
    target = options[table] if table else options
    for key, value in values.items():
        target.pop(key, None) if value is None else target.__setitem__(key, value)
    (folder / "options.json").write_text(json.dumps(options))
    return folder


def read(folder: Path) -> tuple[BilmConfig, dict[str, torch.Tensor]]:
    return read_elmo(folder / "options.json", folder / "weights.hdf5", 4)


@pytest.mark.parametrize("width", [5, 10])
def test_what_is_written_reads_as_the_same_bits(tmp_path: Path, width: int) -> None:
    sizes = {name: getattr(CONFIG, name) for name in CONFIG.__slots__}
    config = BilmConfig(**(sizes | {"width": width}))
    found, tensors = read(written(tmp_path / "e", config))
    assert found == config
    expected = state(config)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    with h5py.File(tmp_path / "e" / "weights.hdf5") as file:
        assert ("CNN_proj" in file) == (width != 10)
        assert file["CNN/W_cnn_1"].shape == (1, 3, 3, 6)
        cell = file["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"]
        assert {name: data.shape for name, data in cell.items()} == {
            "W_0": (2 * width, 24),
            "B": (24,),
            "W_P_0": (6, width),
        }


def test_gates_lie_in_the_published_order(tmp_path: Path) -> None:
    ours = state()
    written(tmp_path / "e")
    with h5py.File(tmp_path / "e" / "weights.hdf5") as file:
        cell = file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"]
        i, j, f, o = np.split(cell["B"][()], 4)
        matrix = cell["W_0"][()]
    expected = ours["encoder.ahead.layers.0.bias"].numpy()
    assert np.array_equal(np.concatenate([i, f, j, o]), expected)
    weight = np.concatenate([ours[f"encoder.ahead.layers.0.weight_{part}"].numpy() for part in ("ih", "hh")], 1)
    assert np.array_equal(matrix[:, 6:12], weight[12:18].T)  # j: our third quarter
    assert np.array_equal(matrix[:, 12:18], weight[6:12].T)  # f: our second


def test_a_folder_of_ours_goes_there_and_back(tmp_path: Path) -> None:
    model = convert(written(tmp_path / "e"), tmp_path / "m")
    assert ("weights", "weights.hdf5, float32, with the sizes of options.json") in model.facts
    assert model.format == "elmo" and ("new", "the output layer: the checkpoint has none, so it begins at random") in (
        model.facts
    )
    loaded = read_model(tmp_path / "m")
    assert loaded.untrained == ("softmax",) and loaded.tokenizer.size == 4
    convert(tmp_path / "m", tmp_path / "again", "elmo")
    assert (tmp_path / "again" / "options.json").read_bytes() == (tmp_path / "e" / "options.json").read_bytes()
    found, expected = read(tmp_path / "again")[1], state()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_model_may_be_named_by_its_folder_or_either_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "e")
    for part in (folder, folder / "options.json", folder / "weights.hdf5"):
        assert find_format(part).format.key == "elmo"
        assert open_model(part).system_name == "elmo"
    other = tmp_path / "two"
    other.mkdir()
    for name in ("small_", "large_"):
        for file in ("options.json", "weights.hdf5"):
            (other / f"{name}{file}").write_bytes((folder / file).read_bytes())
    assert find_parts(other / "large_weights.hdf5") == (other / "large_options.json", other / "large_weights.hdf5")
    with pytest.raises(CheckpointError, match=r"several models \(large_weights.hdf5, small_weights.hdf5\)"):
        find_parts(other)
    (other / "large_options.json").unlink()
    (other / "third_options.json").write_text("{}")
    with pytest.raises(CheckpointError, match="which options and weights belong together"):
        find_parts(other / "large_weights.hdf5")
    assert find_parts(tmp_path) is None and find_parts(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("table", "values", "words"),
    [
        ("char_cnn", {"n_characters": 261}, "n_characters is 261, as in training: set it to 262"),
        ("char_cnn", {"n_characters": 300}, "n_characters=300, .*expected 262 and 50"),
        ("char_cnn", {"max_characters_per_token": 30}, "max_characters_per_token=30: expected 262 and 50"),
        ("char_cnn", {"activation": "selu"}, "activation='selu': expected 'relu' or 'tanh'"),
        ("char_cnn", {"filters": [[1]]}, "cannot be read as the options of ELMo"),
        ("char_cnn", {"new": 1}, "char_cnn has unknown new"),
        ("lstm", {"peepholes": True}, "lstm has unknown peepholes"),
        ("lstm", {"dim": None}, "cannot be read as the options of ELMo: KeyError"),
        ("lstm", {"n_layers": 0}, "n_layers=0: expected at least 1"),
        ("lstm", {"n_layers": 1}, "has unknown RNN_0/.*Cell1"),
        ("lstm", {"n_layers": 3}, r"lacks RNN_0/.*Cell2.* \(6 missing, 0 unknown arrays\)"),
        ("lstm", {"dim": 7}, r"W_0 has shape \(10, 24\), expected \(10, 28\)"),
        ("", {"char_cnn": None}, "models without characters are not read"),
        ("", {"bidirectional": False}, "bidirectional=False: expected true"),
    ],
)
def test_options_that_do_not_fit_are_told(tmp_path: Path, table: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(changed(written(tmp_path / "e"), table, **values))


def test_options_of_training_and_absent_clips_are_read(tmp_path: Path) -> None:
    folder = changed(written(tmp_path / "e"), "", n_epochs=10, bidirectional=True, unroll_steps=20)
    changed(folder, "lstm", cell_clip=None, use_skip_connections=None)
    config, _ = read(folder)
    assert config.cell_clip == 0 and config.projection_clip == 0 and not config.residual


def test_broken_weights_are_told(tmp_path: Path) -> None:
    folder = written(tmp_path / "e")
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        file["elsewhere"] = h5py.ExternalLink("other.hdf5", "/x")
    with pytest.raises(CheckpointError, match="elsewhere is a link to elsewhere"):
        read(folder)
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["elsewhere"]
        file["names"] = np.array([b"a"])
    with pytest.raises(CheckpointError, match="names is no array of real numbers"):
        read(folder)
    (folder / "weights.hdf5").write_bytes((folder / "weights.hdf5").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read as HDF5"):
        read(folder)


@pytest.mark.parametrize(("table", "key"), [("lstm", "n_layers"), ("char_cnn", "n_highway")])
def test_more_layers_than_the_file_can_have_are_told_before_any_is_made(tmp_path: Path, table: str, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"says {table}.{key} 90, but weights.hdf5 has 23 arrays"):
        read(changed(written(tmp_path / "e"), table, **{key: 90}))
    with pytest.raises(CheckpointError, match=r"99999999999: expected"):
        read(changed(written(tmp_path / "f"), table, **{key: 99999999999}))


def test_an_array_larger_than_its_file_is_never_made(tmp_path: Path) -> None:
    folder = written(tmp_path / "e")
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        file.create_dataset("hollow", shape=(10**6, 10**6), dtype="f4", chunks=(10, 10))
    with pytest.raises(CheckpointError, match=r"hollow has shape \(1000000, 1000000\), more than a file of"):
        read(folder)


def test_a_pipe_is_no_weights(tmp_path: Path) -> None:
    """Opening a pipe would block until it has a writer."""
    folder = written(tmp_path / "e")
    (folder / "weights.hdf5").unlink()
    os.mkfifo(folder / "weights.hdf5")
    with pytest.raises(CheckpointError, match="cannot be read as HDF5: not a regular file"):
        read(folder)


def test_damaged_weights_are_one_line_or_read(tmp_path: Path) -> None:
    """Bytes changed at seeded places, mostly in metadata: the result is one of our errors or a model."""
    folder = written(tmp_path / "e")
    whole = (folder / "weights.hdf5").read_bytes()
    random, told = np.random.default_rng(0), set()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(int(random.integers(1, 4))):
            damaged[int(len(whole) * random.random() ** 2)] = int(random.integers(256))
        (folder / "weights.hdf5").write_bytes(damaged)
        try:
            read(folder)
        except CheckpointError as error:
            assert str(folder) in str(error) and "\n" not in str(error)
            told.add(str(error.__context__.__class__.__name__))
    # Our errors wrap library errors of several classes.
    assert {"OSError", "KeyError", "RuntimeError"} & told and len(told) > 2


def test_without_h5py_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "e")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for use in (lambda: open_model(folder), lambda: convert(folder, tmp_path / "x", "elmo")):
        with pytest.raises(ConfigError, match=r"a published ELMo needs h5py: pip install 'firth\[convert\]'"):
            use()


def test_a_vocabulary_of_theirs(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("<S>\n</S>\n<UNK>\nthe\nU.S.\n,\n")
    tokenizer = read_vocabulary(file)
    assert tokenizer.pieces[4:] == ["the", "U.S.", ","] and tokenizer.ids_many(["the U.S. ,"]) == [[4, 5, 6]]
    done = convert(written(tmp_path / "e"), tmp_path / "m", vocab=file)
    assert "7 tokens" in dict(done.facts)["sizes"]
    loaded = read_model(tmp_path / "m")
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    with pytest.raises(CheckpointError, match="leave out --uncased"):
        convert(tmp_path / "e", tmp_path / "u", lowercase=True)
    file.write_text("<S>\nthe cat\n")
    with pytest.raises(InputError, match="line 2: 'the cat': expected one word"):
        read_vocabulary(file)
    file.write_text("<S>\nthe\n")
    with pytest.raises(InputError, match="lacks </S> <UNK>"):
        read_vocabulary(file)


def test_a_vocabulary_of_ours(tmp_path: Path) -> None:
    Tokenizer.from_words([*WORDS.specials, "The", "cat", ","], lowercase=False).save(tmp_path / "words")
    for file in (tmp_path / "words", tmp_path / "words" / "tokenizer.json"):
        tokenizer = read_vocabulary(file)
        assert tokenizer.pieces[4:] == ["The", "cat", ","] and len(tokenizer.encode("The cat,").ids) == 2
    done = convert(written(tmp_path / "e"), tmp_path / "m", vocab=tmp_path / "words" / "tokenizer.json")
    assert "7 tokens" in dict(done.facts)["sizes"]
    Tokenizer.from_words([*WORDS.specials, "the"], lowercase=True).save(tmp_path / "lower")
    Tokenizer.from_vocab(SPECIALS, lowercase=False).save(tmp_path / "pieces")
    for name, found in (("lower", "words in lower case"), ("pieces", "a WordPiece vocabulary")):
        with pytest.raises(InputError, match=f"{found}: expected words as they are written"):
            read_vocabulary(tmp_path / name)


def test_a_model_that_splits_at_punctuation_says_that_others_do_not(tmp_path: Path) -> None:
    spaced = convert(written(tmp_path / "e"), tmp_path / "m")
    words = Tokenizer.from_words([*WORDS.specials, "a"], lowercase=False)
    loaded = read_model(spaced.out)
    (tmp_path / "own").mkdir()
    write_model(tmp_path / "own", "elmo", PRETRAINING, loaded.objective, words.with_words(loaded.tokenizer.pieces), {})
    facts = [dict(convert(tmp_path / name, tmp_path / f"{name}-again", "elmo").facts) for name in ("m", "own")]
    assert "text" not in facts[0] and "this model at punctuation too" in facts[1]["text"]


def test_only_elmo_is_written_so(tmp_path: Path) -> None:
    row = SYSTEMS["bert"]
    config = row.config(vocab_size=5, width=4, n_layers=1, n_heads=1, feed_forward_width=4, max_positions=8)
    made = row.objective(row.encoder(config), row.objective_config())
    (tmp_path / "b").mkdir()
    write_model(tmp_path / "b", "bert", PRETRAINING, made, Tokenizer.from_vocab(SPECIALS, lowercase=True), {})
    with pytest.raises(ConfigError, match="model is bert: the format elmo is for elmo"):
        convert(tmp_path / "b", tmp_path / "out", "elmo")
    assert not (tmp_path / "out").exists() and elmo.OPTIONS == "options.json"


def test_a_byte_order_mark_is_not_of_the_text(tmp_path: Path) -> None:
    folder = written(tmp_path / "e")
    options = folder / "options.json"
    options.write_bytes(b"\xef\xbb\xbf" + options.read_bytes())
    assert read(folder)[0] == CONFIG
    (tmp_path / "vocab.txt").write_bytes("\ufeff<S>\r\n</S>\r\n<UNK>\r\nthe\r\n".encode())
    assert read_vocabulary(tmp_path / "vocab.txt").pieces[-1] == "the"


@pytest.mark.parametrize(("there", "lacks"), [("options.json", "weights.hdf5"), ("weights.hdf5", "options.json")])
def test_one_of_the_two_files_alone(there: str, lacks: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "e")
    (folder / lacks).unlink()
    with pytest.raises(CheckpointError, match=f"e has {there}, but no …{lacks}"):
        find_format(folder)
