"""``firth convert``: its output reads back as the same numbers, appears whole, and records its source."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from network_options import network_of
from published_folders import PIECES, encoder_alone, fine_tuned, masked, publish

from firth.errors import CheckpointError, ConfigError
from firth.export.convert import convert
from firth.folder import PRETRAINING, Loaded, read_model, write_model
from firth.formats import reading, writing
from firth.formats.table import find_format, open_model
from firth.inference.model import load_model
from firth.systems import SYSTEMS
from firth.tasks.config import ClassifyConfig, EmbeddingConfig, RegressConfig, TagConfig, WindowConfig
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import load_tensors


def ours(folder: Path, task: str = PRETRAINING, objective: Any = None, system: str = "bert") -> Path:
    folder.mkdir(parents=True)
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=False)
    write_model(folder, system, task, objective or masked(), tokenizer, {"seed": 1})
    return folder


def same(a: Loaded, b: Loaded) -> None:
    assert (a.system_name, a.task, a.untrained, a.embedding) == (b.system_name, b.task, b.untrained, b.embedding)
    assert a.objective.config == b.objective.config and a.objective.encoder.config == b.objective.encoder.config
    x, y = a.objective.state_dict(), b.objective.state_dict()
    assert list(x) == list(y) and all(torch.equal(x[name], y[name]) for name in x)


def test_a_published_model_becomes_a_model_folder(tmp_path: Path) -> None:
    source = publish(tmp_path / "hf", encoder_alone(masked()), architecture="BertModel")
    done = convert(source, tmp_path / "made")
    assert (done.format, done.out) == ("hf", str(tmp_path / "made"))
    loaded = read_model(tmp_path / "made")
    same(loaded, open_model(source))
    assert loaded.tokenizer.fingerprint == open_model(source).tokenizer.fingerprint
    origin = loaded.provenance["origin"]
    assert origin["from"] == str(source) and origin["format"] == "hf"
    assert ["weights", "model.safetensors, float32"] in origin["found"]
    assert (tmp_path / "made" / "manifest.json").is_file()


def test_google_there_and_back(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "tf-bert-fixture"
    convert(source, tmp_path / "ours")
    done = convert(tmp_path / "ours", tmp_path / "google", "google")
    assert find_format(tmp_path / "google").format.key == "google"
    same(open_model(tmp_path / "google"), open_model(source))
    assert ("for Google's code", "--do_lower_case=True: its files do not say it") in done.facts
    assert (tmp_path / "google" / "vocab.txt").read_text() == "".join(
        f"{piece}\n" for piece in open_model(source).tokenizer.pieces
    )
    for key, value in json.loads((source / "bert_config.json").read_text()).items():
        assert json.loads((tmp_path / "google" / "bert_config.json").read_text()).get(key, value) == value


def test_an_encoder_alone_stays_one_in_googles_layout(tmp_path: Path) -> None:
    source = publish(tmp_path / "hf", encoder_alone(masked()), architecture="BertModel")
    convert(source, tmp_path / "google", "google")
    loaded = open_model(tmp_path / "google")
    assert loaded.untrained == ("mlm",)
    same(loaded, open_model(source))


def test_a_classifier_in_googles_layout(tmp_path: Path) -> None:
    made = fine_tuned("classify", ClassifyConfig(labels=("LABEL_0", "LABEL_1")))
    convert(ours(tmp_path / "m", "classify", made), tmp_path / "google", "google")
    found = open_model(tmp_path / "google")
    assert found.task == "classify"
    assert torch.equal(found.objective.state_dict()["head.weight"], made.state_dict()["head.weight"])


def test_a_new_vocabulary_in_googles_layout_is_told_apart(tmp_path: Path) -> None:
    notes = [value for name, value in convert(ours(tmp_path / "m"), tmp_path / "g", "google").facts if name == "note"]
    assert any("cuts rare characters, and lower-cased Hangul" in note for note in notes)
    assert any("tanh" in note for note in notes)


def test_what_was_never_trained_is_not_passed_on(tmp_path: Path) -> None:
    """Other formats cannot mark a part as untrained, so it is left out; read back, it is refused as before."""
    source = publish(tmp_path / "bare", encoder_alone(masked()), architecture="BertModel")
    convert(source, tmp_path / "m")
    done = convert(tmp_path / "m", tmp_path / "hf", "hf")
    assert ("left out", "the masked-LM head, which was never trained") in done.facts
    assert ("new", "the masked-LM head: never trained, at random") in done.facts
    assert not [name for name in load_tensors(tmp_path / "hf" / "model.safetensors") if name.startswith("cls.")]
    assert open_model(tmp_path / "hf").untrained == read_model(tmp_path / "m").untrained == ("mlm",)
    # Masked language modelling alone does not train the pooler.
    (tmp_path / "small").mkdir()
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=False)
    provenance = {"recipe": {"objective.next_sentence": False}}
    objective = masked(next_sentence=False)
    write_model(tmp_path / "small", "bert", PRETRAINING, objective, tokenizer, provenance)
    convert(tmp_path / "small", tmp_path / "small_hf", "hf")
    assert open_model(tmp_path / "small_hf").untrained == ("encoder.pooler",)


def test_a_shortened_model_predicts(tmp_path: Path) -> None:
    """The window length of a fine-tuned model, which may exceed the new maximum, is shortened too."""
    options = ClassifyConfig(labels=("a", "b"), windows=WindowConfig(length=32))
    objective = fine_tuned("classify", options)
    convert(ours(tmp_path / "m", "classify", objective), tmp_path / "short", max_positions=16)
    assert read_model(tmp_path / "short").objective.config.windows.length == 16
    load_model(tmp_path / "short").predict("the king")
    with pytest.raises(ConfigError, match="max_positions=4: a model for classify reads at least 11"):
        convert(tmp_path / "m", tmp_path / "shorter", max_positions=4)


def test_sentence_transformers_files_beside_a_model_folder(tmp_path: Path) -> None:
    convert(ours(tmp_path / "m"), tmp_path / "st", "st")
    assert json.loads((tmp_path / "st" / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True
    same(read_model(tmp_path / "st"), read_model(tmp_path / "m"))
    # Without firth.json it is a plain sentence-transformers folder.
    (tmp_path / "st" / "firth.json").unlink()
    loaded = open_model(tmp_path / "st")
    assert find_format(tmp_path / "st").format.key == "st" and loaded.embedding == EmbeddingConfig()


@pytest.mark.parametrize("target", ["google", "st", "hf"])
def test_systems_that_only_firth_has(target: Any, tmp_path: Path) -> None:
    lstm = SYSTEMS["lstm"]
    objective = lstm.objective(
        lstm.encoder(lstm.config(vocab_size=len(PIECES), width=8, n_layers=1)), lstm.objective_config()
    )
    source = ours(tmp_path / "m", objective=objective, system="lstm")
    with pytest.raises(ConfigError, match=f"this model is lstm: the format {target} is for"):
        convert(source, tmp_path / "x", target)
    mixed = ClassifyConfig(labels=("a", "b"), network=network_of(pool="mean"))
    said = "only Firth has: head.network.pool=mean; to go without them, fine-tune with --set head.network.pool=summary"
    with pytest.raises(ConfigError, match=said):
        convert(ours(tmp_path / "n", "classify", fine_tuned("classify", mixed)), tmp_path / "x", target)
    assert not (tmp_path / "x").exists()
    # If no option is the cause, none is named.
    assert writing._without_them(ClassifyConfig(labels=("a", "b"))) == ""


def test_tasks_that_googles_code_does_not_have(tmp_path: Path) -> None:
    source = ours(tmp_path / "m", "tag", fine_tuned("tag", TagConfig(labels=("O", "B-X", "I-X"))))
    with pytest.raises(ConfigError, match="is a model for tag, which google-research/bert does not have"):
        convert(source, tmp_path / "x", "google")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    source = ours(tmp_path / "m")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for out in (tmp_path / "full", tmp_path / "full" / "file", source):
        with pytest.raises(ConfigError, match="exists already"):
            convert(source, out)
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty")
    assert read_model(tmp_path / "empty")


@pytest.mark.parametrize("options", [{"vocab": Path("v")}, {"lowercase": True}, {"gelu": "erf"}])
def test_our_own_models_need_no_hints(options: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a model of Firth, which needs no (vocab|lowercase|gelu): leave out"):
        convert(ours(tmp_path / "m"), tmp_path / "x", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize("moment", ["write_model", "_compare"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CheckpointError("x")])
def test_a_failure_leaves_nothing(
    moment: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    source = ours(tmp_path / "m")
    monkeypatch.setattr(writing, moment, fails)
    with pytest.raises((KeyboardInterrupt, CheckpointError)):
        convert(source, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_what_does_not_read_as_it_was_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(folder: Path, *parts: Any, **more: Any) -> None:
        write_model(folder, *parts, **more)
        loaded.objective.state_dict()["nsp.bias"].add_(1)

    loaded = read_model(ours(tmp_path / "m"))
    monkeypatch.setattr(reading, "read_model", lambda path, **more: loaded)
    monkeypatch.setattr(writing, "write_model", careless)
    with pytest.raises(CheckpointError, match=r"nsp\.bias was written, but does not read as it was"):
        convert(tmp_path / "m", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("target", ["firth", "hf", "st"])
def test_weights_may_be_stored_in_16_bits(target: str, tmp_path: Path) -> None:
    source = ours(tmp_path / "ours")
    full = read_model(source)
    expected = {name: t.to(torch.bfloat16).float() for name, t in full.objective.state_dict().items()}
    convert(source, tmp_path / "half", target, dtype="bfloat16")
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    assert {t.dtype for t in load_tensors(tmp_path / "half/model.safetensors").values()} == {torch.bfloat16}
    read = open_model(tmp_path / "half")
    found = read.objective.state_dict()
    assert all(t.dtype == torch.float32 and torch.equal(t, expected[name]) for name, t in found.items())

    convert(tmp_path / "half", tmp_path / "again", dtype="float32")
    assert read_model(tmp_path / "again").stored == torch.float32
    if target == "firth":
        convert(tmp_path / "half", tmp_path / "kept")
        assert read_model(tmp_path / "kept").stored == torch.bfloat16


def test_formats_with_one_dtype_refuse_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dtype='bfloat16' is for firth, hf, st: the format google has float32"):
        convert(ours(tmp_path / "ours"), tmp_path / "out", "google", dtype="bfloat16")
    assert not (tmp_path / "out").exists()


def test_the_temperature_of_pre_training_is_no_calibration(tmp_path: Path) -> None:
    done = convert(ours(tmp_path / "ours"), tmp_path / "hf", "hf")
    assert read_model(tmp_path / "ours").objective.config.temperature != 1
    assert not any(name == "calibration" for name, _ in done.facts)


def test_other_tools_compute_the_calibrated_probabilities(tmp_path: Path) -> None:
    options = ClassifyConfig(labels=("n", "y"), temperature=2.5)
    source = ours(tmp_path / "ours", "classify", fine_tuned("classify", options))
    done = convert(source, tmp_path / "hf", "hf")
    assert (
        "calibration",
        "the temperature 2.5 is part of the last layer: probabilities are calibrated everywhere",
    ) in (done.facts)
    before, after = read_model(source).objective, open_model(tmp_path / "hf").objective
    assert (before.config.temperature, after.config.temperature) == (2.5, 1.0)
    expected = {n: t / 2.5 if n.startswith("head.") else t for n, t in before.state_dict().items()}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in after.state_dict().items())
    # Firth's own folders keep the temperature beside the weights.
    convert(source, tmp_path / "again")
    assert read_model(tmp_path / "again").objective.config.temperature == 2.5


def test_other_tools_compute_values_on_their_own_scale(tmp_path: Path) -> None:
    options = RegressConfig(lowest=100.0, highest=900.0, centre=500.0, scale=200.0)
    source = ours(tmp_path / "ours", "regress", fine_tuned("regress", options))
    done = convert(source, tmp_path / "hf", "hf")
    assert ("values", "centre 500, scale 200 are part of the last layer") in done.facts
    before, after = read_model(source).objective, open_model(tmp_path / "hf").objective
    assert (after.config.centre, after.config.scale) == (0.0, 1.0)
    assert torch.equal(after.head.weight, 200 * before.head.weight)
    assert torch.equal(after.head.bias, 200 * before.head.bias + 500)


def test_calibrated_weights_in_16_bits_stay_in_them(tmp_path: Path) -> None:
    source = ours(
        tmp_path / "ours", "classify", fine_tuned("classify", ClassifyConfig(labels=("n", "y"), temperature=1.37))
    )
    convert(source, tmp_path / "half", dtype="bfloat16")
    convert(tmp_path / "half", tmp_path / "hf", "hf", dtype="bfloat16")
    convert(tmp_path / "half", tmp_path / "full", "hf")
    before, after, full = (open_model(tmp_path / name).objective.state_dict() for name in ("half", "hf", "full"))
    divided = before["head.weight"] / 1.37
    assert torch.equal(after["head.weight"], divided.to(torch.bfloat16).float())
    assert torch.equal(after["encoder.embeddings.pieces.weight"], before["encoder.embeddings.pieces.weight"])
    # Other tools compute in the dtype in which weights are stored.
    assert torch.equal(full["head.weight"], divided)
    assert json.loads((tmp_path / "full/config.json").read_text())["dtype"] == "float32"
