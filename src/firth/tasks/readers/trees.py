"""Read the Stanford Sentiment Treebank's trees: ``(3 (2 It) (4 (2 's) (4 good)))``, one sentence per line."""

from collections.abc import Iterator
from pathlib import Path

from firth.errors import InputError
from firth.tasks.readers.files import Problems, check_records, make_each, read_lines
from firth.text.records import Text

# From very negative to very positive, as the trees write them.
SENTIMENTS = ("0", "1", "2", "3", "4")
# How the trees write brackets of the text, since brackets are their own syntax.
_WRITTEN = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def read_sentiment_trees(path: Path, problems: Problems) -> Iterator[Text]:
    """Read the whole sentences with the label of their root (Socher et al. 2013); phrases inside are left out.

    Words are joined by blanks, with brackets as brackets; ``\\/`` and ``\\*`` lose their backslash. The first line that
    is not such a tree is an error.
    """

    def make(item: tuple[int, str]) -> Text:
        number, line = item
        where = f"{path}:{number}"
        label, words = parse_tree(line, where)
        return Text(" ".join(words), label, where)

    lines = ((n, line) for n, line in read_lines(path, problems) if line.strip())
    return check_records(path, make_each(lines, make, problems), problems)


def parse_tree(line: str, where: str) -> tuple[str, list[str]]:
    """The label of a tree's root, and its words in order; InputError names a line that is not a tree."""
    tokens = line.replace("(", " ( ").replace(")", " ) ").split()
    words, depth, expects_label = list[str](), 0, False
    for place, token in enumerate(tokens):
        if token == "(":
            if expects_label or (depth == 0 and place):
                raise _no_tree(line, where)
            depth, expects_label = depth + 1, True
        elif expects_label:
            if token not in SENTIMENTS:
                raise InputError(f"{where}: found the label {token[:20]!r}, expected one of {', '.join(SENTIMENTS)}")
            expects_label = False
        elif token == ")":
            depth -= 1
            if depth < 0 or tokens[place - 1] in SENTIMENTS and tokens[place - 2] == "(":
                raise _no_tree(line, where)
        elif depth == 0:
            raise _no_tree(line, where)
        else:
            words.append(_WRITTEN.get(token, token.replace("\\/", "/").replace("\\*", "*")))
    if depth or not words:
        raise _no_tree(line, where)
    return tokens[1], words


def _no_tree(line: str, where: str) -> InputError:
    return InputError(f"{where}: found {line[:60]!r}, expected a tree such as (3 (2 It) (4 works))")
