"""Remote text and corpora read the same as local ones; missing, damaged or forbidden files give one-line errors."""

import gzip
import hashlib
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from firth import remote
from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.data.config import DataConfig, MaskingConfig
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus
from firth.errors import ConfigError, CorpusError, InputError
from firth.plan import text_tokens
from firth.remote import Cache, RemotePath, place_of
from firth.text.corpus import CorpusReader
from firth.text.finding import find_files
from firth.text.layouts import bert_layout

SYSTEM = fsspec.filesystem("memory")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test alone, and no delay between retries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote, "WAIT_S", 0)
    return tmp_path / "home" / "firth" / "shards"


@pytest.fixture
def bucket() -> str:
    """The address of an empty folder."""
    return f"memory://{uuid.uuid4().hex}"


def put(address: str, data: bytes) -> RemotePath:
    SYSTEM.pipe(address, data)
    found = place_of(address)
    assert isinstance(found, RemotePath)
    return found


def put_folder(folder: Path, address: str) -> str:
    for file in folder.rglob("*"):
        if file.is_file():
            put(f"{address}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return address


def test_a_plan_counts_the_tokens_of_a_corpus(tiny_corpus: Path, bucket: str) -> None:
    assert text_tokens([put_folder(tiny_corpus, f"{bucket}/corpus")]) == text_tokens([tiny_corpus])


def test_text_is_read_like_that_of_a_disk(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_RANGE", 7)
    texts = {"a.txt": "One, 둘.\nThree.\n\nFour.\n".encode(), "b/c.txt.gz": gzip.compress(b"Five.\n" * 50)}
    texts |= {".hidden/d.txt": b"no", "e.png": b"no"}
    for name, data in texts.items():
        put(f"{bucket}/texts/{name}", data)
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_bytes(data)
    theirs, ours = CorpusReader([f"{bucket}/texts"]), CorpusReader([tmp_path / "texts"])
    assert [str(file) for file in theirs.files] == [f"{bucket}/texts/a.txt", f"{bucket}/texts/b/c.txt.gz"]
    assert [d.paragraphs for d in theirs] == [d.paragraphs for d in ours]
    assert theirs.report == ours.report and theirs.bytes_consumed == ours.bytes_consumed == theirs.total_bytes
    assert find_files([f"{bucket}/texts/*.txt"]) == theirs.files[:1]
    assert find_files([f"file://{tmp_path}/texts/a.txt"]) == [tmp_path / "texts" / "a.txt"]
    assert CorpusReader([f"{bucket}/texts/a.txt"]).files == theirs.files[:1]


def test_a_key_that_a_path_would_change_is_refused(bucket: str) -> None:
    SYSTEM.pipe(f"{bucket}/texts//a.txt", b"One.\n")
    with pytest.raises(InputError, match="texts//a.txt: a part of the address is empty"):
        find_files([bucket])


def test_parquet_is_read_at_an_address(tmp_path: Path, bucket: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["One.", "Two."]}), tmp_path / "t.parquet")
    put(f"{bucket}/t.parquet", (tmp_path / "t.parquet").read_bytes())
    assert [d.paragraphs for d in CorpusReader([f"{bucket}/t.parquet"])] == [("One.",), ("Two.",)]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://none/a.txt", "memory://none/a.txt: no such file"),
        ("memory://none/*.txt", "no file matches"),
        ("memory://none//a.txt", "memory://none//a.txt: a part of the address is empty"),
        ("https://example.org/a.txt", "https:// is not supported: expected a path or one of s3://"),
        ("s3://someone:hidden@bucket/a.txt", "leave them out"),
    ],
)
def test_what_cannot_be_found_is_said(address: str, said: str) -> None:
    with pytest.raises(InputError, match="^[^\n]*$") as caught:
        find_files([address])
    assert said in str(caught.value) and "hidden" not in str(caught.value)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(scheme: str) -> Any:
        raise ImportError(f"Install something to access {scheme}")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(InputError, match=r"pip install 'firth\[remote\]' \(s3fs\)"):
        find_files(["s3://bucket/a.txt"])


class NoCredentialsError(Exception):
    """Has the name of botocore's error."""


@pytest.mark.parametrize("error", [PermissionError("AKIA-secret"), NoCredentialsError("AKIA-secret")])
def test_credentials_are_asked_for_and_never_printed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(SYSTEM), "isfile", refused)
    with pytest.raises(InputError, match="credentials for memory:// are missing or refused") as caught:
        find_files(["memory://bucket/a.txt"])
    assert "secret" not in str(caught.value)


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let the first ``times`` reads of each list entry fail; returns the list of reads."""
    real, calls = type(SYSTEM).cat_file, list[int]()

    def sometimes(self: Any, path: str, start: int | None = None, end: int | None = None, **more: Any) -> Any:
        calls.append(start or 0)
        if len(calls) <= times:
            raise OSError("connection reset by secret")
        return real(self, path, start=start, end=end, **more)

    monkeypatch.setattr(type(SYSTEM), "cat_file", sometimes)
    return calls


def test_a_read_is_tried_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(f"{bucket}/a.txt", b"One.\n")
    calls = failing(monkeypatch, 2)
    assert path.open().read() == b"One.\n" and len(calls) == 3
    failing(monkeypatch, 3)
    with pytest.raises(InputError, match="a.txt: cannot be read after 3 tries: OSError$"):
        path.open().read()


def test_vocabulary_and_corpus_are_those_of_local_text(tiny_text: Path, tmp_path: Path, bucket: str) -> None:
    put(f"{bucket}/text.txt", tiny_text.read_bytes())
    for name, text in (("local", tiny_text), ("remote", f"{bucket}/text.txt")):
        build_vocab([text], tmp_path / name / "vocab", size=200, workers=1)
        prepare([text], tmp_path / name / "vocab", tmp_path / name / "corpus", hold_out=0.1, workers=1)
    ours, theirs = (Corpus(tmp_path / name / "corpus") for name in ("local", "remote"))
    assert ours.fingerprint == theirs.fingerprint
    (ours_from,), (theirs_from,) = ours.manifest.sources, theirs.manifest.sources
    assert theirs_from.path == f"{bucket}/text.txt" and theirs_from.sha256 == ours_from.sha256


def batches(corpus: Corpus, n: int) -> list[Any]:
    layout = bert_layout(corpus.tokenizer)
    loader = Loader(
        corpus,
        DataConfig(length=32, workers=0),
        MaskingConfig(),
        layout,
        predict="masked",
        budget_tokens=64,
        slots=1,
        seed=0,
    )
    steps = loader.steps(Place(), step=0)
    return [next(steps)[0][0].tokens.ids.tolist() for _ in range(n)]


def test_training_reads_the_same_batches_and_keeps_few_shards(tiny_corpus: Path, bucket: str, own_cache: Path) -> None:
    theirs = Corpus(put_folder(tiny_corpus, f"{bucket}/corpus"))
    ours = Corpus(tiny_corpus)
    assert theirs.fingerprint == ours.fingerprint and str(theirs.folder) == f"{bucket}/corpus"
    assert batches(theirs, 8) == batches(ours, 8)
    assert sorted(file.name for file in own_cache.iterdir()) == sorted(ours.shards("train")[0].sha256)
    # A second corpus does not copy again what is already cached.
    SYSTEM.rm(f"{bucket}/corpus/train-00000.ids.npy")
    assert batches(Corpus(f"{bucket}/corpus"), 2) == batches(ours, 2)
    # With no cache space, only the copy in use is kept.
    small = Corpus(f"{bucket}/corpus", cache_gb=0.0)
    (held_out,) = small.shards("dev")
    assert small.open(held_out).ids.tolist() == ours.open(held_out).ids.tolist()
    assert [file.name for file in own_cache.iterdir()] == [held_out.sha256[-1]]


def test_read_ahead_copies_what_is_opened_next(tiny_corpus: Path, bucket: str, own_cache: Path) -> None:
    corpus = Corpus(put_folder(tiny_corpus, f"{bucket}/corpus"))
    corpus.read_ahead(corpus.shards("dev"))
    assert corpus._cache is not None and corpus._cache._ahead is not None
    corpus._cache._ahead.join()
    assert {file.name for file in own_cache.iterdir()} == set(corpus.shards("dev")[0].sha256)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "has 0 bytes, expected"), (None, "no such file"), (b"other", "does not match its checksum")],
)
def test_a_damaged_shard_is_named(
    data: bytes | None, said: str, tiny_corpus: Path, bucket: str, own_cache: Path
) -> None:
    corpus = Corpus(put_folder(tiny_corpus, f"{bucket}/corpus"))
    address = f"{bucket}/corpus/train-00000.ids.npy"
    real = SYSTEM.cat(address)
    SYSTEM.rm(address)
    if data is not None:
        put(address, data and real[:-1] + bytes([real[-1] ^ 1]))
    with pytest.raises(CorpusError, match=f"^{address}.*{said}"):
        corpus.open(corpus.shards("train")[0])
    assert not own_cache.exists() or list(own_cache.iterdir()) == []


def test_a_copy_damaged_on_the_way_is_copied_again(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(f"{bucket}/a", b"good")
    real, calls = type(SYSTEM).cat_file, list[int]()

    def damaged(self: Any, *given: Any, **more: Any) -> Any:
        calls.append(1)
        return b"evil" if len(calls) == 1 else real(self, *given, **more)

    monkeypatch.setattr(type(SYSTEM), "cat_file", damaged)
    copy = Cache(100, tmp_path / "cache").get(path, 4, hashlib.sha256(b"good").hexdigest())
    assert copy.read_bytes() == b"good" and len(calls) == 2
    assert list((tmp_path / "cache").iterdir()) == [copy]


def test_two_that_copy_a_file_at_once_do_not_meet(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, or in two processes with the same id on two machines that share the folder."""
    path, digest = put(f"{bucket}/a", b"good"), hashlib.sha256(b"good").hexdigest()
    real, other = type(SYSTEM).cat_file, list[Path]()

    def meanwhile(self: Any, *given: Any, **more: Any) -> Any:
        found = real(self, *given, **more)
        if not other:
            other.append(tmp_path)
            other.append(Cache(100, tmp_path / "cache").get(path, 4, digest))
        return found

    monkeypatch.setattr(type(SYSTEM), "cat_file", meanwhile)
    copy = Cache(100, tmp_path / "cache").get(path, 4, digest)
    assert other[1] == copy and copy.read_bytes() == b"good"
    assert list((tmp_path / "cache").iterdir()) == [copy]


def test_an_address_without_a_corpus_is_said(bucket: str, tiny_corpus: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{bucket}/none: no corpus folder there"):
        Corpus(f"{bucket}/none")
    put_folder(tiny_corpus, f"{bucket}/corpus")
    put(f"{bucket}/corpus/manifest.json", b"{")
    with pytest.raises(CorpusError, match=f"{bucket}/corpus/manifest.json"):
        Corpus(f"{bucket}/corpus")


def test_text_and_corpus_in_a_bucket_of_s3(
    tiny_text: Path, tiny_corpus: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With s3fs and a server that speaks the S3 protocol, if both are installed."""
    s3fs = pytest.importorskip("s3fs", reason="the extra remote is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        system = s3fs.S3FileSystem()
        system.mkdir("bucket")
        system.put(str(tiny_text), "bucket/texts/a.txt")
        system.put(str(tiny_corpus), "bucket/corpus", recursive=True)
        theirs, ours = CorpusReader(["s3://bucket/texts"]), CorpusReader([tiny_text])
        assert [d.paragraphs for d in theirs] == [d.paragraphs for d in ours]
        assert batches(Corpus("s3://bucket/corpus"), 4) == batches(Corpus(tiny_corpus), 4)
        with pytest.raises(InputError, match="^s3://bucket/none: no such file"):
            find_files(["s3://bucket/none"])
    finally:
        server.stop()
