"""Tensor files of other tools: equal to what was written, or a clear one-line error; nothing in them is executed."""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from firth.convert.weights import find_tensors, read_tensors
from firth.errors import CheckpointError

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(3, 4),
        "a.bias": torch.randn(3),
        "half": torch.randn(5).half(),
        "brain": torch.randn(2, 2).bfloat16(),
        "double": torch.randn(2).double(),
        "ids": torch.arange(6)[None],
        "one": torch.tensor(2.0),
        "none": torch.zeros(0, 3),
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].dtype == t.dtype and found[n].shape == t.shape and torch.equal(found[n], t)
        for n, t in expected.items()
    )


def legacy(path: Path, state: Any) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


WRITERS: dict[str, Callable[[Path, dict[str, Tensor]], object]] = {
    "model.safetensors": lambda path, state: save_file(state, path),
    "pytorch_model.bin": lambda path, state: torch.save(state, path),
    "old.bin": lambda path, state: legacy(path, state),
}
every_form = pytest.mark.parametrize("name", list(WRITERS))


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_tensors(path)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 500


@every_form
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, tensors())
    assert same(read_tensors(tmp_path / name), tensors())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_numbers_stay_in_the_file_until_they_are_used(name: str, tmp_path: Path) -> None:
    """The tensor maps the file and is no copy: a write to the file shows in the tensor."""
    path = tmp_path / name
    WRITERS[name](path, {"x": torch.full((1000,), 7.0)})
    found = read_tensors(path)["x"]
    place = path.read_bytes().index(struct.pack("<2f", 7.0, 7.0))
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(struct.pack("<f", 8.0))
    assert found[0] == 8.0


def test_floats_of_eight_bits_are_widened(tmp_path: Path) -> None:
    save_file({"x": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn)}, tmp_path / "x.safetensors")
    found = read_tensors(tmp_path / "x.safetensors")["x"]
    assert found.dtype == torch.float32 and found.tolist() == [1.5, -2.0]


def test_parameters_and_tied_tensors_of_a_state_dict(tmp_path: Path) -> None:
    shared = torch.randn(2, 3)
    torch.save({"a": torch.nn.Parameter(shared), "b": shared}, tmp_path / "x.bin")
    found = read_tensors(tmp_path / "x.bin")
    assert torch.equal(found["a"], shared) and torch.equal(found["b"], shared)


class _Code:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_named_and_never_run(zipped: bool, tmp_path: Path) -> None:
    evil = {"a": _Code(tmp_path / "made")}
    torch.save(evil, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    refused(tmp_path / "x.bin", r"holds more than tensors \(posix\.mkdir\).*nothing of it was run.*safetensors")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("state", "message"), [([1, 2], "holds list"), ({1: torch.zeros(1)}, "holds dict")])
def test_a_pickle_of_something_else(state: Any, message: str, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "x.bin")
    refused(tmp_path / "x.bin", message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "x is int, expected a tensor"),
        ({"y": torch.zeros(1)}, "x is dict"),
        (torch.eye(2).to_sparse(), "of a kind that no published BERT has"),
        (torch.zeros(1).expand(10**12), "of which the file holds only a part"),
    ],
)
def test_what_is_no_plain_tensor(value: Any, message: str, tmp_path: Path) -> None:
    torch.save({"x": value}, tmp_path / "x.bin")
    refused(tmp_path / "x.bin", message)


def test_an_archive_that_unpacks_to_more_than_it_is(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(100_000)}, tmp_path / "x.bin")
    with zipfile.ZipFile(tmp_path / "x.bin") as old, zipfile.ZipFile(tmp_path / "y.bin", "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry), zipfile.ZIP_DEFLATED)
    assert (tmp_path / "y.bin").stat().st_size < 10_000
    refused(tmp_path / "y.bin", "unpacks to more than its own size")


def header(path: Path, table: Any, data: bytes = b"", n: int | None = None) -> Path:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text) if n is None else n) + text + data)
    return path


def entry(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("table", "n_bytes", "n"),
    [
        ({"a": entry(0, 8, 2)}, 9, None),  # a byte left over
        ({"a": entry(0, 8, 2)}, 7, None),  # a byte missing
        ({"a": entry(4, 12, 2)}, 12, None),  # starts late
        ({"a": entry(0, 4, 1), "b": entry(8, 12, 1)}, 12, None),  # a gap
        ({"a": entry(0, 8, 2), "b": entry(4, 12, 2)}, 12, None),  # an overlap
        ({"a": entry(0, 8, 3)}, 8, None),  # wrong size
        ({"a": entry(0, 8, -1)}, 8, None),
        ({"a": entry(0, 8, 2**62, 2**62)}, 8, None),
        ({"a": entry(0, 8, 2, dtype="Q8")}, 8, None),
        ({"a": entry(0, 8, 2)}, 8, 2**63),  # headers that would take all memory
        ({"a": entry(0, 8, 2)}, 8, 101 * 2**20),
        (b"[]", 0, None),
        (b'{"a', 0, None),
        (b"\xff\xfe", 0, None),
    ],
)
def test_headers_that_lie(table: Any, n_bytes: int, n: int | None, tmp_path: Path) -> None:
    refused(header(tmp_path / "x.safetensors", table, bytes(n_bytes), n), "cannot be read")


@every_form
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "cannot be read|holds"),
        (b"PK\x03\x04", "cannot be read"),
        (b"\x00" * 64, "cannot be read|holds"),
        (b"<html>not found</html>", "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a pointer of Git LFS"),
    ],
)
def test_what_is_not_a_tensor_file(name: str, text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    refused(tmp_path / name, message)


@pytest.mark.parametrize("text", [b"epoch,loss\n1,2\n", b"not a model\n", b"hello\n"])
def test_text_under_the_name_of_a_pickle(text: bytes, tmp_path: Path) -> None:
    """Torch's own message gives only a byte value or an internal error."""
    (tmp_path / "pytorch_model.bin").write_bytes(text)
    refused(tmp_path / "pytorch_model.bin", "not written by torch, or it is damaged")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    refused(tmp_path / name, "cannot be read")


@every_form
@FUZZ
@given(data=st.data())
def test_a_changed_byte_is_an_error_or_a_number(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Any change gives either tensors or CheckpointError."""
    path = tmp_path / name
    if not path.exists():
        WRITERS[name](path, tensors())
        (tmp_path / "whole").write_bytes(path.read_bytes())
    raw = bytearray((tmp_path / "whole").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1) | st.integers(0, min(len(raw) - 1, 400)))
        raw[place] = data.draw(st.integers(0, 255))
    changed = tmp_path / f"changed{path.suffix}"
    changed.write_bytes(bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))]))
    try:
        found = read_tensors(changed)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(tensor, Tensor) for tensor in found.values())
        sum(float(tensor.double().nansum()) for tensor in found.values())  # every number can be read


def sharded(folder: Path, suffix: str = ".safetensors") -> Path:
    """Two files and their index."""
    whole, files = tensors(), {}
    for number, names in enumerate(
        (["a.weight", "half"], ["a.bias", "brain", "double", "ids", "one", "none"]), start=1
    ):
        file = f"part-{number}{suffix}"
        part = {name: whole[name] for name in names}
        if suffix == ".bin":
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file)
        files |= dict.fromkeys(names, file)
    index = folder / f"model{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_several_files_by_their_index(suffix: str, tmp_path: Path) -> None:
    assert same(read_tensors(sharded(tmp_path, suffix)), tensors())


def remapped(index: Path, name: str, place: Any) -> None:
    about = json.loads(index.read_text())
    about["weight_map"][name] = place
    index.write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("../part-1.safetensors", "expected a file of the same folder"),
        ("/etc/passwd", "expected a file of the same folder"),
        ("deep/part-1.safetensors", "expected a file of the same folder"),
        ("..\\part-1.safetensors", "expected a file of the same folder"),
        ("..", "expected a file of the same folder"),
        ("", "expected a file of the same folder"),
        ("x" * 300 + ".safetensors", "expected a file of the same folder"),
        ("a\0.safetensors", "expected a file of the same folder"),
        ("passwd", "expected a name with .safetensors or .bin"),
        ("part-3.safetensors", "part-3.safetensors, which is not there"),
        ("part-2.safetensors", "disagree about 'a.weight'"),
        (3, "expected the name of a file for each tensor"),
    ],
)
def test_an_index_that_points_elsewhere(place: Any, message: str, tmp_path: Path) -> None:
    index = sharded(tmp_path)
    remapped(index, "a.weight", place)
    refused(index, message)


def test_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    index = sharded(tmp_path / "in")
    os.rename(tmp_path / "in" / "part-1.safetensors", tmp_path / "outside.safetensors")
    os.symlink("../outside.safetensors", tmp_path / "in" / "part-1.safetensors")
    refused(index, "part-1.safetensors is a link that leaves the folder")


def test_links_of_the_hubs_cache_stay_in_the_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "abc"
    blobs = tmp_path / "models--a--b" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    index = sharded(folder)
    for path in list(folder.iterdir()):
        os.rename(path, blobs / path.name)
        os.symlink(f"../../blobs/{path.name}", path)
    assert same(read_tensors(index), tensors())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "weight_map: expected"),
        ('{"weight_map": {}}', "weight_map: expected"),
        ('{"weight_map": []}', "weight_map: expected"),
        ("[]", "expected a JSON object"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_broken_index(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path / "model.safetensors.index.json", message)


@FUZZ
@given(place=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_changed_byte_of_an_index(place: int, byte: int, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    if not index.exists():
        sharded(tmp_path)
        (tmp_path / "whole").write_bytes(index.read_bytes())
    raw = bytearray((tmp_path / "whole").read_bytes())
    raw[place % len(raw)] = byte
    index.write_bytes(bytes(raw))
    try:
        assert same(read_tensors(index), tensors())
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_weights_of_a_folder_are_found_in_order(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no weights: expected model.safetensors or pytorch_model.bin$"):
        find_tensors(tmp_path)
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(CheckpointError, match=r"only tf_model\.h5 \(TensorFlow\): save it as safetensors"):
        find_tensors(tmp_path)
    for name in (
        "pytorch_model.bin.index.json",
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "model.safetensors",
    ):
        (tmp_path / name).touch()
        assert find_tensors(tmp_path).name == name


def test_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(io.BytesIO().getvalue())
    refused(tmp_path / "weights.pt", r"expected a name that ends in \.safetensors or \.bin")
