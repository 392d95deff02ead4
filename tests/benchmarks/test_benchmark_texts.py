"""Real texts if available, otherwise made-up ones of the same lengths."""

import json
from pathlib import Path

import pytest

from firth.text.sentences import split_sentences
from firth.text.tokenizer_kinds import SPECIALS

NOWHERE = Path("nowhere")


def write_data(folder: Path) -> Path:
    """The files that are read, with a few texts."""
    paragraph = {"context": "A long paragraph of it.", "qas": [{"question": "What?"}, {"question": "Who was it?"}]}
    files = {
        "bert-vocab/bert-base-uncased-vocab.txt": "\n".join([*SPECIALS, "good", "bad", "film", "what", "?"]) + "\n",
        "glue/SST-2/dev.tsv": "sentence\tlabel\ngood film \t1\nbad film \t0\n",
        "squad-v1.1/dev.json": json.dumps({"data": [{"paragraphs": [paragraph]}]}),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def test_real_texts(script, tmp_path: Path) -> None:
    texts = script("texts")
    data = write_data(tmp_path)
    tokenizer = texts.tokenizer_for(data)
    assert tokenizer.size == len(SPECIALS) + 5
    assert texts.read(data, "sentences") == ["good film", "bad film"]
    assert texts.read(data, "questions") == ["What?", "Who was it?"]
    assert texts.read(data, "paragraphs") == ["A long paragraph of it."]
    assert sorted(texts.texts(data, "sentences", 4, tokenizer)) == ["bad film"] * 2 + ["good film"] * 2
    mixed = texts.texts(data, "mixed", 8, tokenizer)
    assert len(mixed) == 8 and "A long paragraph of it." in mixed


@pytest.mark.parametrize("kind", ["sentences", "mixed"])
def test_made_up_texts_have_recorded_lengths(script, kind: str) -> None:
    texts = script("texts")
    tokenizer = texts.tokenizer_for(NOWHERE, 500)
    found = texts.texts(NOWHERE, kind, 64, tokenizer)
    assert len(found) == 64 and found == texts.texts(NOWHERE, kind, 64, tokenizer)
    lengths = [len(ids) for ids in tokenizer.ids_many(found)]
    recorded = {n for part in ("sentences", "questions", "paragraphs") for n in texts.recorded(part)}
    assert set(lengths) <= recorded and len(set(lengths)) > 5
    assert (max(lengths) > 60) == (kind == "mixed")


def test_a_text_of_made_up_documents(script, tmp_path: Path) -> None:
    texts = script("texts")
    tokenizer = texts.tokenizer_for(NOWHERE, 500)
    n_bytes = texts.write_text(tmp_path / "text.txt", 20_000, NOWHERE, tokenizer)
    text = (tmp_path / "text.txt").read_text("utf-8")
    assert n_bytes == (tmp_path / "text.txt").stat().st_size and 20_000 <= n_bytes < 40_000
    documents = text.strip().split("\n\n")
    assert len(documents) > 3 and {len(split_sentences(document)) for document in documents} == {20}
