"""Tell which encoding a file that is not UTF-8 probably has, and how to convert it."""

import re
import shlex
from pathlib import Path

from firth.remote import RemotePath

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# The first begins as UTF-16 does.
_UTF32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_HANGUL = re.compile("[가-힣]")


def conversion(path: Path, data: bytes) -> str:
    """The command that converts a file to UTF-8, by some of its bytes: a byte order mark, Korean, or Windows' own.

    Of a packed file, or one at an address, only what is to be done: a command would first have to unpack or fetch it.
    """
    if isinstance(path, RemotePath) or path.suffix.lower() in (".gz", ".xz", ".bz2", ".zst"):
        return "convert the file to UTF-8"
    converted = path.with_name(f"{path.stem}-utf8{path.suffix}")
    command = f"iconv -f {_encoding(data)} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(converted))}"
    return f"convert the file to UTF-8, such as by: {command}"


def _encoding(data: bytes) -> str:
    """The encoding as iconv names it."""
    if wide := wide_encoding(data):
        return wide
    if is_utf16(data):
        # Of a Latin letter the byte that is not 0 comes first or second.
        return "UTF-16LE" if data[1::2].count(0) > data[::2].count(0) else "UTF-16BE"
    korean = data.decode("cp949", "replace")
    return "CP949" if _is_mostly_hangul(korean) else "WINDOWS-1252"


def wide_encoding(data: bytes) -> str:
    """UTF-16 or UTF-32 where a byte order mark says so, else empty."""
    return next((name for name, marks in (("UTF-32", _UTF32), ("UTF-16", _UTF16)) if data.startswith(marks)), "")


def is_utf16(data: bytes) -> bool:
    """Whether a line is UTF-16 without a byte order mark: a third or more of its bytes are 0, as none of a text are."""
    return 3 * data.count(0) >= len(data) > 1


def _is_mostly_hangul(text: str) -> bool:
    """Whether most characters beyond ASCII are Hangul; letters with accents, read as Korean, are rarely."""
    beyond = [character for character in text if not character.isascii()]
    return 2 * len(_HANGUL.findall(text)) > len(beyond) > 0
