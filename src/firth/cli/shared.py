"""Shared by the commands: messages, tables, lines of text, and what to print on Ctrl-C."""

import dataclasses
import gc
import io
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Parameter, Token, validators

from firth.cli.command_hints import as_typed
from firth.config import is_open_stream
from firth.errors import ConfigError, FirthError, InputError, LengthError, UsageError, printable
from firth.files import check_regular
from firth.inference.precision import Precision
from firth.progress import columns_of, say
from firth.text.finding import PACKED

if TYPE_CHECKING:
    from firth.folder import Loaded
    from firth.inference.model import Model

# Maximum length of a file's path; longer text is not looked up as a file.
_LONGEST_NAME = 255
# Maximum characters of a line: the longest books have a quarter of that.
_LONGEST_LINE = 2**24
InputFile = Annotated[Path | None, Parameter(name="--input")]
Errors = Literal["replace", "strict"]
Flag = Annotated[bool, Parameter(show_default=False)]


# What the parser reads as "not given"; ``firth.cli.app`` then advises the user to leave the option out.
NOTHING = ("none", "null")


def _whole(kind: Any, tokens: Sequence[Token]) -> int | None:
    """Parse a whole number; cyclopts itself would round 1.5 to 2."""
    if tokens[0].value.lower() in NOTHING:
        return None
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value} is not a whole number.") from None


def _processes(kind: Any, tokens: Sequence[Token]) -> int | str | None:
    """Parse a number of processes, at least one, or auto."""
    if tokens[0].value == "auto":
        return "auto"
    if (n := _whole(kind, tokens)) is not None and n < 1:
        raise ValueError("Must be auto or at least 1.")
    return n


Whole = Annotated[int, Parameter(converter=_whole)]
ProcessesFlag = Annotated[int | Literal["auto"], Parameter(converter=_processes)]
JsonFlag = Annotated[bool, Parameter(name="--json", show_default=False)]
Texts = Annotated[str, Parameter(name="TEXT", required=True)]
OnFlag = Annotated[str | None, Parameter(name="--on")]
AtLeastOne = Annotated[Whole | None, Parameter(validator=validators.Number(gte=1))]
RecoverText = Literal["exact", "published"]
Others = Annotated[list[Path] | None, Parameter(name="--with")]
CompileFlag = Annotated[bool, Parameter(name="--compile", negative="--no-compile", show_default=False)]


@contextmanager
def importing() -> Iterator[None]:
    """A context for importing PyTorch without garbage collection, which takes a sixth of the import's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_and_say(model: Path, precision: Precision, compile: bool = False) -> "Model":
    """Load a model, and print its dtype if it is not the default."""
    with importing():
        from firth.inference.model import load_model
        from firth.machine import reuse_memory

    # With batches of a thousand tokens, zeroing new pages took a quarter of the time in int8, 6 % in float32.
    reuse_memory()
    loaded = load_model(model, precision=precision, compile=compile)
    if precision != "float32" or compile:
        say(loaded.path)
    return loaded


def unknown_tokens(texts: Sequence[str], loaded: "Loaded") -> tuple[int, int]:
    """The number of tokens of some texts, and of those among them that a model does not know."""
    tokenizer = loaded.tokenizer
    found = [
        one
        for ids in tokenizer.ids_many(list(texts))
        for one in ids
        if one == tokenizer.unk_id or one not in tokenizer.special_ids
    ]
    # An open vocabulary has ids beyond it.
    n_unknown = sum(one == tokenizer.unk_id or one >= tokenizer.size for one in found)
    return len(found), 0 if loaded.reads_letters else n_unknown


def say_unknown(text: str, model: "Model") -> None:
    """Warn if a model knows none or few of a text's tokens, so that its answer means little."""
    tokenizer = model.loaded.tokenizer
    n_tokens, n_unknown = unknown_tokens([text.replace("[MASK]", " ")], model.loaded)
    if not n_tokens and "[MASK]" not in text:
        say(f"{text!r}: no token in it: the answer means nothing")
    elif n_tokens and 2 * n_unknown >= n_tokens:
        unknown = f"{n_unknown} of {n_tokens} tokens are {tokenizer.kind.unk} to the model"
        say(f"{text!r}: {unknown}: the answer means little")


def print_json(data: Any) -> None:
    """Print one line of JSON on stdout."""
    plain = dataclasses.asdict(data) if dataclasses.is_dataclass(data) else data  # type: ignore[arg-type]  # an object, not a class
    print(json_line(plain))


def json_line(data: Any) -> str:
    """Format data as one line of JSON; infinity and NaN, which JSON lacks, become null."""
    return json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print indented lines of names and values."""
    shown = [(printable(name), printable(value)) for name, value in rows]
    width = max(columns_of(name) for name, _ in shown)
    for name, value in shown:
        print(f"  {name}{' ' * (width - columns_of(name))}  {value}")


def print_next(*command: str | Path, why: str = "") -> None:
    """Print the command that usually comes next, with ``why`` as a shell comment."""
    print(f"next: {shell(*command)}{f'  # {why}' if why else ''}")


def print_fill_mask_next(model: str | Path) -> None:
    """Print how to fill a mask with a model, in the language of its vocabulary."""
    text = "한강은 서울을 [MASK] 강이다." if _reads_korean(model) else "The capital of France is [MASK]."
    print_next("firth", "fill-mask", model, text)


def print_generate_next(model: str | Path) -> None:
    """Print how to generate text with a model, in the language of its vocabulary."""
    print_next("firth", "generate", model, "한강은 서울을" if _reads_korean(model) else "The capital of France is")


def _reads_korean(model: str | Path) -> bool:
    from firth.folder import find_model
    from firth.text.hangul import is_korean
    from firth.text.tokenizer import Tokenizer

    return is_korean(Tokenizer.load(find_model(model)))


def shell(*command: str | Path) -> str:
    """A command line as it must be typed here, quoted for the shell; placeholders such as TEXT stay bare."""
    return as_typed(shlex.join(map(str, command)))


def print_warnings(bad_bytes: int, bad_places: Iterable[tuple[str, int]], cut_lines: int, cut_documents: int) -> None:
    """Print problems found in the text, among the results."""
    for warning in text_warnings(bad_bytes, bad_places, cut_lines, cut_documents):
        print(f"  {warning}")


def text_warnings(
    bad_bytes: int, bad_places: Iterable[tuple[str, int]], cut_lines: int, cut_documents: int
) -> Iterator[str]:
    """Problems found in the text: invalid UTF-8, and lines or documents that were too long."""
    if bad_bytes:
        places = ", ".join(f"{path} at byte {offset:,}" for path, offset in bad_places)
        yield (
            f"warning: {counted(bad_bytes, 'place')} not UTF-8, replaced by U+FFFD and dropped: {places}; "
            "a file of another encoding is converted by iconv -f ENCODING -t UTF-8"
        )
    if cut_lines:
        yield f"warning: {counted(cut_lines, 'line')} too long for one paragraph, split"
    if cut_documents:
        yield f"warning: {counted(cut_documents, 'document')} too long, split (a blank line ends a document)"


def counted(n: int, noun: str) -> str:
    """``1 line``, ``1,200 lines``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


@contextmanager
def on_interrupt(advice: str) -> Iterator[None]:
    """Add ``advice`` on what to do next to the message of an interruption."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(advice) from None


def lines_from(path: Path | None) -> Iterator[str]:
    """The lines of a UTF-8 file, or of stdin, without their ends."""
    if path is None:
        if sys.stdin.isatty():
            say("reading lines from the terminal; end with Ctrl-D")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
        yield from _checked(sys.stdin, "stdin")
        return
    if path.suffix.lower() in PACKED:
        raise InputError(f"{path}: lines are read from plain files; unpack it first")
    try:
        if not is_open_stream(path):
            check_regular(path)
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield from _checked(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


# File name endings of tables and JSON objects, of which one column or key has the texts.
_TABLES = (".csv", ".tsv", ".jsonl", ".json")


def texts_from(path: Path | None, columns: str | None) -> Iterator[str]:
    """The texts of a table or of JSON lines, line breaks in them as spaces; else the lines of a file or of stdin.

    ``columns``: as ``firth predict --columns``. ConfigError for pairs of texts, and for columns of lines.
    """
    from firth.tasks.readers.files import Problems, bare_suffix

    if path is None or (columns is None and bare_suffix(path) not in _TABLES):
        if columns is not None:
            raise ConfigError("--columns is for a table: give its file, such as texts.csv")
        yield from lines_from(path)
        return
    from firth.finetuning.own_files import iter_file, with_columns
    from firth.finetuning.recipe import LabelledConfig

    problems, config = Problems(unique_ids=False), LabelledConfig(columns=columns or "")
    if columns is not None:  # a first line may show that it is a header
        config = with_columns("classify", str(path), config, problems, labelled=False)
    for record in iter_file("classify", path, config, problems, labelled=False):
        if record.second is not None:
            raise ConfigError(f"{record.where}: two texts, expected one: name its column, as in --columns text=0")
        yield " ".join(record.text.splitlines())
    for note in problems.report():
        say(note)


def filled_lines() -> Iterator[str]:
    """The lines of stdin that are not blank: see ``numbered_lines``."""
    return (line for _, line in numbered_lines(None))


def numbered_lines(path: Path | None) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers; reports how many blank ones were left out unanswered."""
    blank = 0
    for number, line in enumerate(lines_from(path), start=1):
        if line.strip():
            yield number, line
        else:
            blank += 1
    if blank:
        say(f"{path or 'stdin'}: {counted(blank, 'blank line')} left out: answers count the others")


def until_bad(check: Callable[[str], object], bad: list[FirthError]) -> Iterator[str]:
    """The lines of stdin that are not blank, up to the first that is not text or fails ``check``.

    The error (InputError or LengthError) is appended to ``bad``, with the line's number, so that the lines before it
    are answered first.
    """
    lines = numbered_lines(None)
    while True:
        try:
            number, line = next(lines, (0, ""))
        except InputError as error:  # it names its line
            bad.append(error)
            return
        if not number:
            return
        try:
            check(line)
        except (InputError, LengthError) as error:
            bad.append(type(error)(f"stdin:{number}: {error}"))
            return
        yield line


def _checked(file: TextIO, where: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), ""), start=1):
        if len(line) > _LONGEST_LINE:
            raise InputError(f"{where}, line {number}: more than {_LONGEST_LINE:,} characters; split it")
        check_text(line, f"{where}, line {number}")
        # A carriage return ends a line only before a line feed, as in files of labelled texts.
        yield (line.removeprefix("\ufeff") if number == 1 else line).removesuffix("\n").removesuffix("\r")


def looks_like_file(text: str) -> bool:
    """Whether a given text is the name of a file: it has a suffix and no space, and the file exists."""
    if not text.strip() or " " in text or "\0" in text or len(text) > _LONGEST_NAME or not Path(text).suffix:
        return False
    return Path(text).is_file()


def check_texts(texts: Sequence[str], file: Path | None = None, *, reads: str = "--input") -> None:
    """Refuse texts together with a file of texts, text that is not UTF-8, and a text that is the name of a file.

    ``reads``: what precedes the name of an input file on the command line.
    """
    if texts and file is not None:
        raise UsageError("give either TEXT or --input, not both")
    for text in texts:
        check_text(text, "TEXT")
        if looks_like_file(text):
            raise UsageError(
                f"{text} is a file here: {reads} {text} reads what is in it; to have the name itself read, give it on "
                "stdin"
            )


def check_text(text: str, where: str) -> None:
    """Refuse text with bytes that were not UTF-8 (they arrive as lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: not UTF-8; convert it to UTF-8") from None
