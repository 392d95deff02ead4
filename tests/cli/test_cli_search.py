"""``firth search``."""

import json
from pathlib import Path

import pytest


def test_embed_once_then_search(firth, tiny_run: Path, tmp_path: Path) -> None:
    texts, index = tmp_path / "lines.txt", tmp_path / "index"
    texts.write_text("the river\na green hill\nthe market\n", "utf-8")
    built = firth("search", index, "--texts", texts, "--model", tiny_run)
    assert built.code == 0 and f"{index}: 3 texts" in built.out and f"next: firth search {index} 'a text'" in built.out
    found = firth("search", index, "the market", "--top-k", 1)
    assert found.out.splitlines()[0] == "the market" and found.out.splitlines()[1].split(maxsplit=2)[1:] == [
        "3",
        "the market",
    ]
    several = firth("search", index, "--json", stdin=b"the river\n\nthe market\n")
    assert "stdin: 1 blank line left out" in several.err
    lines = [json.loads(line) for line in several.out.splitlines()]
    assert [(line["query"], line["hits"][0]["text"]) for line in lines] == [("the river",) * 2, ("the market",) * 2]


def test_refusals(firth, tiny_run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "lines.txt"
    texts.write_text("a\n", "utf-8")
    assert "--model is missing" in firth("search", tmp_path / "i", "--texts", texts).complaint
    assert "is not an index" in firth("search", tmp_path / "none", "x").complaint
    assert "--layer, --pool and --columns" in firth("search", tmp_path / "none", "x", "--layer", 1).complaint
    folder = firth("search", tmp_path / "i", "--texts", tmp_path, "--model", tiny_run)
    assert folder.code == 2 and "is a folder: give a file with one text a line" in folder.complaint
    missing = firth("search", tmp_path / "i", "--texts", tmp_path / "no.txt", "--model", tiny_run)
    assert missing.code == 2 and "no such file" in missing.complaint


def test_where_no_index_is_the_command_works_as_it_is_printed(
    firth, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines.txt").write_text("the river\nthe market\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert firth("embed", tiny_run, "--input", "lines.txt", "--out", "vectors.npy").code == 0
    refused = firth("search", "vectors.npy", "the river")
    assert "vectors.npy holds vectors without their texts and their model, and is no index" in refused.complaint
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("a", "utf-8")
    for wrong, made in (
        ("vectors.npy", "vectors-index"),
        ("vectors.npy", "vectors-index2"),
        ("folder", "folder-index"),
    ):
        refused = firth("search", wrong, "the river")
        command = refused.complaint.split(": firth ")[1].split(" makes one")[0]
        assert refused.code == 2 and command == f"search {made} --texts FILE --model MODEL"
        typed = [{"FILE": "lines.txt", "MODEL": str(tiny_run)}.get(word, word) for word in command.split()]
        assert firth(*typed).code == 0 and firth("search", made, "the river").code == 0


def test_the_folder_itself_is_no_index(firth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = firth("search", ".", "the river")
    assert refused.code == 2 and f"firth search {tmp_path.stem}-index --texts FILE" in refused.complaint
    assert "firth search texts-index --texts FILE" in firth("search", "/", "the river").complaint


def test_a_query_that_the_model_cannot_read_is_said(firth, tiny_run: Path, tmp_path: Path) -> None:
    texts, index = tmp_path / "lines.txt", tmp_path / "index"
    texts.write_text("the river\nthe market\n", "utf-8")
    firth("search", index, "--texts", texts, "--model", tiny_run)
    assert "'ꙮ ꙮ the': 2 of 3 tokens are [UNK] to the model" in firth("search", index, "ꙮ ꙮ the").err
    assert "'': no token in it" in firth("search", index, "").err
    assert "means" not in firth("search", index, "the river").err
    assert "1 of 1 tokens are [UNK]" in firth("fill-mask", tiny_run, "ꙮ [MASK]").err
    near = firth("search", tmp_path / "indx", "the river")
    assert near.code == 2 and f"no such index; did you mean {index}?" in near.complaint


def test_a_model_that_is_not_found_from_here_is_asked_for(firth, tiny_run: Path, tmp_path: Path, monkeypatch) -> None:
    texts, index = tmp_path / "lines.txt", tmp_path / "index"
    texts.write_text("the river\nthe market\n", "utf-8")
    monkeypatch.chdir(tiny_run.parent)
    assert firth("search", index, "--texts", texts, "--model", Path(tiny_run.name)).code == 0
    monkeypatch.chdir(tmp_path)
    lost = firth("search", index, "the market")
    assert lost.code == 2 and "is not found from here" in lost.complaint and "give it with --model" in lost.complaint
    assert firth("search", index, "the market", "--model", tiny_run).code == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", '\ufeffid,본문,label\r\n1,"a1, b2",x\r\n2,"c3\nb2",y\r\n'),
        ("t.jsonl", '{"본문": "a1, b2"}\n{"본문": "c3\\nb2"}\n'),
    ],
)
def test_the_texts_of_a_table_are_embedded(firth, tiny_run: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, "utf-8", newline="")
    built = firth("search", tmp_path / "i", "--texts", tmp_path / name, "--columns", "text=본문", "--model", tiny_run)
    assert built.code == 0 and "2 texts" in built.out
    hits = json.loads(firth("search", tmp_path / "i", "a1, b2", "--json").out)["hits"]
    assert {hit["text"] for hit in hits} == {"a1, b2", "c3 b2"} and hits[0]["text"] == "a1, b2"
    lines = firth("embed", tiny_run, "--input", tmp_path / name, "--columns", "text=본문").out.splitlines()
    assert len(lines) == 2
    unnamed = firth("embed", tiny_run, "--input", tmp_path / name)
    assert unnamed.code == 2 and "본문" in unnamed.complaint
    (tmp_path / "t.txt").write_text("a1\n")
    for wrong in (("--input", tmp_path / "t.txt"), ("a1",), ()):
        refused = firth("embed", tiny_run, *wrong, "--columns", "text=9")
        assert refused.code == 2, wrong
