"""The container of TensorFlow checkpoints: valid files are read exactly, and impossible claims are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import bundles
import numpy as np
import pytest
from bundles import block, checksum, entry, header, index_of, message, number, table, varint
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.convert import tf_bundle
from firth.convert.tf_bundle import bundle_prefix, read_bundle, write_bundle
from firth.errors import CheckpointError


def tensors() -> dict[str, np.ndarray]:
    """Every supported dtype that NumPy has, up to four axes, a scalar and an empty array."""
    rng = np.random.default_rng(0)
    return {
        "bert/layer_0/kernel": rng.standard_normal((3, 5), np.float32),
        "bert/layer_0/kernel/adam_m": rng.standard_normal((3, 5), np.float32),
        "bert/layer_0/kernel/adam_v": rng.standard_normal((3, 5), np.float32),
        "bert/layer_0/bias": rng.standard_normal(5).astype(np.float16),
        "bert/layer_1/kernel": rng.standard_normal((2, 1, 2, 3)),
        "bert/empty": np.empty((0, 4), np.float32),
        "global_step": np.array(-(2**40), np.int64),
        "numbers": np.arange(-3, 4, dtype=np.int32),
        "이름/é": np.array(1.5, np.float32),
    }


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return sorted(found) == sorted(expected) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


# Reading


@pytest.mark.parametrize("n_shards", [1, 2, 5])
@pytest.mark.parametrize(("per_block", "restart_every"), [(10**9, 16), (1, 1), (3, 2), (4, 100)])
def test_shards_and_blocks(tmp_path: Path, n_shards: int, per_block: int, restart_every: int) -> None:
    prefix = tmp_path / "model.ckpt"
    bundles.write(prefix, tensors(), n_shards=n_shards, per_block=per_block, restart_every=restart_every)
    assert same(read_bundle(prefix), tensors())


def test_fields_that_are_zero_may_be_there(tmp_path: Path) -> None:
    bundles.write(tmp_path / "x", tensors(), zeros=True)
    assert same(read_bundle(tmp_path / "x"), tensors())


def test_unknown_fields_do_not_matter(tmp_path: Path) -> None:
    raw = np.arange(2, dtype=np.float32).tobytes()
    shape = message(2, number(1, 2) + message(2, b"name of the axis"))
    strange = number(90, 7) + varint(91 << 3 | 1) + bytes(8) + varint(92 << 3 | 5) + bytes(4) + message(93, b"a")
    line = number(1, 1) + message(2, shape) + strange + number(5, 8) + varint(6 << 3 | 5) + checksum(raw)
    (tmp_path / "x.index").write_bytes(index_of([(b"", strange + header(1)), (b"w", line)]))
    (tmp_path / "x.data-00000-of-00001").write_bytes(raw)
    assert read_bundle(tmp_path / "x")["w"].tolist() == [0, 1]


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.0e38, 0.0, np.inf], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    bundles.write(tmp_path / "x", {"w": halves}, codes={"w": 14})
    found = read_bundle(tmp_path / "x")["w"]
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), halves.astype(np.uint32) << 16)
    assert found[:2].tolist() == [1.0, -2.5]


def test_arrays_are_read_only_maps_of_the_file(tmp_path: Path) -> None:
    bundles.write(tmp_path / "x", tensors())
    found = read_bundle(tmp_path / "x")
    assert not any(array.flags.writeable for array in found.values())
    assert isinstance(found["bert/layer_0/kernel"], np.memmap)


def test_what_is_not_wanted_is_not_read(tmp_path: Path) -> None:
    """Its shard may be missing, its bytes damaged, its type unknown."""
    prefix = tmp_path / "x"
    state = {name: np.ones(3, np.float32) for name in ("a", "a/adam_m", "b")}
    bundles.write(prefix, state, n_shards=3, codes={"a/adam_m": 7})
    (tmp_path / "x.data-00001-of-00003").unlink()
    found = read_bundle(prefix, lambda name: not name.endswith("/adam_m"))
    assert sorted(found) == ["a", "b"]
    with pytest.raises(CheckpointError, match="'a/adam_m' has type 7: expected float32"):
        read_bundle(prefix)


def test_a_bundle_without_tensors(tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(index_of([(b"", header(1))]))
    assert read_bundle(tmp_path / "x") == {}


def fixture_prefix(shared_data: Path) -> Path:
    return shared_data / "tf-bert-fixture" / "bert_model.ckpt"


def test_a_file_of_the_original_writer(shared_data: Path) -> None:
    """The tensors fill the file in the order of their names; the checksums are the original writer's."""
    prefix = fixture_prefix(shared_data)
    found = read_bundle(prefix)
    raw = prefix.with_name("bert_model.ckpt.data-00000-of-00001").read_bytes()
    assert b"".join(found[name].tobytes() for name in sorted(found)) == raw
    config = json.loads((prefix.parent / "bert_config.json").read_text())
    assert found["bert/embeddings/word_embeddings"].shape == (config["vocab_size"], config["hidden_size"])
    assert found["global_step"].dtype == np.int64 and found["global_step"].shape == ()
    # 5 + 16 L + 2 + 5 + 2 variables, each with two moments, and the step.
    assert len(found) == 3 * (14 + 16 * config["num_hidden_layers"]) + 1


# Writing


def test_there_and_back(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m.ckpt", tensors())
    assert same(read_bundle(tmp_path / "m.ckpt"), tensors())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.ckpt.data-00000-of-00001", "m.ckpt.index"]


def test_the_original_writers_file_is_written_again_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    """All but the last key of the index block, which the original writer makes as short as possible."""
    prefix = fixture_prefix(shared_data)
    write_bundle(tmp_path / prefix.name, read_bundle(prefix))
    data, index = f"{prefix.name}.data-00000-of-00001", f"{prefix.name}.index"
    assert (tmp_path / data).read_bytes() == prefix.with_name(data).read_bytes()
    ours, theirs = (tmp_path / index).read_bytes(), prefix.with_name(index).read_bytes()
    blocks = theirs.index(b"\x00\x01\x03h\x00")
    assert blocks > 4000 and ours[:blocks] == theirs[:blocks]


def test_what_is_written_is_what_the_second_writer_writes(tmp_path: Path) -> None:
    """One tensor only: the second writer stores several in another order."""
    for state in ({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"s": np.array(3, np.int64)}, {}):
        write_bundle(tmp_path / "a", state)
        bundles.write(tmp_path / "b", state)
        for part in (".index", ".data-00000-of-00001"):
            assert (tmp_path / f"a{part}").read_bytes() == (tmp_path / f"b{part}").read_bytes()


def test_many_names_make_several_blocks(tmp_path: Path) -> None:
    many = {f"layer_{i}/{'x' * (i % 60)}/w": np.full(i % 3, i, np.float32) for i in range(6000)}
    write_bundle(tmp_path / "m", many)
    assert (tmp_path / "m.index").stat().st_size > tf_bundle._BLOCK_BYTES
    assert same(read_bundle(tmp_path / "m"), many)


@pytest.mark.parametrize("n_bytes", [1, 100, 10**9])
def test_blocks_of_any_size(tmp_path: Path, n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_bundle, "_BLOCK_BYTES", n_bytes)
    write_bundle(tmp_path / "m", tensors())
    assert same(read_bundle(tmp_path / "m"), tensors())


def test_arrays_of_any_layout(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    wide = np.broadcast_to(base, (2, 4, 6))
    state = {"turned": base.T, "cut": base[::2, ::3], "big": base.astype(">f4"), "wide": wide}
    write_bundle(tmp_path / "m", state)
    found = read_bundle(tmp_path / "m")
    assert all(np.array_equal(found[name], array) for name, array in state.items())
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


def test_an_older_bundle_is_replaced(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"old": np.ones(100, np.float32)})
    write_bundle(tmp_path / "m", {"new": np.ones(2, np.float32)})
    assert sorted(read_bundle(tmp_path / "m")) == ["new"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_older_bundle(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "m", {"old": np.ones(3, np.float32)})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf_bundle.os, name, fail)
    with pytest.raises(CheckpointError, match="m could not be written: No space left"):
        write_bundle(tmp_path / "m", {"new": np.ones(2, np.float32)})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none/m could not be written: No such file"):
        write_bundle(tmp_path / "none" / "m", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/m could not be written: Not a directory"):
        write_bundle(tmp_path / "file" / "m", {})


@pytest.mark.parametrize(("name", "dtype"), [("w", np.bool_), ("w", np.complex64), ("w", "U3"), ("", np.float32)])
def test_what_the_container_cannot_hold(tmp_path: Path, name: str, dtype: object) -> None:
    with pytest.raises(CheckpointError, match="cannot hold it"):
        write_bundle(tmp_path / "m", {name: np.zeros(2, dtype)})  # type: ignore[call-overload]
    assert list(tmp_path.iterdir()) == []


# Which paths identify a bundle


def test_every_part_of_a_bundle_means_it(tmp_path: Path) -> None:
    prefix = tmp_path / "bert_model.ckpt"
    bundles.write(prefix, tensors(), n_shards=2)
    parts = (".index", ".data-00000-of-00002", ".data-00001-of-00002", ".meta", "")
    assert {bundle_prefix(Path(f"{prefix}{part}")) for part in parts} == {prefix}
    assert bundle_prefix(tmp_path) == prefix


def test_paths_that_mean_none(tmp_path: Path) -> None:
    for name in ("a.index", "b.index", ".index"):
        (tmp_path / name).write_bytes(b"")
    empty = tmp_path / "folder.ckpt"
    empty.mkdir()
    (empty / ".index").write_bytes(b"")
    names = ("c", "c.index", ".index", "a.data-0-of-1", "a.index.gz")
    for path in (tmp_path, empty, Path("/"), *(tmp_path / name for name in names)):
        assert bundle_prefix(path) is None, path
    assert bundle_prefix(tmp_path / "a") == tmp_path / "a"


def test_a_prefix_that_is_also_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.ckpt").mkdir()
    bundles.write(tmp_path / "m.ckpt", tensors())
    assert bundle_prefix(tmp_path / "m.ckpt") == tmp_path / "m.ckpt"


# What is refused: broken indexes, broken entries, and entries that do not match the data

RAW = np.arange(6, dtype=np.float32).tobytes()
CRC = checksum(RAW)
GOOD = entry(1, (6,), 0, 24, CRC)


def index_with(line: bytes, *more: tuple[bytes, bytes], name: bytes = b"w", n_shards: int = 1) -> bytes:
    return index_of([(b"", header(n_shards)), (name, line), *more])


def one_block(data: bytes) -> bytes:
    return table([data], [b"z"])


def footer(*numbers: int) -> bytes:
    """Sixty zero bytes, then a footer of these numbers."""
    return bytes(60) + b"".join(map(varint, numbers)).ljust(40, b"\0") + bundles.MAGIC


def shaped(shape: bytes, size: int = 24) -> bytes:
    """An entry whose shape is given as raw bytes."""
    return number(1, 1) + message(2, shape) + number(5, size) + varint(6 << 3 | 5) + CRC


HEADER = [(b"", header(1))]
INDEX = index_with(GOOD)
HEADER_PLACE = varint(0) + varint(len(block(HEADER)))
EMPTY = entry(1, (0,), 0, 0, checksum(b""))
# Each takes a dozen bytes in the file and four thousand in memory.
MANY_LONG_NAMES = [(b"x" * 4000 + b"%05d" % i, EMPTY) for i in range(1100)]

BROKEN_TABLES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it does not end as the index"),
    "only a magic number": (bundles.MAGIC, "it does not end as the index"),
    "another file": (b"PK\x03\x04" + bytes(100), "it does not end as the index"),
    "a byte less": (INDEX[:-1], "it does not end as the index"),
    "a byte less in front": (INDEX[1:], "does not match its checksum"),
    "larger than any": (bytes(2**22 + 1), "it has 4,194,305 bytes"),
    "number without end": (bytes(60) + b"\xff" * 40 + bundles.MAGIC, "a number does not end"),
    "number of eleven bytes": (bytes(60) + (b"\x80" * 10).ljust(40, b"\1") + bundles.MAGIC, "does not end"),
    "number of 65 bits": (bytes(60) + (b"\xff" * 9 + b"\x02").ljust(40, b"\0") + bundles.MAGIC, "does not end"),
    "block beyond the end": (footer(0, 10**18, 0, 4), "a block lies outside"),
    "block far away": (footer(2**64 - 1, 4, 0, 4), "a block lies outside"),
    "block that runs into the footer": (footer(55, 1, 0, 4), "a block lies outside"),
    "snappy": (index_of([*HEADER, (b"w", GOOD)], kind=1), r"compressed \(snappy\)"),
    "another compression": (index_of([*HEADER, (b"w", GOOD)], kind=9), r"compressed \(method 9\)"),
    "more restarts than bytes": (one_block(block(HEADER, n_restarts=1000)), "number of restarts"),
    "4 billion restarts": (one_block(block(HEADER, n_restarts=-1)), "number of restarts"),
    "no restarts": (one_block(block(HEADER, n_restarts=0)), "number of restarts"),
    "a block of three bytes": (one_block(b"\1\0\0"), "number of restarts"),
    "a key shares more than there is": (one_block(b"\5\0\0" + block([])), "an entry does not fit"),
    "a key runs out of its block": (one_block(b"\0\x7f\0" + block([])), "an entry does not fit"),
    "a value runs out of its block": (one_block(b"\0\0\x7f" + block([])), "an entry does not fit"),
    "an entry stops within its numbers": (one_block(b"\0" + block([])), "an entry does not fit"),
    "a name of 5000 bytes": (index_with(GOOD, name=b"w" * 5000), "an entry does not fit"),
    "many long names": (one_block(block([*HEADER, *MANY_LONG_NAMES], 10**9)), "its names are beyond measure"),
    "a block that is read twice": (
        table([block(HEADER)], [b"a", b"b"], handles=[HEADER_PLACE] * 2),
        "its blocks overlap",
    ),
    "no header": (index_of([(b"w", GOOD)]), "it has no header"),
    "nothing": (table([], []), "it has no header"),
    "no shards": (index_with(GOOD, n_shards=0), "there are no data files"),
    "big-endian": (index_of([(b"", header(1) + number(2, 1)), (b"w", GOOD)]), "it is big-endian"),
    "twice": (index_with(GOOD, (b"w", GOOD)), "'w' is there twice"),
    "twice in two blocks": (index_of([*HEADER, (b"w", GOOD), (b"w", GOOD)], per_block=2), "'w' is there twice"),
    "not in order": (index_with(GOOD, (b"v", GOOD)), "its names are not in order"),
    "not in order in two blocks": (index_of([*HEADER, (b"w", GOOD), (b"v", GOOD)], per_block=2), "not in order"),
    "slices": (index_with(GOOD + message(7, b"")), "'w' is cut into slices"),
    "data of slices": (index_with(GOOD, name=b"\0\1w"), "slices of partitioned variables"),
    "a name that is no text": (index_with(GOOD, name=b"w\xff"), "slices of partitioned variables"),
    "TensorFlow 2": (index_with(GOOD, name=b"model/w/.ATTRIBUTES/VARIABLE_VALUE"), "an object checkpoint of .* 2"),
    "TensorFlow 2, its graph": (index_with(GOOD, name=b"_CHECKPOINTABLE_OBJECT_GRAPH"), "an object checkpoint"),
}

BROKEN_ENTRIES: dict[str, tuple[bytes, str]] = {
    "unknown type": (entry(7, (6,), 0, 24, CRC), "'w' has type 7: expected float32"),
    "no type": (GOOD[2:], "'w' has type 0"),
    "nothing": (b"", "'w' has type 0"),
    "shape too large": (entry(1, (7,), 0, 24, CRC), r"'w' has 24 bytes, but shape \(7,\) takes 28"),
    "shape too small": (entry(1, (5,), 0, 24, CRC), r"'w' has 24 bytes, but shape \(5,\) takes 20"),
    "another type's size": (entry(2, (6,), 0, 24, CRC), "takes 48"),
    "a product of 65 bits": (entry(1, (2**32 + 1, 2**32), 0, 2**34, CRC), "'w' has an impossible shape"),
    "a product that is right in 64 bits": (entry(1, (2**62 + 6,), 0, 24, CRC), "'w' has an impossible shape"),
    "no bytes, but axes without end": (entry(1, (0, 2**62, 2**62), 0, 0, checksum(b"")), "'w' has an impossible shape"),
    "a negative axis": (entry(1, (-6,), 0, 24, CRC), "'w' has an impossible shape"),
    "two negative axes": (entry(1, (-2, -3), 0, 24, CRC), "'w' has an impossible shape"),
    "no known number of axes": (shaped(number(3, 1)), "'w' has an impossible shape"),
    "forty axes": (entry(1, (1,) * 39 + (6,), 0, 24, CRC), "'w' has an impossible shape"),
    "shape that is no message": (shaped(b"\x12\x7f"), "ends within a field"),
    "axis that is no message": (shaped(message(2, b"\x08")), "a number does not end"),
    "group": (b"\x0b" + GOOD, "a field of unknown kind"),
    "half a checksum": (GOOD[:-2], "ends within a field"),
    "shard": (entry(1, (6,), 0, 24, CRC, shard=1), "'w' lies in data file 1 of 1"),
    "negative shard": (entry(1, (6,), 0, 24, CRC, shard=-1), "'w' lies in data file"),
}

BROKEN_PLACES: dict[str, tuple[bytes, str]] = {
    "a byte beyond the end": (entry(1, (6,), 1, 24, CRC), "'w' ends at byte 25, but the file has 24"),
    "far beyond the end": (entry(1, (6,), 2**63, 24, CRC), "'w' ends at byte 9,223,"),
    "a negative offset": (entry(1, (6,), -4, 24, CRC), "'w' ends at byte 18,446,"),
    "a terabyte": (entry(1, (2**38,), 0, 2**40, CRC), "'w' ends at byte 1,099,511,627,776"),
    "checksum": (entry(1, (6,), 0, 24, bytes(4)), "'w' does not match its checksum"),
    "no checksum": (GOOD[:-5], "'w' does not match its checksum"),
    "another part of the file": (entry(1, (3,), 8, 12, checksum(RAW[:12])), "'w' does not match its checksum"),
}


def refused(folder: Path, index: bytes, data: bytes, part: str, said: str) -> None:
    (folder / "m.index").write_bytes(index)
    (folder / "m.data-00000-of-00001").write_bytes(data)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_bundle(folder / "m")
    assert str(caught.value).startswith(f"{folder / part}: ") and "\n" not in str(caught.value)


def test_what_the_lies_are_made_of_is_read(tmp_path: Path) -> None:
    for index in (INDEX, one_block(block([*HEADER, (b"w", GOOD), *MANY_LONG_NAMES[:9]], 10**9))):
        (tmp_path / "m.index").write_bytes(index)
        (tmp_path / "m.data-00000-of-00001").write_bytes(RAW)
        assert read_bundle(tmp_path / "m")["w"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("case", BROKEN_TABLES)
def test_a_broken_table(tmp_path: Path, case: str) -> None:
    index, said = BROKEN_TABLES[case]
    refused(tmp_path, index, RAW, "m.index", said)


@pytest.mark.parametrize("case", BROKEN_ENTRIES)
def test_a_broken_entry(tmp_path: Path, case: str) -> None:
    line, said = BROKEN_ENTRIES[case]
    refused(tmp_path, index_with(line), RAW, "m.index", said)


@pytest.mark.parametrize("case", BROKEN_PLACES)
def test_a_broken_place(tmp_path: Path, case: str) -> None:
    line, said = BROKEN_PLACES[case]
    refused(tmp_path, index_with(line), RAW, "m.data-00000-of-00001", said)


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    half = entry(1, (3,), 12, 12, checksum(RAW[12:]))
    refused(tmp_path, index_with(GOOD, (b"x", half)), RAW, "m.data-00000-of-00001", "'x' overlaps another tensor")


def test_an_index_cut_anywhere(tmp_path: Path) -> None:
    for n_bytes in range(len(INDEX)):
        refused(tmp_path, INDEX[:n_bytes], RAW, "m.index", "truncated")


@pytest.mark.parametrize("n_bytes", [0, 1, 23])
def test_data_cut_anywhere(tmp_path: Path, n_bytes: int) -> None:
    refused(tmp_path, INDEX, RAW[:n_bytes], "m.data-00000-of-00001", f"but the file has {n_bytes}")


@pytest.mark.parametrize("part", ["m.index", "m.data-00000-of-00002", "m.data-00001-of-00002"])
def test_a_missing_file_is_named(tmp_path: Path, part: str) -> None:
    bundles.write(tmp_path / "m", tensors(), n_shards=2)
    (tmp_path / part).unlink()
    with pytest.raises(CheckpointError, match=f"{part} is missing: .* side by side"):
        read_bundle(tmp_path / "m")


@pytest.mark.parametrize("part", ["m.index", "m.data-00000-of-00001"])
def test_a_folder_in_the_place_of_a_file(tmp_path: Path, part: str) -> None:
    bundles.write(tmp_path / "m", tensors())
    (tmp_path / part).unlink()
    (tmp_path / part).mkdir()
    with pytest.raises(CheckpointError, match=f"{part} cannot be read: Is a directory"):
        read_bundle(tmp_path / "m")


# Damage of any kind: the same tensors, or an error

SMALL = {
    "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/kernel/adam_m": np.ones(2, np.float16),
    "b": np.array(7, np.int64),
    "c": np.empty((0, 2), np.float32),
}


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Flip a bit, or insert, delete, overwrite or cut off bytes."""
    kind = draw(st.sampled_from(["flip", "insert", "delete", "cut", "set"]))
    place = draw(st.floats(0, 1, exclude_max=True))
    new = draw(st.binary(min_size=1, max_size=8))

    def change(data: bytes) -> bytes:
        at = int(place * len(data))
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ 1 << new[0] % 8]) + data[at + 1 :]
        if kind == "cut":
            return data[:at]
        removed = {"insert": 0, "delete": len(new), "set": len(new)}[kind]
        return data[:at] + (b"" if kind == "delete" else new) + data[at + removed :]

    return change


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("small") / "m"
    bundles.write(prefix, SMALL, per_block=2, restart_every=2)
    return prefix


PARTS = (".index", ".data-00000-of-00001")


@given(part=st.sampled_from(PARTS), changes=st.lists(damage(), min_size=1, max_size=3))
@settings(max_examples=300)
def test_damaged_files(small: Path, part: str, changes: list[Callable[[bytes], bytes]]) -> None:
    prefix = small.with_name("damaged")
    for name in PARTS:
        data = Path(f"{small}{name}").read_bytes()
        for change in changes if name == part else ():
            data = change(data) if data else data
        Path(f"{prefix}{name}").write_bytes(data)
    try:
        found = read_bundle(prefix)
    except CheckpointError as error:
        assert str(error).startswith(f"{prefix}.") and "\n" not in str(error)
    else:
        assert same(found, SMALL)


@given(data=st.data())
@settings(max_examples=300)
def test_lies_with_the_right_checksums(small: Path, data: st.DataObject) -> None:
    """Correct checksums may cover any content: the result is an error or arrays within the file."""
    prefix = small.with_name("lying")
    lines = [*HEADER, (b"a", entry(1, (2,), 0, 8, checksum(RAW[:8]))), (b"b", entry(3, (), 8, 4, checksum(RAW[8:12])))]
    if data.draw(st.booleans()):
        changed = data.draw(damage())(block(lines, 2))
        index = one_block(changed)
    else:
        chosen = data.draw(st.integers(0, 2))
        lines[chosen] = (lines[chosen][0], data.draw(damage())(lines[chosen][1]))
        index = index_of(lines)
    Path(f"{prefix}.index").write_bytes(index)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(RAW)
    try:
        found = read_bundle(prefix)
    except CheckpointError as error:
        assert str(error).startswith(f"{prefix}.") and "\n" not in str(error)
    else:
        assert sum(array.nbytes for array in found.values()) <= len(RAW)


@given(st.binary(max_size=400))
@settings(max_examples=100)
def test_anything_before_a_magic_number(small: Path, data: bytes) -> None:
    prefix = small.with_name("anything")
    Path(f"{prefix}.index").write_bytes(data + bundles.MAGIC)
    with pytest.raises(CheckpointError):
        read_bundle(prefix)
