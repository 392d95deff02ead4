"""Tokenizers of published folders: the same ids as transformers or Google's code; and how casing is determined."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from firth.errors import TokenizerError
from firth.text.published import load_tokenizer, read_published
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdeéABCDEÉ한국漢字가나,."
CASED = [*SPECIALS, *(form for c in LETTERS for form in (c, "##" + c))]
LOWER = [*SPECIALS, *(form for c in "abcdeé한국漢字가나,." for form in (c, "##" + c))]
BARE = [*SPECIALS, *(form for c in "한국漢字가나,." for form in (c, "##" + c))]
TEXT = "Abé É 한국 가漢a나, B."


def folder(path: Path, pieces: list[str], about: dict[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    if about is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(about))
    return path


def with_json(path: Path, pieces: list[str], *, lowercase: bool) -> Path:
    """tokenizer.json as transformers writes it for a BERT."""
    backend = Backend(
        models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(list(SPECIALS))
    backend.save(str(path / "tokenizer.json"))
    return path


def google(pieces: list[str], lowercase: bool) -> Tokenizer:
    return Tokenizer.from_vocab(pieces, lowercase=lowercase, google=True)


@pytest.mark.parametrize(
    ("pieces", "about", "lowercase", "why"),
    [
        (CASED, None, False, "cased (from the tokens)"),
        (LOWER, None, True, "lower-cased (from the tokens)"),
        (LOWER, {}, True, "lower-cased (from the tokens)"),
        (CASED, {"do_lower_case": False}, False, "cased (tokenizer_config.json)"),
        (BARE, {"do_lower_case": True}, True, "lower-cased (tokenizer_config.json)"),
        (LOWER, {"do_lower_case": True, "strip_accents": True}, True, "lower-cased (tokenizer_config.json)"),
        (CASED, {"do_lower_case": False, "strip_accents": False}, False, "cased (tokenizer_config.json)"),
        (CASED, {"do_lower_case": None, "tokenizer_class": "BertTokenizerFast"}, False, "cased (from the tokens)"),
        # The published Chinese model has this setting, although Google's code lower-cased for it.
        (
            LOWER,
            {"do_lower_case": False},
            False,
            "cased (tokenizer_config.json); yet the tokens look lower-cased: --uncased",
        ),
    ],
)
def test_a_bare_vocabulary_is_read_as_googles_code_reads_it(
    pieces: list[str], about: dict[str, Any] | None, lowercase: bool, why: str, tmp_path: Path
) -> None:
    found, how = read_published(folder(tmp_path / "m", pieces, about))
    assert found.fingerprint == google(pieces, lowercase).fingerprint
    assert how.startswith(why)
    assert load_tokenizer(tmp_path / "m").fingerprint == found.fingerprint


@pytest.mark.parametrize(
    "flags",
    [
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
        {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False},
    ],
)
def test_what_googles_code_cannot_do_is_done_as_in_transformers(flags: dict[str, Any], tmp_path: Path) -> None:
    found, _ = read_published(folder(tmp_path / "m", CASED, flags))
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizer(vocab=str(tmp_path / "m" / "vocab.txt"), **flags)
    assert found.encode(TEXT).ids == theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert found.fingerprint != google(CASED, found.lowercase).fingerprint
    found.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == found.fingerprint


@pytest.mark.parametrize("in_json", [True, False])
@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "flags", [{"do_lower_case": True}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}]
)
def test_tokenizer_json_gives_the_ids_of_transformers(
    in_json: bool, kind: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    """Even if the two files contradict each other."""
    transformers = pytest.importorskip("transformers")
    path = folder(tmp_path / "m", CASED, {"tokenizer_class": kind, **flags})
    with_json(path, CASED, lowercase=in_json)
    (path / "config.json").write_text('{"model_type": "bert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    found, how = read_published(path)
    assert found.encode(TEXT).ids == theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert how.startswith("lower-cased" if found.lowercase else "cased")


def test_tokenizer_json_alone_says_all(tmp_path: Path) -> None:
    path = with_json(folder(tmp_path / "m", CASED), CASED, lowercase=True)
    found, how = read_published(path)
    assert found.lowercase and how == "lower-cased (tokenizer.json)"
    assert found.fingerprint == Tokenizer.load(path).fingerprint


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_tokens_that_the_vocabulary_lacks_are_not_lost(name: str, tmp_path: Path) -> None:
    pieces = [*SPECIALS, "the", "cat"]
    about = {"added_tokens_decoder": {str(len(pieces)): {"content": "[ent]"}, "0": {"content": "[PAD]"}}}
    path = folder(tmp_path, pieces, about if name.startswith("tok") else {})
    if name.startswith("added"):
        (path / name).write_text(json.dumps({"[ent]": len(pieces)}))
    with pytest.raises(TokenizerError, match=rf"{name} has tokens that vocab.txt lacks \(number {len(pieces)}"):
        read_published(path, lowercase=True)


def test_our_own_folder_is_read_as_it_is(tmp_path: Path) -> None:
    made = Tokenizer.from_vocab(LOWER, lowercase=True)
    made.save(tmp_path)
    assert read_published(tmp_path)[0].fingerprint == made.fingerprint


def test_the_tokenizer_of_a_run_is_that_of_its_model(tiny_run: Path) -> None:
    assert load_tokenizer(tiny_run).fingerprint == load_tokenizer(tiny_run / "model").fingerprint


def test_a_vocabulary_that_tells_nothing_has_to_be_told(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", BARE)
    with pytest.raises(TokenizerError, match=r"neither the folder nor the tokens show .* --cased, or --uncased"):
        read_published(path)
    for lowercase in (True, False):
        found, how = read_published(path, lowercase=lowercase)
        assert found.fingerprint == google(BARE, lowercase).fingerprint and how.endswith("(as asked)")


def test_what_is_asked_goes_above_the_files_but_not_above_the_pieces(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", LOWER, {"do_lower_case": False})
    assert read_published(path, lowercase=True)[0].fingerprint == google(LOWER, True).fingerprint
    with_json(path, LOWER, lowercase=False)
    assert read_published(path, lowercase=True)[0].lowercase
    with pytest.raises(TokenizerError, match="--uncased was asked for, but the tokens are cased"):
        read_published(folder(tmp_path / "n", CASED), lowercase=True)


def test_a_file_in_place_of_the_folders(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CASED, {"do_lower_case": False})
    (tmp_path / "other.txt").write_text("".join(f"{piece}\n" for piece in [*CASED, "z"]))
    found, how = read_published(path, vocab=tmp_path / "other.txt")
    assert found.size == len(CASED) + 1 and how == "cased (tokenizer_config.json)"


@pytest.mark.parametrize(
    ("pieces", "about", "message"),
    [
        (CASED, {"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' splits text in its own way"),
        ([*SPECIALS, "▁a", "b"], {}, "these are SentencePiece tokens"),
        (CASED, {"do_lower_case": "no"}, "do_lower_case = 'no': expected true or false"),
        (["a", "b"], {}, "lacks"),
    ],
)
def test_what_is_no_wordpiece(pieces: list[str], about: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message):
        read_published(folder(tmp_path / "m", pieces, about))


def test_broken_files(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", CASED)
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read as JSON"):
        read_published(path)
    (path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"\N{SUPERSCRIPT TWO}": {}}}))
    assert read_published(path)[0].pieces == CASED


@pytest.mark.parametrize(
    ("name", "lowercase"),
    [("uncased", True), ("cased", False), ("multilingual-cased", False), ("chinese", True)],
)
def test_googles_released_vocabularies(name: str, lowercase: bool, shared_data: Path, tmp_path: Path) -> None:
    """As a Hugging Face folder with only vocab.txt: Google's exact behaviour, with the right casing."""
    raw = (shared_data / "bert-vocab" / f"bert-base-{name}-vocab.txt").read_text("utf-8")
    (tmp_path / "vocab.txt").write_text(raw, "utf-8")
    found, how = read_published(tmp_path)
    assert found.lowercase is lowercase and "from the tokens" in how
    # A word of 150 letters and a private-use character: the port's limits and classes differ.
    assert found.unk_id not in found.encode("a" * 150).ids
    assert len(found.encode("x\ue000y").ids) > len(found.encode("xy").ids) or found.encode("x\ue000y").ids == [
        found.unk_id
    ]


def test_special_tokens_of_others_such_as_markers_are_tokens_of_a_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers (extra: parity) is not here")
    plain = Tokenizer.from_vocab([*SPECIALS, "the", "river", "[", "]", "e", "##1", "mask"], lowercase=True)
    plain.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), mask_token="[MASK]")
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    theirs.save_pretrained(tmp_path / "marked")
    found = load_tokenizer(tmp_path / "marked")
    text = "the [E1] river [/E1] the"
    assert found.pieces[-2:] == ["[E1]", "[/E1]"]
    assert found.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
    # Its own special tokens remain text.
    assert found.mask_id not in found.encode("the [MASK]").ids
    found.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").encode(text).ids == found.encode(text).ids
