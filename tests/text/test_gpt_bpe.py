"""OpenAI GPT's tokenizer against the specification, written in plain Python, and against transformers."""

import itertools
import json
import lzma
import pickle
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import TokenizerError
from firth.text.gpt_bpe import MERGES, SPECIALS, _build_normalizer
from firth.text.layouts import gpt_layout
from firth.text.published import load_tokenizer, read_published
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import OPENAI

VOCABULARY, MERGES_FILE = next(iter(MERGES.items()))


# The specification, without any code of the package.

RUNS = '-~!";?+,)(\\/*[]}{|_'
CONTRACTED = ("s", "m", "d", "re", "ve", "ll")
TITLES = (
    "mr", "mrs", "ms", "dr", "st", "jr", "co", "vs", "inc", "ltd", "corp", "bros", "messrs", "prof", "rev", "gen",
    "gov", "sen", "rep", "mt", "ave",
)  # fmt: skip


def standardised(text: str) -> str:
    """Steps 1 (as far as the package implements it) and 2: single spaces around every word and newline."""
    text = unicodedata.normalize("NFC", text)
    for character in "\u2018\u2019\u201a\u201b\u02bc\u00b4":
        text = text.replace(character, "'")
    for character in "\u201c\u201d\u201e\u201f":
        text = text.replace(character, '"')
    for character in "\u2013\u2014\u2015":
        text = text.replace(character, "-")
    text = text.replace("\u2026", "...")
    text = re.sub("|".join(f"{re.escape(c)}+" for c in RUNS), lambda run: f" {run[0]} ", text)
    text = re.sub(r"\s*[\n\r\x85\u2028\u2029]\s*", " \n ", text)
    return re.sub(r"[^\S\n]+", " ", text).strip()


def is_mark(c: str) -> bool:
    return unicodedata.category(c).startswith("P") or (c.isascii() and c.isprintable() and not c.isalnum() and c != " ")


def words_of(text: str) -> list[str]:
    """Steps 2 and 3: lower-cased words, by the rules that replace spaCy's."""
    found: list[str] = []
    for token in standardised(text).lower().split(" "):
        if token == "\n" or re.fullmatch("-+|~+", token):
            found.append(token)
            continue
        while token:
            word = first_word(token)
            found.append(word)
            token = token[len(word) :]
    return [word for word in found if word]


def first_word(token: str) -> str:
    """The first word of a token without white space."""

    def ends(at: int) -> bool:
        return at >= len(token) or is_mark(token[at])

    def tail(at: int) -> int:
        """The length of a contracted word at a place: ``n't``, ``'ll``; 0 if there is none."""
        options = ["n't", *("'" + c for c in CONTRACTED)]
        return next((len(o) for o in options if token.startswith(o, at) and ends(at + len(o))), 0)

    if token.startswith(".."):
        return token[: len(token) - len(token.lstrip("."))]
    if n := tail(0):
        return token[:n]
    for word in ("'em", "'cause", "'cos", "'bout"):
        if token.startswith(word) and ends(len(word)):
            return word
    if number := re.match(r"[0-9]+([.:][0-9]+)+", token):
        return number[0]
    for title in TITLES:
        if token.startswith(title + "."):
            return title + "."
    # As many initials as possible, ending where a word may end.
    n = 0
    while len(token) > 2 * n + 1 and token[2 * n] in "abcdefghijklmnopqrstuvwxyz" and token[2 * n + 1] == ".":
        n += 1
    while n and not ends(2 * n):
        n -= 1
    if n:
        return token[: 2 * n]
    if token.startswith("cannot") and ends(6):
        return "can"
    if is_mark(token[0]):
        return token[0]
    at = 0
    while at < len(token) and (not is_mark(token[at]) or (token[at] == "'" and not ends(at + 1))):
        if at and token[at - 1] != "'" and tail(at):
            break
        at += 1
    return token[:at]


class Plain:
    """Steps 3 and 4: merges by rank, all occurrences from left to right, until none is known."""

    def __init__(self, folder: Path):
        self.ids: dict[str, int] = json.loads((folder / VOCABULARY).read_text("utf-8"))
        lines = (folder / MERGES_FILE).read_text("utf-8").split("\n")[1:-1]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.known: dict[str, list[int]] = {}

    def ids_of(self, text: str) -> list[int]:
        return [i for word in words_of(text) for i in self.word(word)]

    def word(self, word: str) -> list[int]:
        if word not in self.known:
            self.known[word] = [self.ids.get(piece, 0) for piece in self.pieces(word)]
        return self.known[word]

    def pieces(self, word: str) -> list[str]:
        parts = [*word[:-1], word[-1] + "</w>"]
        while True:
            pairs = [pair for pair in itertools.pairwise(parts) if pair in self.ranks]
            if not pairs:
                return parts
            best, joined = min(pairs, key=self.ranks.__getitem__), []
            while parts:
                if tuple(parts[:2]) == best:
                    joined.append("".join(best))
                    del parts[:2]
                else:
                    joined.append(parts.pop(0))
            parts = joined


@pytest.fixture(scope="session")
def released(shared_data: Path) -> Path:
    folder = shared_data / "openai-gpt-bpe"
    if not folder.is_dir():
        pytest.skip("OpenAI GPT's vocabulary is not in the shared data")
    return folder


@pytest.fixture(scope="session")
def gpt(released: Path) -> Tokenizer:
    return Tokenizer.load(released)


@pytest.fixture(scope="session")
def plain(released: Path) -> Plain:
    return Plain(released)


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.pieces[i] for i in tokenizer.encode(text).ids]


def test_equals_the_specification_on_real_text(shared_data: Path, gpt: Tokenizer, plain: Plain) -> None:
    with lzma.open(shared_data / "en-wiki" / "dev.txt.xz", "rt", encoding="utf-8") as lines:
        texts = [line for line in itertools.islice(lines, 1200) if line.strip()]
    texts += ["".join(some) for some in zip(texts, texts[1:], strict=False)][:50]
    for text, ids in zip(texts, gpt.ids_many(texts), strict=True):
        assert ids == plain.ids_of(text), text


@settings(max_examples=400)
@given(
    st.lists(
        st.sampled_from(
            [*"ab.'’\"“-—–~!?,;()/\\*[]{}|_+…´ \n\t\u00a0xyzIT3:5é한½", "n't", "'ll", "don't", "can't", "cannot", "Mr.",
             "U.S.", "i.e.", "o'clock", "3.5", "...", "'em", "--", "\r\n", " \n\n ", "e\u0301", "st.", "ΑΣ"]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
def test_equals_the_specification_on_any_text(gpt: Tokenizer, plain: Plain, text: str) -> None:
    assert gpt.encode(text).ids == plain.ids_of(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, World!", "hello</w> ,</w> world</w> !</w>"),
        ("a", "a</w>"),
        ("one—two – three… ´tis", "one</w> -</w> two</w> -</w> three</w> ...</w> '</w> tis</w>"),
        ("well--no!!! (yes)", "well</w> --</w> no</w> !</w> !</w> !</w> (</w> yes</w> )</w>"),
        ("I don't; she'll. It’s", "i</w> do</w> n't</w> ;</w> she</w> 'll</w> .</w> it</w> 's</w>"),
        ("Mr. Smith cannot go at 5 o'clock", "mr.</w> smith</w> can</w> not</w> go</w> at</w> 5</w> o'clock</w>"),
        ("the U.S. at 9:00 a.m.", "the</w> u.s.</w> at</w> 9:00</w> a.m.</w>"),
        ("“Quote,” he said", '"</w> quote</w> ,</w> "</w> he</w> said</w>'),
        ("<unk> _start_", "<</w> unk</w> ></w> _</w> start</w> _</w>"),
        ("中", "<unk>"),
    ],
)  # fmt: skip
def test_pinned_texts(gpt: Tokenizer, text: str, pieces: str) -> None:
    assert pieces_of(gpt, text) == pieces.split(" ")


@pytest.mark.parametrize(
    ("text", "ours", "spacy"),
    [
        ("I don't; she'll. It’s John's", "i do n't ; she 'll . it 's john 's", ""),
        ("Mr. Smith cannot go at 5 o'clock.", "mr. smith can not go at 5 o'clock .", ""),
        ("the U.S. at 9:00 a.m.", "the u.s. at 9:00 a.m.", ""),
        ("1,000 people", "1 , 000 people", ""),
        ("20 °C", "20 °c", "20 ° c"),
        ("goin' home", "goin ' home", "goin' home"),
        ("it cost US$5", "it cost us $ 5", "it cost us$ 5"),
        ("see www.a.com/b", "see www . a . com / b", "see www.a.com / b"),
    ],
)
def test_words_beside_those_of_spacy(gpt: Tokenizer, text: str, ours: str, spacy: str) -> None:
    """``spacy`` is spaCy's differing result, recorded with spaCy 3.8 and ftfy 6.3 after the rules of step 2."""
    assert ours != spacy
    encoded = gpt.encode(text)
    words: dict[int, str] = {}
    for i, word in zip(encoded.ids, encoded.words, strict=True):
        words[word] = words.get(word, "") + gpt.pieces[i].removesuffix("</w>")
    assert " ".join(words.values()) == ours


def test_newlines_are_words_and_the_text_is_stripped(gpt: Tokenizer) -> None:
    newline = gpt.pieces.index("\n</w>")
    assert newline == 40477
    assert pieces_of(gpt, "\n one \r\n\n two\u2028three \n") == ["one</w>", "\n</w>", "two</w>", "\n</w>", "three</w>"]
    for nothing in ("", "   ", " \n\t\n"):
        assert gpt.encode(nothing).ids == []


def test_special_pieces_stand_behind_all_others(gpt: Tokenizer, released: Path) -> None:
    ids = json.loads((released / VOCABULARY).read_text("utf-8"))
    assert len(ids) == 40478 and gpt.size == 40481 and gpt.kind is OPENAI
    assert all(gpt.pieces[i] == piece for piece, i in ids.items())
    assert (gpt.unk_id, gpt.start_id, gpt.between_id, gpt.end_id) == (0, 40478, 40479, 40480) == gpt.special_ids
    assert gpt_layout(gpt).pair([5], [6])[0] == [40478, 5, 40479, 6, 40480]
    assert gpt.lowercase
    with pytest.raises(TokenizerError, match="OpenAI GPT's BPE vocabulary has no mask token"):
        _ = gpt.mask_id


def test_pieces_that_do_not_end_a_word(gpt: Tokenizer) -> None:
    continues = dict(zip(gpt.pieces, gpt.continues.tolist(), strict=True))
    assert continues["t"] and not continues["t</w>"] and not continues["\n</w>"]
    assert not any(continues[special] for special in SPECIALS)


def test_offsets_lead_back_to_the_raw_text(gpt: Tokenizer) -> None:
    text = "  It’s  “the” Café…\n\nCafe\u0301s — and 한국 don't"
    encoded = gpt.encode(text)
    words: dict[int, tuple[int, int]] = {}
    for (start, end), word in zip(encoded.offsets, encoded.words, strict=True):
        words[word] = (words.get(word, (start, end))[0], end)
    found = [text[a:b] for a, b in words.values()]
    assert found[:6] == ["It", "’s", "“", "the", "”", "Café"] and found[-5:] == ["—", "and", "한국", "do", "n't"]
    assert found[6] == "…" and found[7].strip() == "" and found[8] == "Cafe\u0301s"


def test_decoding_joins_pieces_and_words(gpt: Tokenizer) -> None:
    row = gpt_layout(gpt).pair(gpt.encode("Unbelievable things!").ids, gpt.encode("it's so").ids)[0]
    assert gpt.decode(row) == "unbelievable things ! it 's so"


def test_save_load_and_pickle(gpt: Tokenizer, tmp_path: Path) -> None:
    gpt.save(tmp_path, max_length=512)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    text = "I don't know, Mr. Smith…\nNo!"
    for again in (Tokenizer.load(tmp_path), load_tokenizer(tmp_path), pickle.loads(pickle.dumps(gpt))):
        assert again.fingerprint == gpt.fingerprint and again.pieces == gpt.pieces and again.kind is OPENAI
        assert again.encode(text) == gpt.encode(text)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    row = gpt_layout(gpt).single(gpt.encode(text).ids)
    assert theirs(text)["input_ids"] == row and theirs.decode(row, skip_special_tokens=True) == gpt.decode(row)
    assert (theirs.bos_token_id, theirs.sep_token_id, theirs.cls_token_id) == (40478, 40479, 40480)


# The folders in which it is published.


def test_a_vocabulary_in_miniature(tmp_path: Path) -> None:
    ids = {piece: i for i, piece in enumerate(["<unk>", "l", "o", "w", "w</w>", ".</w>", "lo", "low</w>", "\n</w>"])}
    (tmp_path / VOCABULARY).write_text(json.dumps(ids))
    (tmp_path / MERGES_FILE).write_text("#version: 0.2\nl o\nlo w</w>\n")
    tokenizer = load_tokenizer(tmp_path)
    assert pieces_of(tokenizer, "Low.\n\nlo x low") == ["low</w>", ".</w>", "\n</w>", "l", "<unk>", "<unk>", "low</w>"]
    assert tokenizer.special_ids == (0, 9, 10, 11) and tokenizer.size == 12
    assert tokenizer.continues.tolist() == [False, True, True, True, False, False, True, False, False, *[False] * 3]
    tokenizer.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == tokenizer.fingerprint


def renamed(released: Path, folder: Path, about: dict[str, str] | None) -> Path:
    """The same files under the names that transformers uses."""
    folder.mkdir()
    shutil.copyfile(released / VOCABULARY, folder / "vocab.json")
    shutil.copyfile(released / MERGES_FILE, folder / "merges.txt")
    if about is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("about", [None, {"tokenizer_class": "OpenAIGPTTokenizer"}, {}])
def test_the_names_of_transformers(
    gpt: Tokenizer, released: Path, tmp_path: Path, about: dict[str, str] | None
) -> None:
    found, how = read_published(renamed(released, tmp_path / "m", about))
    assert found.fingerprint == gpt.fingerprint
    assert how == "lower-cased (OpenAI GPT's rules, words split by rule instead of spaCy)"
    assert load_tokenizer(released).fingerprint == Tokenizer.load(tmp_path / "m").fingerprint == gpt.fingerprint


def test_folders_that_are_not_openai_gpts(released: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="tokenizer_class 'GPT2Tokenizer' splits text in its own way"):
        read_published(renamed(released, tmp_path / "a", {"tokenizer_class": "GPT2Tokenizer"}))
    folder = renamed(released, tmp_path / "b", None)
    with pytest.raises(TokenizerError, match="--cased was asked for, but OpenAI GPT's tokens are lower-cased"):
        read_published(folder, lowercase=False)
    with pytest.raises(TokenizerError, match="this vocabulary is lower-cased"):
        Tokenizer.load(folder, lowercase=False)
    (folder / "merges.txt").write_text("#version: 0.2\nqq qqq\n")
    with pytest.raises(TokenizerError, match=r"merges.txt: 'qq qqq' gives no token of vocab.json"):
        Tokenizer.load(folder)
    for text, message in [
        ("{", "not JSON"),
        ('{"a": 0, "b": 2}', "expected each id from 0 to"),
        ("[1]", "expected each id from 0 to"),
        ('{"a": 0, "b": 1}', "not OpenAI GPT's vocabulary: <unk> must have id 0"),
    ]:
        (folder / "vocab.json").write_text(text)
        with pytest.raises(TokenizerError, match=message) as raised:
            load_tokenizer(folder)
        assert "vocab.json" in str(raised.value) and "\n" not in str(raised.value)
    (folder / "vocab.json").write_text('{"<unk>": 0, "a</w>": 1, "aa</w>": 2}')
    (folder / "merges.txt").write_text("#version: 0.2\na a</w>\n")
    with pytest.raises(TokenizerError, match=r"merges.txt: 'a a</w>' are no tokens of vocab.json"):
        load_tokenizer(folder)
    (folder / "merges.txt").unlink()
    with pytest.raises(TokenizerError, match="merges.txt: cannot be read"):
        load_tokenizer(folder)


def test_tokenizer_json_of_transformers_gives_their_ids(gpt: Tokenizer, released: Path, tmp_path: Path) -> None:
    """With a tokenizer.json the ids are those of transformers; words are split as in BERT, with these differences."""
    transformers = pytest.importorskip("transformers")
    folder = renamed(released, tmp_path / "m", {"tokenizer_class": "OpenAIGPTTokenizer"})
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "n")
    found, how = read_published(tmp_path / "n")
    assert found.kind is OPENAI and found.size == 40481 and how == "lower-cased (tokenizer.json)"
    for text in ("The cat sat on the mat.", "I don't know — it's Mr. Smith’s café…\nNo", "2,000 (U.S.)"):
        assert found.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert gpt.encode("the cat sat on the mat.").ids == found.encode("the cat sat on the mat.").ids
    for text, pieces in [
        ("don't", "don</w> '</w> t</w>"),
        ("Mr. Smith", "mr</w> .</w> smith</w>"),
        ("so...", "so</w> .</w> .</w> .</w>"),
        ("café", "cafe</w>"),
        ("it’s", "it</w> <unk> s</w>"),
        ("a\nb", "a</w> b</w>"),
        ("a — b", "a</w> <unk> b</w>"),
    ]:
        assert pieces_of(found, text) == pieces.split(" ")
        assert pieces_of(gpt, text) != pieces.split(" ")


@given(st.text(st.sampled_from("ab \t\n\r\x85\u2028\u00a0"), max_size=30))
def test_line_breaks_take_the_spaces_around_them(text: str) -> None:
    """As the published rule, which would take quadratic time in long runs of spaces."""
    expected = re.sub(r"\s*[\n\r\x85\u2028\u2029]\s*", "\n", text).strip()
    assert _build_normalizer().normalize_str(text) == expected
