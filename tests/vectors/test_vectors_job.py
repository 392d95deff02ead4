"""From word-vector files to model folders, their vectors for unknown words, and their use in tasks."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from vector_files import ngram_mean_of, write_fasttext, write_text, write_word2vec

from firth.cli.shared import unknown_tokens
from firth.errors import ConfigError, InputError
from firth.finetuning import runs as job
from firth.finetuning.finetune import run_resolved
from firth.finetuning.resolve import Resolved, resolve
from firth.folder import PRETRAINING, read_model, write_model
from firth.inference.answering import answer_records
from firth.inference.model import load_model
from firth.inference.word_table import open_table
from firth.models.config import VectorsConfig
from firth.models.vectors import Vectors
from firth.objectives.cbow import Cbow
from firth.objectives.config import CbowConfig
from firth.pretraining.run import pretrain
from firth.pretraining.run import resolve as resolve_pretraining
from firth.tasks.config import ClassifyConfig
from firth.tasks.table import TASKS
from firth.text.records import Text
from firth.text.shapes import SHAPES, bucket_of
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS as KIND
from firth.vectors.folder import VectorOptions, convert_vectors
from firth.vectors.scores import AnalogyQuestion, Pair, analogies, similarity

RNG = np.random.default_rng(1)
WORDS = ["the", "cat", "sat", "river", "winter", "1996", "U.S.", "teacher", "ran", "café"]
ROWS = [(word.encode(), [round(float(x), 3) for x in RNG.normal(size=4)]) for word in WORDS]
for number, sign in ((3, 1), (4, -1)):  # river and winter are easy to tell apart
    ROWS[number] = (ROWS[number][0], [4.0 * sign, 2.0, -4.0 * sign, 1.0])


def table_of(folder: Path) -> dict[str, list[float]]:
    loaded = read_model(folder)
    weight = loaded.objective.encoder.piece_embedding
    return {word: weight[i].tolist() for i, word in enumerate(loaded.tokenizer.pieces)}


def row(table: dict[str, list[float]], word: str) -> list[float]:
    return [round(x, 3) for x in table[word]]


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    return write_text(tmp_path / "glove.txt", ROWS)


def test_a_folder_holds_the_vectors_of_the_file(glove: Path, tmp_path: Path) -> None:
    report = convert_vectors(glove, tmp_path / "m")
    table = table_of(tmp_path / "m")
    assert list(table)[4:] == WORDS
    assert [row(table, word) for word in WORDS] == [list(values) for _, values in ROWS]
    assert (report.words, report.width, report.unknown, report.n_unknown) == (10, 4, "one", 0)
    assert table["<s>"] == table["</s>"] == [0.0] * 4
    np.testing.assert_allclose(table["<unk>"], np.mean([values for _, values in ROWS], 0), atol=1e-6)
    assert json.loads((tmp_path / "m" / "firth.json").read_text())["provenance"]["origin"]["format"] == "text"
    assert not list(tmp_path.glob(".*")), "nothing is left beside the folder"


def test_special_pieces_of_the_file_keep_their_vectors(tmp_path: Path) -> None:
    rows = [(b"</s>", [1.0, 2.0]), (b"the", [3.0, 4.0]), (b"<unk>", [5.0, 6.0])]
    report = convert_vectors(write_word2vec(tmp_path / "a.bin", rows, True), tmp_path / "m")
    table = table_of(tmp_path / "m")
    assert (table["</s>"], table["<unk>"], list(table)[4:]) == ([1.0, 2.0], [5.0, 6.0], ["the"])
    assert (report.words, report.left_out) == (1, 0)


@pytest.mark.parametrize(
    ("stand_in", "expected"), [("zero", 0.0), ("mean", np.mean(range(300))), ("rarest", np.mean(range(200, 300)))]
)
def test_the_vector_of_unknown_words(tmp_path: Path, stand_in: str, expected: float) -> None:
    rows = [(f"w{i}".encode(), [float(i)]) for i in range(300)]
    convert_vectors(write_text(tmp_path / "a", rows, header=True), tmp_path / "m", VectorOptions(stand_in=stand_in))
    assert table_of(tmp_path / "m")["<unk>"] == [pytest.approx(expected)]
    # A folder, or a file with its own <unk>, gets the same vector on request, and otherwise keeps its own.
    own = write_text(tmp_path / "b", [(b"<unk>", [7.0]), *rows], header=True)
    for source, its in ((own, 7.0), (tmp_path / "m", expected)):
        convert_vectors(source, tmp_path / f"{source.name}-asked", VectorOptions(stand_in=stand_in))
        assert table_of(tmp_path / f"{source.name}-asked")["<unk>"] == [pytest.approx(expected)]
        for other in {"zero", "mean", "rarest"} - {stand_in}:
            convert_vectors(source, tmp_path / f"{source.name}-{other}", VectorOptions(stand_in=other))
            assert table_of(tmp_path / f"{source.name}-{other}")["<unk>"] != [pytest.approx(expected)]
        convert_vectors(source, tmp_path / f"{source.name}-its")
        assert table_of(tmp_path / f"{source.name}-its")["<unk>"] == [pytest.approx(its)]


def test_a_vector_for_each_shape_is_the_mean_of_the_rarest_of_it(tmp_path: Path) -> None:
    rows = [(f"{i}".encode(), [float(i), 0.0]) for i in range(150)] + [(b"Oslo", [5.0, 1.0]), (b"NATO", [7.0, 1.0])]
    convert_vectors(write_text(tmp_path / "a", rows), tmp_path / "m", VectorOptions(unknown="shapes"))
    encoder = read_model(tmp_path / "m").objective.encoder
    assert isinstance(encoder, Vectors) and encoder.unknown is not None
    found = dict(zip(SHAPES, encoder.unknown.weight.tolist(), strict=True))
    assert found["number"] == [pytest.approx(np.mean(range(50, 150))), 0.0]
    assert (found["capital"], found["capitals"]) == ([5.0, 1.0], [7.0, 1.0])
    assert found["hyphen"] == encoder.piece_embedding[0].tolist(), "a shape of which the file has no word"


def test_random_vectors_have_the_spread_of_the_table_and_are_always_the_same(glove: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        convert_vectors(glove, tmp_path / name, VectorOptions(unknown="hashed", n_buckets=3000))
        encoder = read_model(tmp_path / name).objective.encoder
        assert isinstance(encoder, Vectors) and encoder.unknown is not None
        found.append(encoder.unknown.weight.detach())
    assert torch.equal(found[0], found[1])
    spread = np.std([values for _, values in ROWS])
    assert float(found[0].std()) == pytest.approx(spread, rel=0.03)
    assert abs(float(found[0].mean())) < 0.05 * spread


@pytest.mark.parametrize(("lowercase", "expected"), [(None, True), (False, False), (True, True)])
def test_whether_text_is_read_in_lower_case(
    glove: Path, tmp_path: Path, lowercase: bool | None, expected: bool
) -> None:
    """One of the file's ten words has capitals; without it, the file is taken as lower-cased."""
    plain = write_text(tmp_path / "plain", [pair for pair in ROWS if pair[0] != b"U.S."])
    assert convert_vectors(plain, tmp_path / "m", VectorOptions(lowercase=lowercase)).lowercase is expected
    ids = read_model(tmp_path / "m").tokenizer.ids_many(["The CAFÉ"])[0]
    assert (max(ids) < 4 + 9) is expected, "accents stay, and café is known, or both words are outside the vocabulary"
    if lowercase is None:
        assert convert_vectors(glove, tmp_path / "n").lowercase is False


def test_only_the_words_of_some_texts(glove: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("The cat sat. The river, the winter.\nA cat ran: U.S. cat!\n")
    report = convert_vectors(glove, tmp_path / "m", VectorOptions(texts=(text,)))
    assert report.bad_bytes == 0
    (other := tmp_path / "latin.txt").write_bytes("caf\u00e9 cat\n".encode("latin-1"))
    assert convert_vectors(glove, tmp_path / "latin", VectorOptions(texts=(other,))).bad_places == ((str(other), 3),)
    # "U.S." is split.
    assert list(table_of(tmp_path / "m"))[4:] == ["the", "cat", "sat", "river", "winter", "ran"]
    assert report.left_out == 4
    convert_vectors(glove, tmp_path / "n", VectorOptions(texts=(text,), min_count=2, lowercase=False, split="blanks"))
    assert list(table_of(tmp_path / "n"))[4:] == ["cat"]
    convert_vectors(glove, tmp_path / "o", VectorOptions(texts=(text,), split="blanks"))
    assert "U.S." in table_of(tmp_path / "o")
    # Split at white space too, words are counted as the tokenizer cleans them.
    (other := tmp_path / "hyphens.txt").write_text("ca­t\n", "utf-8")
    convert_vectors(glove, tmp_path / "hyphens", VectorOptions(texts=(other,), split="blanks"))
    assert list(table_of(tmp_path / "hyphens"))[4:] == ["cat"]
    convert_vectors(glove, tmp_path / "p", VectorOptions(max_words=3))
    assert list(table_of(tmp_path / "p"))[4:] == WORDS[:3]


@pytest.mark.parametrize("lowercase", [None, False])
def test_a_cased_model_keeps_the_words_that_are_so_written(tmp_path: Path, lowercase: bool | None) -> None:
    names = [b"The", b"the", b"Paris", b"caf\xe9"]
    file = write_text(tmp_path / "big.txt", [(name, [1.0, float(n)]) for n, name in enumerate(names)])
    text = tmp_path / "t.txt"
    text.write_text("The Paris Paris paris\n")
    report = convert_vectors(file, tmp_path / "m", VectorOptions(texts=(text,), lowercase=lowercase))
    assert list(table_of(tmp_path / "m"))[4:] == ["The", "Paris"]
    assert report.lowercase is False and report.not_utf8 == 1
    twice = VectorOptions(texts=(text,), min_count=3, lowercase=lowercase)
    with pytest.raises(InputError, match="none of its 4 words is wanted"):
        convert_vectors(file, tmp_path / "n", twice)


def test_text_is_split_as_was_asked(glove: Path, tmp_path: Path) -> None:
    convert_vectors(glove, tmp_path / "a")
    convert_vectors(glove, tmp_path / "b", VectorOptions(split="blanks"))
    words = [[piece.token for piece in load_model(tmp_path / name).tokenize("the cat, U.S.")] for name in ("a", "b")]
    assert len(words[0]) == 7 and len(words[1]) == 3
    assert words[1][2] == "U.S."


def test_fasttext_makes_vectors_for_new_words(tmp_path: Path) -> None:
    matrix = np.random.default_rng(2).normal(size=(2 + 20, 5)).astype(np.float32)
    path = write_fasttext(tmp_path / "a.bin", [b"the", b"cat"], matrix, n_buckets=20)
    report = convert_vectors(path, tmp_path / "m")
    assert (report.unknown, report.n_unknown) == ("ngrams", 20)
    for word in ("cats", "고양이"):
        np.testing.assert_allclose(
            load_model(tmp_path / "m").embed([word])[0], ngram_mean_of(word, matrix[2:]), atol=1e-6
        )


def test_a_folder_of_another_folder(glove: Path, tmp_path: Path) -> None:
    """Fewer words, another rule; everything else of the first folder, n-grams and special tokens included, stays."""
    convert_vectors(glove, tmp_path / "a", VectorOptions(stand_in="mean"))
    convert_vectors(tmp_path / "a", tmp_path / "b", VectorOptions(max_words=4, unknown="hashed", n_buckets=7))
    a, b = table_of(tmp_path / "a"), table_of(tmp_path / "b")
    assert list(b) == list(a)[:8]
    assert all(b[word] == a[word] for word in b)
    assert read_model(tmp_path / "b").tokenizer.lowercase is False
    matrix = np.random.default_rng(2).normal(size=(1 + 20, 5)).astype(np.float32)
    convert_vectors(write_fasttext(tmp_path / "f.bin", [b"cat"], matrix, n_buckets=20), tmp_path / "c")
    assert convert_vectors(tmp_path / "c", tmp_path / "d").unknown == "ngrams"
    c, d = (read_model(tmp_path / name) for name in "cd")
    assert c.objective.encoder.config == d.objective.encoder.config
    for name, tensor in c.objective.state_dict().items():
        assert torch.equal(tensor, d.objective.state_dict()[name]), name


@pytest.mark.parametrize("rule", ["hashed", "shapes", "ngrams", "one"])
def test_a_folder_of_another_folder_keeps_what_is_not_asked_for(glove: Path, tmp_path: Path, rule: str) -> None:
    """How text is split, the rule for unknown words, and the vectors of that rule."""
    source = glove
    if rule == "ngrams":
        matrix = np.random.default_rng(2).normal(size=(2 + 20, 4)).astype(np.float32)
        source = write_fasttext(tmp_path / "f.bin", [b"the", b"cat"], matrix, n_buckets=20)
    n_buckets = 7 if rule == "hashed" else None
    first = convert_vectors(source, tmp_path / "a", VectorOptions(split="blanks", unknown=rule, n_buckets=n_buckets))
    second = convert_vectors(tmp_path / "a", tmp_path / "b", VectorOptions(max_words=2))
    assert (first.split, second.split, second.unknown) == ("blanks", "blanks", rule)
    assert len(load_model(tmp_path / "b").tokenize("the cat, U.S.")) == 3
    a, b = (read_model(tmp_path / name).objective.encoder.unknown for name in "ab")
    assert (a is None and b is None) if rule == "one" else torch.equal(a.weight, b.weight)
    third = convert_vectors(tmp_path / "a", tmp_path / "c", VectorOptions(split="words", unknown="hashed", n_buckets=5))
    assert (third.split, third.unknown, third.n_unknown) == ("words", "hashed", 5)
    if rule == "hashed":
        assert convert_vectors(tmp_path / "a", tmp_path / "d", VectorOptions(n_buckets=50)).n_unknown == 50
        assert convert_vectors(tmp_path / "a", tmp_path / "e", VectorOptions(n_buckets=7)).n_unknown == 7
    assert len(load_model(tmp_path / "c").tokenize("the cat, U.S.")) == 7


@pytest.fixture
def accentless(tmp_path: Path) -> Path:
    """A folder as pre-training writes it with a lower-cased vocabulary: accents are removed from the text."""
    tokenizer = Tokenizer.from_words([*KIND.specials, "cafe", "tea", "river", "mill"], lowercase=True)
    objective = Cbow(Vectors(VectorsConfig(vocab_size=tokenizer.size, width=3)), CbowConfig())
    (tmp_path / "run").mkdir()
    write_model(tmp_path / "run", "vectors", PRETRAINING, objective, tokenizer, {})
    return tmp_path / "run"


def test_the_text_rule_of_a_folder_stays(accentless: Path, tmp_path: Path) -> None:
    convert_vectors(accentless, tmp_path / "small", VectorOptions(max_words=3))
    source, made = (read_model(folder).tokenizer for folder in (accentless, tmp_path / "small"))
    assert made.rules() == source.rules()
    assert made.ids_many(["Café"]) == [[4]]
    # The words of texts are counted as the model reads them.
    (tmp_path / "t.txt").write_text("Café café, tea\n", "utf-8")
    counted = VectorOptions(texts=(tmp_path / "t.txt",), min_count=2)
    assert convert_vectors(accentless, tmp_path / "counted", counted).left_out == 3
    assert list(table_of(tmp_path / "counted"))[4:] == ["cafe"]
    # What is asked for changes; the rest of the rule stays.
    convert_vectors(accentless, tmp_path / "blanks", VectorOptions(split="blanks"))
    assert read_model(tmp_path / "blanks").tokenizer.words("Café, tea") == ["cafe,", "tea"]
    convert_vectors(accentless, tmp_path / "cased", VectorOptions(lowercase=False))
    assert read_model(tmp_path / "cased").tokenizer.words("Café, tea") == ["Café", ",", "tea"]


def test_words_are_looked_up_as_the_folder_reads_them(accentless: Path) -> None:
    table = open_table(accentless)
    assert table.nearest("Café") == table.nearest("cafe") == load_model(accentless).nearest("café")
    assert len(table.nearest("café")) == 3, "without the word itself"
    assert table.analogy("café", "tea", "river") == table.analogy("cafe", "tea", "river")
    pairs = [Pair("café", "tea", 1.0), Pair("river", "tea", 2.0)]
    question = AnalogyQuestion("", ("Café", "tea", "river", "mill"))
    for fold in (False, True):
        assert similarity(table, "p", pairs, fold=fold).known == 2
        assert analogies(table, [question], fold=fold)[0].known == 1


def test_decomposed_words_of_a_file_are_met(tmp_path: Path) -> None:
    rows = [("cafe\u0301".encode(), [1.0, 2.0]), ("\u1112\u1161\u11ab".encode(), [3.0, 4.0])]
    convert_vectors(write_text(tmp_path / "a", rows), tmp_path / "m")
    found = load_model(tmp_path / "m").embed(["café", "cafe\u0301", "한"])
    np.testing.assert_allclose(found, [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    text = tmp_path / "t.txt"
    text.write_text("cafe\u0301 \u1112\u1161\u11ab\n", "utf-8")
    for split in ("words", "blanks"):
        report = convert_vectors(tmp_path / "a", tmp_path / split, VectorOptions(texts=(text,), split=split))
        assert (report.words, report.left_out) == (2, 0)


def test_words_in_capitals_are_met_in_lower_case(tmp_path: Path) -> None:
    """A word gets the vector of its lower-cased form or, if the file has none, of the first form with capitals."""
    rows = [(b"Paris", [1.0]), (b"PARIS", [2.0]), (b"The", [3.0]), (b"the", [4.0]), (b"sat", [5.0])]
    file, text = write_text(tmp_path / "a", rows), tmp_path / "t.txt"
    report = convert_vectors(file, tmp_path / "m", VectorOptions(lowercase=True))
    assert (report.words, report.never_read, report.first_never_read) == (5, 2, "PARIS")
    np.testing.assert_allclose(load_model(tmp_path / "m").embed(["Paris", "PARIS", "The"]), [[1.0], [1.0], [4.0]])
    text.write_text("He saw Paris.\n")
    assert convert_vectors(file, tmp_path / "n", VectorOptions(lowercase=True, texts=(text,))).left_out == 3
    assert "paris" in table_of(tmp_path / "n")


def test_words_that_text_is_never_read_as_are_counted(tmp_path: Path) -> None:
    rows = [(b"a", [1.0]), (b"U.S.", [2.0]), (b"New York", [3.0]), ("漢字".encode(), [4.0]), (b",", [5.0])]
    file = write_text(tmp_path / "a", rows, header=True)
    found = [convert_vectors(file, tmp_path / split, VectorOptions(split=split)) for split in ("words", "blanks")]
    assert [(one.never_read, one.first_never_read) for one in found] == [(3, "U.S."), (1, "New York")]
    assert convert_vectors(write_text(tmp_path / "b", rows[:1]), tmp_path / "m").first_never_read is None


def test_pretraining_goes_on_with_the_vectors_of_a_file(tiny_word_corpus: Path, tmp_path: Path) -> None:
    """The text has another vocabulary; words in both start with their vectors from the file."""
    rows = [(b"the", [1.0, 2.0, 3.0]), (b"zebra", [3.0, 2.0, 1.0])]
    convert_vectors(write_text(tmp_path / "a", rows), tmp_path / "m", VectorOptions(unknown="shapes"))
    data = {
        "model": str(tmp_path / "m"),
        "data": {"corpus": str(tiny_word_corpus), "length": 32},
        "optim": {"learning_rate": 1e-6},
        "train": {"steps": 2, "batch_tokens": 256, "precision": "float32"},
    }
    pretrain(resolve_pretraining(data, [], "test"), tmp_path / "run", tell=lambda text: None)
    table = table_of(tmp_path / "run")
    assert (len(table), "zebra" in table) == (80, False)
    np.testing.assert_allclose(table["the"], [1.0, 2.0, 3.0], atol=1e-4)
    shapes = read_model(tmp_path / "m").objective.encoder.state_dict()["unknown.weight"]
    assert torch.equal(read_model(tmp_path / "run").objective.encoder.state_dict()["unknown.weight"], shapes)


def test_the_mean_of_the_words_is_what_a_text_is_embedded_as(glove: Path, tmp_path: Path) -> None:
    convert_vectors(glove, tmp_path / "m")
    table = {word.decode(): np.array(values) for word, values in ROWS}
    found = load_model(tmp_path / "m").embed(["the cat sat", "river", ""])
    expected = [np.mean([table[w] for w in ("the", "cat", "sat")], 0), table["river"], np.zeros(4)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_cannot_be_converted(glove: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x").write_text("")
    with pytest.raises(ConfigError, match="exists already"):
        convert_vectors(glove, tmp_path / "m")
    with pytest.raises(ConfigError, match="has no n-grams"):
        convert_vectors(glove, tmp_path / "n", VectorOptions(unknown="ngrams"))
    (tmp_path / "t.txt").write_text("nothing of it")
    with pytest.raises(InputError, match="none of its 10 words is wanted"):
        convert_vectors(glove, tmp_path / "n", VectorOptions(texts=(tmp_path / "t.txt",)))
    with glove.open("a") as file:
        file.write("broken 1\n")
    with pytest.raises(InputError, match=r"glove\.txt:11: expected a word and 4 numbers"):
        convert_vectors(glove, tmp_path / "n")
    with pytest.raises(ConfigError, match="min_count=0"):
        VectorOptions(min_count=0)
    with pytest.raises(ConfigError, match="min_count=2 counts words of texts: add --texts"):
        VectorOptions(min_count=2)
    with pytest.raises(ConfigError, match="n_buckets=9: vectors by hash: add --unknown hashed"):
        convert_vectors(glove, tmp_path / "n", VectorOptions(n_buckets=9))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glove.txt", "m", "t.txt"], "nothing is written half"


def test_a_table_is_in_memory_once(tmp_path: Path) -> None:
    """Measures the peak memory of a conversion, which must hold the table only once."""
    n, width = 40_000, 400  # 64 MB
    rows = np.random.default_rng(0).normal(size=(n, width)).astype("<f4")
    with open(tmp_path / "a.bin", "wb") as file:
        file.write(f"{n} {width}\n".encode())
        for i, values in enumerate(rows):
            file.write(f"w{i} ".encode() + values.tobytes())
    program = (
        "import resource, sys, torch\n"
        "from firth.vectors.folder import convert_vectors\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "convert_vectors(sys.argv[1], sys.argv[2])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.bin"), str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Resident pages of mapped files count too: the temporary table, and its copy on the way to disk.
    assert float(done.stdout) < 64 * 2 + 80


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")
    kinds = ("Ann B-PER\nLee I-PER\nran{} O\n1996 O\nOslo B-LOC\n", "the O\nOslo B-LOC\ncat{} O\nsat O\n")
    (tmp_path / "t.conll").write_text("\n".join(kinds[i % 2].format(i) for i in range(40)), "utf-8")
    more = ("the", "cat", "sat", "teacher", "ran", "café", "1996")
    rows = [f"{more[i % 7]} {('river', 'winter')[i % 2]} {more[i // 7]}\t{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    return {"tag": str(tmp_path / "t.conll"), "classify": str(tmp_path / "t.tsv")}


@pytest.mark.parametrize(("unknown", "frozen"), [("one", True), ("hashed", True), ("shapes", True), ("shapes", False)])
def test_taggers_and_classifiers_learn_on_them(
    glove: Path, tmp_path: Path, labelled: dict[str, str], unknown: str, frozen: bool
) -> None:
    n_buckets = 50 if unknown == "hashed" else None
    convert_vectors(glove, tmp_path / "m", VectorOptions(unknown=unknown, n_buckets=n_buckets))
    before = read_model(tmp_path / "m").objective.encoder.state_dict()
    for task, settings in (
        ("tag", ['head.network={kind="bilstm", lstm_layers=1, lstm_width=8}', "head.crf=true"]),
        ("classify", []),
    ):
        common = [
            "train.precision=float32",
            "train.batch_examples=8",
            "train.epochs=5",
            "train.evaluations_per_epoch=1",
            "optim.learning_rate=3e-2",
        ]
        common += ["adapt.frozen_groups=-1"] if frozen else []
        plain = {"task": task, "model": str(tmp_path / "m"), "data": {"train": labelled[task]}}
        recipe, base, examples = resolve(plain, [*common, *settings], "test")
        done = run_resolved(Resolved(recipe, base, examples), tmp_path / task, tell=lambda text: None)
        found = load_model(tmp_path / task)
        after = found.loaded.objective.encoder.state_dict()
        same = {name for name in before if torch.equal(after[name], before[name])}
        # No text to classify has an unknown word, so nothing changes that vector.
        still = {"unknown.weight"} if task == "classify" else set()
        assert same == (set(before) if frozen else still)
        if task == "classify":
            assert done.results["held_out"]["accuracy"]["best"] == 1.0
            assert found.predict("the river ran").label == "a"
        else:
            assert len(found.predict("Zork went to Oslo").tags) == 4


def test_equal_new_words_have_equal_vectors_in_a_task(glove: Path, tmp_path: Path) -> None:
    convert_vectors(glove, tmp_path / "m", VectorOptions(unknown="hashed", n_buckets=500))
    model = load_model(tmp_path / "m")
    encoder = model.loaded.objective.encoder
    a, b, c = model.embed(["zork", "zork zork", "blurb"])
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert not np.allclose(a, c)
    np.testing.assert_allclose(a, encoder.unknown.weight[bucket_of("zork", 500)].detach().numpy(), atol=1e-6)


def test_words_that_share_one_vector_are_unknown(tmp_path: Path) -> None:
    """Unlike those that have a vector by their letters."""
    rows = [(b"the", [1.0, 2.0]), (b"river", [3.0, 4.0])]
    convert_vectors(write_text(tmp_path / "a", rows), tmp_path / "one")
    convert_vectors(
        write_text(tmp_path / "a", rows), tmp_path / "hashed", VectorOptions(unknown="hashed", n_buckets=30)
    )
    lines = "".join(f"강이 {i}번 흐른다\t{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + lines, "utf-8")
    recipe = {"task": "classify", "data": {"train": str(tmp_path / "t.tsv")}}
    for name, n_unknown in (("one", 2), ("hashed", 0)):
        assert unknown_tokens(["the 강이 흐른다"], read_model(tmp_path / name)) == (3, n_unknown)
    with pytest.raises(ConfigError, match="are <unk> to .*: nothing can be learnt"):
        resolve(recipe | {"model": str(tmp_path / "one")}, [], "t")
    resolve(recipe | {"model": str(tmp_path / "hashed")}, [], "t")
    own = {"head": {"network": {"kind": "bilstm", "own_characters": "cnn"}}}
    resolve(recipe | {"model": str(tmp_path / "one")} | own, [], "t")


def test_answers_to_texts_of_unknown_words_alone_say_so(tmp_path: Path) -> None:
    convert_vectors(write_text(tmp_path / "a", [(b"the", [1.0, 2.0]), (b"river", [3.0, 4.0])]), tmp_path / "one")
    base = read_model(tmp_path / "one")
    model = TASKS["classify"].model(base.objective.encoder, ClassifyConfig(labels=("a", "b")))
    tuned = replace(base, task="classify", objective=model.eval())
    _, noted = answer_records(tuned, [Text("강이 흐른다"), Text("the 강이")])
    assert noted == {"nothing but <unk>": 1}
