"""The demo's text: Python's language reference and the standard library's docstrings.

About 1.6 MB of English prose on one subject, available on every machine without a download. The demo
pre-trains on it, and asks which part of the library a docstring comes from. Modules are parsed, never
imported, so reading them runs no code.
"""

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from firth.errors import InputError
from firth.text.records import Document, Text

# fmt: off
PARTS: dict[str, tuple[str, ...]] = {
    "concurrency": (
        "asyncio", "concurrent", "multiprocessing", "queue", "selectors", "subprocess", "threading",
    ),
    "email": ("email", "mailbox"),
    "files": (
        "_pyio", "bz2", "filecmp", "fileinput", "fnmatch", "genericpath", "glob", "gzip", "lzma", "ntpath",
        "os", "pathlib", "posixpath", "shutil", "stat", "tarfile", "tempfile", "zipfile",
    ),
    "networking": (
        "ftplib", "http", "imaplib", "ipaddress", "nntplib", "poplib", "smtplib", "socket", "socketserver",
        "ssl", "telnetlib", "urllib", "webbrowser", "wsgiref", "xmlrpc",
    ),
    "numbers": ("_pydecimal", "colorsys", "fractions", "numbers", "random", "statistics"),
    "testing": ("bdb", "doctest", "pdb", "unittest"),
    "tkinter": ("tkinter",),
    "xml": ("html", "plistlib", "xml"),
}
# fmt: on
"""Parts of the standard library, and the packages and modules each is made of."""

FEWEST_PER_PART = 60
FEWEST_WORDS = 5
MOST_WORDS = 60

# Also left out: folders whose names are not module names (site-packages, dist-packages, lib-dynload).
_SKIPPED_FOLDERS = {"__phello__", "__pycache__", "idle_test", "pydoc_data", "test", "tests"}
_UNDERLINE = re.compile(r"^\s*([=\-~^*#_.+`:\"'|])\1{2,}[\s=\-|+]*$")
_MARKER = re.compile(r"^[-*•+] +")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\(?\d{1,2}[.)]|:\w[\w ]*:|@\w+)\s+\S")
_COLUMNS = re.compile(r"[^\s.?!:;] {3,}\S|\S\s+--\s+\S|\t\S|^\s*\|")
_ROLE = re.compile(r":[a-z][a-z:]*:`[~!]?([^`<]*?)(?:\s*<[^`]*>)?`")
_PLAIN_WORD = re.compile(r"^[(\"'“‘\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[)\"'”’\].,;:!?]*$")


@dataclass(frozen=True, slots=True)
class PythonDocs:
    """All documents, and single docstrings whose label is the part of the library they come from.

    ``where`` is ``stdlib:asyncio.locks`` or ``topic:assert`` for a document, and
    ``stdlib:asyncio.locks:Lock.acquire`` for a labelled docstring.
    """

    documents: list[Document]
    labelled: list[Text]


@dataclass(frozen=True, slots=True)
class LabelledSplit:
    """Labelled docstrings to train and to test on; no module or class is on both sides."""

    train: list[Text]
    test: list[Text]


def read_python_docs(stdlib: Path | None = None) -> PythonDocs:
    """Read the documentation of the running Python, in an order that depends only on its text.

    ``stdlib`` is the folder of the standard library's sources; by default the running Python's own.
    What is absent (a stripped install, no tkinter) is left out, and so is a part with too few examples.
    InputError if there is nothing at all.
    """
    folder = Path(sysconfig.get_path("stdlib")) if stdlib is None else stdlib
    documents: list[Document] = []
    examples: list[Text] = []
    for module, tree in _modules(folder):
        docstrings = [(name, _paragraphs(text)) for name, text in _docstrings(tree)]
        paragraphs = tuple(p for _, found in docstrings for p in found)
        if paragraphs:
            documents.append(Document(paragraphs, f"stdlib:{module}"))
        label = _PART_OF.get(module.partition(".")[0])
        if label:
            examples += [
                Text(found[0], label, f"stdlib:{module}:{name}")
                for name, found in docstrings
                if name and found and len(found[0].split()) <= MOST_WORDS
            ]
    for topic, text in sorted(_topics().items()):
        if paragraphs := tuple(_paragraphs(text)):
            documents.append(Document(paragraphs, f"topic:{topic}"))
    if not documents:
        raise InputError(f"{folder} holds no Python sources, and there are no help topics: nothing to read")
    return PythonDocs(documents, _large_parts(_without_repeats(examples)))


_PART_OF = {module: part for part, modules in PARTS.items() for module in modules}


def _modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield (dotted name, syntax tree) of each module under ``folder`` that parses, sorted by name."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name.isidentifier() and name not in _SKIPPED_FOLDERS]
        for path in (Path(place, name) for name in files if name.endswith(".py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    for module, path in sorted(found.items()):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's sources
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield module, tree


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, docstring) of a module ("") and of its classes and functions, in source order."""

    def visit(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
        inner = name
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if not isinstance(node, ast.Module):
                inner = f"{name}.{node.name}" if name else node.name
            text = ast.get_docstring(node, clean=False)
            if text:
                yield inner, text
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from visit(child, inner)

    yield from visit(tree, "")


def _topics() -> dict[str, str]:
    """The language reference as ``help()`` shows it, by topic; empty if this Python has none."""
    try:
        from pydoc_data import topics
    except ImportError:
        return {}
    return {str(name): str(text) for name, text in dict(topics.topics).items()}


def _paragraphs(docstring: str) -> list[str]:
    """The prose of a docstring: one line per paragraph or list item, without code, tables and rules."""
    kept = []
    for block in re.split(r"\n[ \t]*\n", inspect.cleandoc(docstring)):
        lines = []
        for line in block.splitlines():
            if line.lstrip().startswith(">>>"):  # an example: its output ends where the block ends
                break
            if not _UNDERLINE.match(line) and not line.lstrip().startswith("# "):
                lines.append(line)
        if 2 * sum(bool(_COLUMNS.search(line)) for line in lines) > len(lines):
            continue
        kept += [text for text in map(_clean, _items(lines)) if _is_prose(text)]
    return kept


def _items(lines: list[str]) -> Iterator[str]:
    """Join hard-wrapped lines; a bullet, or a line indented less than the previous one, starts a new item."""
    item: list[str] = []
    last_indent = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if item and (_BULLET.match(line) or indent < last_indent):
            yield " ".join(item)
            item = []
        item.append(line.strip())
        last_indent = indent
    yield " ".join(item)


def _clean(text: str) -> str:
    """Drop list markers, reST markup, control characters and runs of white space."""
    text = _ROLE.sub(r"\1", _MARKER.sub("", text)).replace("``", "").replace("\\ ", "")
    text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """Whether most of a text is plain words, and there are enough of them."""
    words = text.split()
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    return len(words) >= FEWEST_WORDS and plain >= 0.6 * len(words) and "::=" not in text


def _without_repeats(examples: list[Text]) -> list[Text]:
    """Keep the first of equal texts within a part, and none that several parts share.

    Texts that differ only in names and numbers count as equal.
    """
    parts: dict[str, set[str]] = defaultdict(set)
    for example in examples:
        parts[_without_names(example.text)].add(str(example.label))
    first: dict[str, Text] = {}
    for example in examples:
        key = _without_names(example.text)
        if len(parts[key]) == 1:
            first.setdefault(key, example)
    return list(first.values())


def _without_names(text: str) -> str:
    """Return a text's plain words in lower case; anything else (``x_y``, ``a.b``, ``NAME``, 7) becomes ``#``."""
    words = (word.strip("()[]{}<>.,;:!?\"'`*") for word in text.split())
    return " ".join(w.lower() if w.isalpha() and (w == w.lower() or w.istitle()) else "#" for w in words)


def _large_parts(examples: list[Text]) -> list[Text]:
    counts = Counter(example.label for example in examples)
    return [example for example in examples if counts[example.label] >= FEWEST_PER_PART]


def split_labelled(
    labelled: list[Text], seed: int, per_class_train: int | None = None, *, per_class_test: int = 50
) -> LabelledSplit:
    """Split into texts to train on and texts to test on, by module.

    The test set depends only on the texts: all seeds and all sizes of training set share it, so one
    pre-training run without its texts serves them all. It takes whole modules (or whole classes of a module that is
    more than a third of its part) until it has ``per_class_test`` texts of each part, at most
    a third of the part; none of these units provides more than a fifth of them. ``seed`` samples
    ``per_class_train`` texts per part from the other modules (None: all; fewer if there are not that
    many); a smaller sample is part of a larger one with the same seed.
    """
    train: list[Text] = []
    test: list[Text] = []
    by_label: dict[str, list[Text]] = defaultdict(list)
    for text in labelled:
        assert isinstance(text.label, str)
        by_label[text.label].append(text)
    for _, texts in sorted(by_label.items()):
        pool, held = _divide(texts, min(per_class_test, len(texts) // 3))
        train += sorted(pool, key=_draw_of(f"train {seed}"))[:per_class_train]
        test += held
    return LabelledSplit(sorted(train, key=_draw_of(f"order {seed}")), sorted(test, key=_draw_of("order")))


def _divide(texts: list[Text], wanted: int) -> tuple[list[Text], list[Text]]:
    """Split one part into (texts to sample training texts from, ``wanted`` test texts) that share no module or class.

    Units are chosen by hash. Only some texts of a large one are used for testing, so that a part's score is not
    that of one module; its other texts are on neither side.
    """
    modules = Counter(_module(text) for text in texts)
    units: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        module = _module(text)
        large = 3 * modules[module] > len(texts)
        units[f"{module}:{_top_name(text)}" if large else module].append(text)
    pool: list[Text] = []
    held: list[Text] = []
    n_taken = 0
    for name in sorted(units, key=lambda name: _share("unit", name)):
        unit = units[name]
        if len(held) >= wanted or 2 * (n_taken + len(unit)) > len(texts):  # keep at least half for training
            pool += unit
        else:
            n_taken += len(unit)
            held += sorted(unit, key=_draw_of("test"))[: max(1, wanted // 5)]
    return pool, held[:wanted]


def without_texts(documents: Iterable[Document], texts: Iterable[Text]) -> list[Document]:
    """The documents without paragraphs that are exactly one of ``texts``; emptied documents are dropped."""
    removed = {text.text for text in texts}
    rest = (Document(tuple(p for p in d.paragraphs if p not in removed), d.where) for d in documents)
    return [document for document in rest if document.paragraphs]


def split_documents(documents: Iterable[Document], share: float = 0.05) -> tuple[list[Document], list[Document]]:
    """Split into (training, held-out) documents; about ``share`` are held out, chosen by a hash of their name."""
    train: list[Document] = []
    held: list[Document] = []
    for document in documents:
        (held if _share("document", document.where) < share else train).append(document)
    return train, held


def _module(text: Text) -> str:
    return text.where.split(":")[1]


def _top_name(text: Text) -> str:
    """The outermost class or function that a labelled docstring belongs to."""
    return text.where.split(":")[2].partition(".")[0]


def _draw_of(purpose: str) -> Callable[[Text], float]:
    """A sort key that shuffles texts, the same way on every machine."""
    return lambda text: _share(purpose, f"{text.where} {text.text}")


def _share(purpose: str, name: str) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    digest = hashlib.sha256(f"{purpose}\n{name}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
