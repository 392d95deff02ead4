"""The documentation that ships with Python: cleaning, labels, and splits that do not leak."""

from collections import Counter
from pathlib import Path

import pytest

from firth.demo import python_docs
from firth.demo.python_docs import (
    FEWEST_PER_PART,
    PARTS,
    PythonDocs,
    read_python_docs,
    split_documents,
    split_labelled,
    without_texts,
)
from firth.errors import InputError
from firth.text.records import Document, Text

DOCSTRING = '''
"""Open the gates of the old city.

This paragraph was wrapped by
hand over :class:`several <x.y>` lines, with ``code``.

Title of a section here now
===========================

Example of how to call it:
>>> open_gates(2)
'open, said the guard of the gate'

    x = gates[0] + gates[1] * 2 - f(x, y=3)

- first a rather short list item
- then another one that goes
  on in a second line

name      what it means to us
width     how wide the gates are

gate_stmt ::= the word gate and a number
Too short.
"""
'''


@pytest.fixture(scope="module")
def docs() -> PythonDocs:
    return read_python_docs()


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def functions(subject: str, n: int) -> str:
    """Source code of ``n`` functions whose docstrings differ in one word each."""
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(n)]
    docstrings = [f"Tell {subject} to fetch thing {word}." for word in words]
    return "\n".join(f'def f{i}():\n    """{text}"""' for i, text in enumerate(docstrings))


@pytest.fixture
def no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "_topics", dict)


@pytest.mark.usefixtures("no_topics")
def test_docstrings_become_clean_paragraphs(tmp_path: Path) -> None:
    write(tmp_path, "gates.py", DOCSTRING)
    (document,) = read_python_docs(tmp_path).documents
    assert document == Document(
        (
            "Open the gates of the old city.",
            "This paragraph was wrapped by hand over several lines, with code.",
            "Title of a section here now",
            "Example of how to call it:",
            "first a rather short list item",
            "then another one that goes on in a second line",
        ),
        "stdlib:gates",
    )


@pytest.mark.usefixtures("no_topics")
def test_modules_come_sorted_and_what_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    text = '"""Some words about a module."""\n'
    for name in (
        "b.py",
        "a/__init__.py",
        "a/c.py",
        "lib-x/d.py",
        "test/e.py",
        "a/tests/f.py",
        "idlelib/idle_test/g.py",
    ):
        write(tmp_path, name, text)
    write(tmp_path, "broken.py", "def (:\n")
    (tmp_path / "bytes.py").write_bytes(b'"""Latin \xe9 text that is not UTF-8."""\n')
    write(tmp_path, "escapes.py", '"""Words with an invalid \\d escape sequence."""\n')
    write(tmp_path, "korean.py", '"""한국어 문장도 낱말로 남아 있어야 한다."""\n')
    found = read_python_docs(tmp_path).documents
    assert [d.where for d in found] == [f"stdlib:{name}" for name in ("a", "a.c", "b", "escapes", "korean")]
    assert found[-1].paragraphs == ("한국어 문장도 낱말로 남아 있어야 한다.",)


@pytest.mark.usefixtures("no_topics")
def test_docstrings_keep_source_order_and_qualified_names(tmp_path: Path) -> None:
    source = (
        '"""First of all the module."""\n'
        'class A:\n    """Second comes the class A."""\n'
        '    if True:\n        async def f(self):\n            """Third comes its method f."""\n'
        'def g():\n    """Fourth comes the function g."""\n'
    )
    write(tmp_path, "threading.py", source + functions("threads", FEWEST_PER_PART))
    docs = read_python_docs(tmp_path)
    assert [p.split()[0] for p in docs.documents[0].paragraphs[:4]] == ["First", "Second", "Third", "Fourth"]
    assert [t.where for t in docs.labelled[:3]] == [f"stdlib:threading:{name}" for name in ("A", "A.f", "g")]
    assert {t.label for t in docs.labelled} == {"concurrency"}


@pytest.mark.usefixtures("no_topics")
def test_small_parts_shared_texts_and_repeats_are_left_out(tmp_path: Path) -> None:
    shared = '\ndef s():\n    """Close the connection to the other side."""\n'
    again = "\n".join(f'def {name}():\n    """Fetch the value of {name} from here."""' for name in ("k_1", "k_2"))
    write(tmp_path, "threading.py", functions("threads", FEWEST_PER_PART) + shared)
    write(tmp_path, "socket.py", functions("sockets", FEWEST_PER_PART) + shared + again)
    write(tmp_path, "tkinter/__init__.py", functions("widgets", FEWEST_PER_PART - 1))
    labelled = read_python_docs(tmp_path).labelled
    assert Counter(t.label for t in labelled) == {
        "concurrency": FEWEST_PER_PART,
        "networking": FEWEST_PER_PART + 1,
    }
    assert "Close the connection to the other side." not in {t.text for t in labelled}


@pytest.mark.usefixtures("no_topics")
def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to read"):
        read_python_docs(tmp_path)


def test_this_python_has_enough_to_learn_from(docs: PythonDocs) -> None:
    assert sum(len(p) for d in docs.documents for p in d.paragraphs) > 500_000
    assert len({d.where for d in docs.documents}) == len(docs.documents)
    counts = Counter(t.label for t in docs.labelled)
    assert set(counts) <= set(PARTS) and len(counts) >= 6 and min(counts.values()) >= FEWEST_PER_PART
    assert all(5 <= len(t.text.split()) <= 60 and "\n" not in t.text for t in docs.labelled)
    assert len({t.text for t in docs.labelled}) == len(docs.labelled)


def test_every_module_belongs_to_one_part() -> None:
    modules = [module for part in PARTS.values() for module in part]
    assert len(set(modules)) == len(modules)


def test_split_does_not_leak_and_the_test_set_is_one(docs: PythonDocs) -> None:
    split = split_labelled(docs.labelled, 0, 16, per_class_test=30)
    assert set(Counter(t.label for t in split.train).values()) == {16}
    assert set(Counter(t.label for t in split.test).values()) == {30}
    everything = split_labelled(docs.labelled, 1, per_class_test=30)
    assert everything.test == split.test
    assert {t.where for t in split.train} <= {t.where for t in everything.train}
    train_units = {unit(t) for t in everything.train}
    assert not train_units & {unit(t) for t in split.test}
    shared = {t.where.split(":")[1] for t in everything.train} & {t.where.split(":")[1] for t in split.test}
    assert len(shared) <= len(PARTS)  # only modules that dominate their part are split by class


def unit(text: Text) -> tuple[str, str]:
    """The module and the outermost class or function that a docstring is in."""
    _, module, name = text.where.split(":")
    return module, name.partition(".")[0]


def test_a_small_draw_is_part_of_a_larger_one_and_seeds_differ(docs: PythonDocs) -> None:
    draws = [(3, 8), (3, 32), (4, 8)]
    small, large, other = (split_labelled(docs.labelled, seed, n).train for seed, n in draws)
    assert set(small) < set(large)
    assert set(small) != set(other)
    assert split_labelled(docs.labelled[::-1], 3, 8).train == small


def test_test_texts_can_be_taken_out_of_the_documents(docs: PythonDocs) -> None:
    test = split_labelled(docs.labelled, 0).test
    rest = without_texts(docs.documents, test)
    left = {p for d in rest for p in d.paragraphs}
    assert not left & {t.text for t in test}
    assert {t.text for t in test} <= {p for d in docs.documents for p in d.paragraphs}
    assert without_texts([Document(("a b", "c d"), "x"), Document(("a b",), "y")], [Text("a b")]) == [
        Document(("c d",), "x")
    ]


def test_held_out_documents_are_few_and_fixed() -> None:
    documents = [Document(("words",), f"stdlib:m{i}") for i in range(1000)]
    train, held = split_documents(documents)
    assert len(train) + len(held) == 1000 and 30 <= len(held) <= 70
    assert split_documents(documents[::-1])[1] == held[::-1]


def test_topics_become_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topics = {"b": "A few words about topic b.", "a": "Only short."}
    monkeypatch.setattr(python_docs, "_topics", lambda: topics)
    assert read_python_docs(tmp_path).documents == [Document(("A few words about topic b.",), "topic:b")]
