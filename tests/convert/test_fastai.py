"""fastai's released language models: both generations of tensor names, and word lists read without running a pickle."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.convert.fastai import find_fastai, read_fastai, read_words_file
from firth.errors import CheckpointError
from firth.export.convert import convert
from firth.formats.table import find_format, open_model, read_format
from firth.models.config import AwdLstmConfig

SECOND = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxrep", "xxwrep", "xxup", "xxmaj", "the", ",", "cat"]
FIRST = ["_unk_", "_pad_", "the", ",", "t_up", "cat"]
WIDTHS = (4, 6, 6, 4)


def tensors(n_words: int) -> dict[str, Tensor]:
    """Weights under the plain names that both generations build on."""
    torch.manual_seed(0)
    found = {"encoder.weight": torch.randn(n_words, 4)}
    for i, (below, own) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False)):
        shapes = {
            "weight_ih_l0": (4 * own, below),
            "weight_hh_l0": (4 * own, own),
            "bias_ih_l0": (4 * own,),
            "bias_hh_l0": (4 * own,),
        }
        found |= {f"rnns.{i}.{name}": torch.randn(shape) for name, shape in shapes.items()}
    return found


def first_generation(n_words: int) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors(n_words).items():
        theirs = name.replace("weight_hh_l0", "weight_hh_l0_raw")
        theirs = theirs if "encoder" in name else theirs.replace(".", ".", 1)
        parts = theirs.split(".")
        found["0." + (".".join([*parts[:2], "module", parts[2]]) if parts[0] == "rnns" else theirs)] = tensor
    embedding = found["0.encoder.weight"]
    return found | {"0.encoder_with_dropout.embed.weight": embedding, "1.decoder.weight": embedding}


def second_generation(n_words: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors(n_words).items():
        parts = name.split(".")
        if parts[0] != "rnns":
            found["0." + name] = tensor
        elif parts[2] == "weight_hh_l0":
            found[f"0.rnns.{parts[1]}.weight_hh_l0_raw"] = tensor
            found[f"0.rnns.{parts[1]}.module.weight_hh_l0"] = tensor * 0  # a copy with dropout, as 1.x saves it
        else:
            found[f"0.rnns.{parts[1]}.module.{parts[2]}"] = tensor
    embedding = found["0.encoder.weight"]
    found |= {"0.encoder_dp.emb.weight": embedding, "1.decoder.weight": embedding}
    return found | {"1.decoder.bias": torch.randn(n_words)}


def released(folder: Path, state: Any, words: list[str], name: str = "fwd_wt103.h5") -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / name)
    (folder / "itos_wt103.pkl").write_bytes(pickle.dumps(words))
    return folder


def check(state: dict[str, Tensor], expected: dict[str, Tensor], n_words: int) -> None:
    assert torch.equal(state["encoder.embeddings.weight"][:n_words], expected["encoder.weight"])
    for name, tensor in expected.items():
        if name.startswith("rnns."):
            assert torch.equal(state["encoder.layers." + name.removeprefix("rnns.")], tensor)


def test_the_second_generation(tmp_path: Path) -> None:
    theirs = second_generation(len(SECOND))
    folder = released(
        tmp_path / "wt103-bwd", {"model": theirs, "opt": {"state": {}, "hypers": [{"lr": 0.1}]}}, SECOND, "lstm_bwd.pth"
    )
    loaded = open_model(folder)
    assert loaded.system_name == "awd-lstm" and loaded.tokenizer.size == len(SECOND)
    config = AwdLstmConfig(vocab_size=12, width=4, hidden_width=6, n_layers=3, backward=True)
    assert loaded.objective.encoder.config == config
    state = loaded.objective.state_dict()
    check(state, tensors(len(SECOND)), len(SECOND))
    assert torch.equal(state["bias"], theirs["1.decoder.bias"])


def test_the_first_generation_and_its_missing_special_words(tmp_path: Path) -> None:
    folder = released(tmp_path / "wt103", first_generation(len(FIRST)), FIRST)
    foreign = read_format(find_format(folder / "fwd_wt103.h5"))
    facts = dict(foreign.facts)
    assert facts["weights"] == "fwd_wt103.h5, forward by its name" and facts["system"] == "awd-lstm"
    tokenizer, state = foreign.loaded.tokenizer, foreign.loaded.objective.state_dict()
    assert tokenizer.pieces == ["<unk>", "_pad_", "the", ",", "t_up", "cat", "<s>", "<sep>", "</s>"]
    check(state, tensors(len(FIRST)), len(FIRST))
    mean = tensors(len(FIRST))["encoder.weight"].mean(0)
    for row in state["encoder.embeddings.weight"][len(FIRST) :]:
        torch.testing.assert_close(row, mean)
    assert torch.equal(state["bias"], torch.zeros(9))


def test_an_encoder_alone(tmp_path: Path) -> None:
    state = {n.removeprefix("0."): t for n, t in second_generation(12).items() if n.startswith("0.")}
    loaded = open_model(released(tmp_path / "e", state, SECOND, "encoder.pth"))
    check(loaded.objective.state_dict(), tensors(12), 12)
    assert not loaded.objective.encoder.config.backward


def test_converting_writes_a_folder_that_reads_alike(tmp_path: Path) -> None:
    folder = released(tmp_path / "wt103", second_generation(len(SECOND)), SECOND)
    converted = convert(folder, tmp_path / "model")
    assert converted.format == "fastai"
    ours, theirs = open_model(tmp_path / "model"), open_model(folder)
    assert ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint
    for name, tensor in theirs.objective.state_dict().items():
        assert torch.equal(ours.objective.state_dict()[name], tensor)


def test_a_folder_of_both_directions_asks_for_a_file(tmp_path: Path) -> None:
    folder = released(tmp_path / "both", first_generation(6), FIRST)
    released(folder, first_generation(6), FIRST, "bwd_wt103.h5")
    assert find_fastai(folder) is None
    assert open_model(folder / "bwd_wt103.h5").objective.encoder.config.backward
    assert find_fastai(tmp_path) is None and find_fastai(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("lists", "taken"),
    [
        (["itos_fwd.pkl", "itos_bwd.pkl"], {"lstm_fwd.pth": "itos_fwd.pkl", "lstm_bwd.pth": "itos_bwd.pkl"}),
        (
            ["lstm_bwd_itos.txt", "lstm_fwd_itos.txt"],
            {"lstm_fwd.pth": "lstm_fwd_itos.txt", "lstm_bwd.pth": "lstm_bwd_itos.txt"},
        ),
        (["itos_wt103.pkl"], {"lstm_fwd.pth": "itos_wt103.pkl", "lstm_bwd.pth": "itos_wt103.pkl"}),
        # One list in several formats.
        (["itos.pkl", "itos.json", "itos.txt"], {"lstm_fwd.pth": "itos.txt"}),
        (["itos.pkl", "itos.json"], {"lstm_bwd.pth": "itos.json"}),
    ],
)
def test_each_model_has_its_own_words(tmp_path: Path, lists: list[str], taken: dict[str, str]) -> None:
    for name in lists:
        words = [*SECOND[:-1], name]
        content = {".pkl": pickle.dumps(words), ".json": json.dumps(words).encode(), ".txt": "\n".join(words).encode()}
        (tmp_path / name).write_bytes(content[Path(name).suffix])
    for weights, expected in taken.items():
        torch.save(second_generation(len(SECOND)), tmp_path / weights)
        foreign = read_format(find_format(tmp_path / weights))
        assert foreign.loaded.tokenizer.pieces[len(SECOND) - 1] == expected
        assert dict(foreign.facts)["words"] == expected


def test_words_that_may_be_another_models_are_asked_for(tmp_path: Path) -> None:
    folder = released(tmp_path / "m", second_generation(len(SECOND)), SECOND, "lstm_fwd.pth")
    (folder / "itos_wt2.txt").write_text("\n".join([*SECOND[:-1], "dog"]))
    message = r"which list of words is its own\? Beside it: itos_wt103.pkl, itos_wt2.txt; .*--vocab FILE"
    with pytest.raises(CheckpointError, match=message):
        open_model(folder)
    convert(folder, tmp_path / "out", vocab=folder / "itos_wt2.txt")
    assert open_model(tmp_path / "out").tokenizer.pieces[len(SECOND) - 1] == "dog"


def change(**changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = second_generation(len(SECOND))
    for name, value in changes.items():
        key = name.replace("__", ".").lstrip("_")
        if value is None:
            del state[key]
        else:
            state[key] = value
    return state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_0__encoder__weight": None}, "lacks encoder.weight: expected an AWD-LSTM"),
        ({"_0__rnns__1__module__bias_hh_l0": None}, "lacks rnns.1.bias_hh_l0"),
        ({"_1__decoder__weight": torch.zeros(12, 4)}, "decoder.weight is not the embedding"),
        ({"_0__rnns__0__module__weight_ih_l0": torch.zeros(24, 5)}, "weight_ih_l0 has shape .24, 5., expected .24, 4."),
        ({"_1__layers__0__weight": torch.zeros(3)}, "unknown layers.0.weight"),
        ({"_0__encoder__weight": torch.zeros(4)}, "encoder.weight has shape"),
        ({"opt": 3}, "expected tensors by name"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    state = change(**changes)
    if "_0__encoder__weight" in changes and changes["_0__encoder__weight"] is not None:
        for copy in ("0.encoder_dp.emb.weight", "1.decoder.weight"):
            state[copy] = changes["_0__encoder__weight"]
    folder = released(tmp_path / "m", state, SECOND)
    with pytest.raises(CheckpointError, match=message):
        read_fastai(folder / "fwd_wt103.h5")


def test_words_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = released(tmp_path / "m", second_generation(11), SECOND)
    with pytest.raises(CheckpointError, match="has 12 words, the model 11: not of one make"):
        open_model(folder)


WORDS = ["xxunk", "the", "고양이", "\n", "", "the", "x" * 300]


@pytest.mark.parametrize("protocol", range(6))
def test_words_from_a_pickle_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "itos.pkl"
    for words in (WORDS, ["one"], [str(i) for i in range(3000)]):
        path.write_bytes(pickle.dumps(words, protocol))
        assert read_words_file(path) == words


def test_words_from_text_and_json(tmp_path: Path) -> None:
    (tmp_path / "itos.txt").write_text("xxunk\nthe\n고양이\n", "utf-8")
    (tmp_path / "itos.json").write_text(json.dumps(WORDS), "utf-8")
    assert read_words_file(tmp_path / "itos.txt") == ["xxunk", "the", "고양이"]
    assert read_words_file(tmp_path / "itos.json") == WORDS


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Trap()), "holds more than a list of text .*nothing of it was run; give the words as a .txt"),
        (pickle.dumps([Trap()]), "holds more than a list of text"),
        (pickle.dumps({"a": 1}), "holds more than a list of text"),
        (pickle.dumps(["a", 1]), "holds more than a list of text"),
        (pickle.dumps([["a"], "b"]), "expected a list of words, all of them text"),
        (pickle.dumps([]), "expected a list of words"),
        (pickle.dumps(["a", "b"])[:-1], "cannot be read as a pickled list"),
        (b"", "cannot be read as a pickled list"),
        (b"e.", "cannot be read as a pickled list"),
        (b"](h\x05e.", "cannot be read as a pickled list"),
        (b"\xff\xfe", "cannot be read as a pickled list"),
        (b"cposix\nsystem\n(S'exit 1'\ntR.", "holds more than a list of text .GLOBAL posix system"),
    ],
)
def test_no_other_pickle_is_read_and_nothing_is_run(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("was run"))
    path = tmp_path / "itos.pkl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_words_file(path)


def test_weights_with_code_are_refused(tmp_path: Path) -> None:
    folder = released(tmp_path / "m", second_generation(12), SECOND)
    torch.save({"model": second_generation(12), "opt": Trap()}, folder / "fwd_wt103.h5")
    with pytest.raises(CheckpointError, match="holds more than tensors .*nothing of it was run"):
        open_model(folder)


def test_a_pipe_is_no_list_of_words(tmp_path: Path) -> None:
    """Opening a pipe would block until it has a writer."""
    os.mkfifo(tmp_path / "itos.pkl")
    with pytest.raises(CheckpointError, match=r"itos\.pkl cannot be read: not a regular file"):
        read_words_file(tmp_path / "itos.pkl")


def test_lists_of_words_from_windows(tmp_path: Path) -> None:
    (tmp_path / "itos.txt").write_bytes("\ufeffxxunk\r\nthe\r\n".encode())
    (tmp_path / "itos.json").write_bytes('\ufeff["xxunk", "the"]'.encode())
    for file in sorted(tmp_path.iterdir()):
        assert read_words_file(file) == ["xxunk", "the"]


def test_weights_without_a_list_of_words_say_so(tmp_path: Path) -> None:
    folder = released(tmp_path / "wt103", first_generation(6), FIRST)
    (folder / "itos_wt103.pkl").unlink()
    with pytest.raises(CheckpointError, match=r"wt103 has fwd_wt103.h5, but no list of words \(itos"):
        find_format(folder)


@pytest.mark.parametrize(
    "files", [["tf_model.h5"], ["tf_model.h5", "model.safetensors"], ["pytorch_model.bin", "a.pth"]]
)
def test_weights_of_transformers_are_not_taken_for_fastais(files: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        find_format(tmp_path)
    assert "fastai" not in str(caught.value) and "config.json" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    state = first_generation(6)
    state["0.rnns.1.module.bias_ih_l0"][2] = value
    folder = released(tmp_path / "wt103", state, FIRST)
    with pytest.raises(CheckpointError, match=r"fwd_wt103.h5: encoder.layers.1.bias_ih_l0 has numbers that are not f"):
        convert(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()
