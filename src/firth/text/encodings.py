"""Tell which encoding a file that is not UTF-8 probably has, and how to convert it."""

import re
import shlex
from pathlib import Path

from firth.remote import RemotePath

UTF16 = (b"\xff\xfe", b"\xfe\xff")
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
    if data.startswith(UTF16):
        return "UTF-16"
    korean = data.decode("cp949", "replace")
    return "CP949" if _is_mostly_hangul(korean) else "WINDOWS-1252"


def _is_mostly_hangul(text: str) -> bool:
    """Whether most characters beyond ASCII are Hangul; letters with accents, read as Korean, are rarely."""
    beyond = [character for character in text if not character.isascii()]
    return 2 * len(_HANGUL.findall(text)) > len(beyond) > 0
