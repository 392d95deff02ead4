"""Extract plain-text paragraphs from a Wikipedia dump (``pages-articles.xml``).

The XML is streamed. Running text, headings and list items are kept; templates, tables,
references, galleries, formulas, links to files and categories are removed. Every step is linear in the length of the
article: nested markup is matched with a stack, so an unclosed brace costs no more than a closed one.
"""

import html
import re
from collections.abc import Iterator
from typing import Any, Protocol
from xml.etree import ElementTree

from firth.errors import InputError

_PAIRS = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements removed with their contents. An unclosed element ends with its paragraph.
_DROPPED = re.compile(
    r"<(ref|math|gallery|timeline|source|syntaxhighlight|score|chem|imagemap|graph|mapframe|hiero|code|pre)\b"
    r"(?:[^<>]*/>|[^<>]*>.*?(?:</\1\s*>|(?=\n\n)|\Z))",
    re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]*>")
# Elements that begin a line of their own; the text before one of the others continues behind it.
_BLOCK = re.compile(r"</?(?:p|div|blockquote|center|li|ul|ol|dl|dd|dt|hr|h[1-6]|poem)\b[^<>\n]*>", re.IGNORECASE)
_LINE_BREAK = re.compile(r"<br\b[^<>\n]*>", re.IGNORECASE)
# A parameter of a template, with the text that stands where none is given.
_PARAMETER = re.compile(r"(?<!\{)\{\{\{[^{}|\n]*+(?:\|([^{}\n]*+))?\}\}\}")
# Possessive, so that an unclosed bracket fails at once.
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]*+[ \t]*+([^\[\]\n]*+)\]")
_HEADING = re.compile(r"^(={1,6})\s*(.+?)\s*\1\s*$")
_QUOTES = re.compile(r"'{2,5}")
_MAGIC = re.compile(r"__[A-Z]+__")
_LINE_MARKS = "*#:; \t"
_REDIRECT = re.compile(r"\s*#\s*(?:REDIRECT|넘겨주기|転送|重定向|WEITERLEITUNG|REDIRECTION|REDIRECCIÓN)", re.IGNORECASE)
_EMPTY_BRACKETS = re.compile(r" ?\([ ,;:·]*+\)")
_SPACES = re.compile(r"[ \t\u00a0]+")
_LONGEST_HEADING = 300  # characters
_DEEPEST = 50  # levels of nested markup; deeper ones are plain text
# Namespaces whose links are invisible in the text; a dump names those of its language.
_NAMESPACES = frozenset(("file", "image", "category", "media", "wikipedia", "template", "help", "portal"))
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def articles(stream: _Readable, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (page number from 1, title and paragraphs) for each article of a dump.

    Redirects and pages outside the article namespace have no paragraphs. InputError for a file that is not a dump.
    """
    number = 0
    try:
        events = ElementTree.iterparse(stream, ("start", "end"))
        _, root = next(events)
        if _name(root) != "mediawiki":
            raise InputError(f"{where}: expected a Wikipedia dump (<mediawiki>), got <{_name(root)}>")
        namespaces = _NAMESPACES
        for event, element in events:
            if event == "start":
                continue
            if _name(element) == "namespace" and element.text:
                namespaces |= {element.text.strip().lower()}
            if _name(element) == "page":
                number += 1
                yield number, _paragraphs_of_page(element, namespaces)
                root.clear()
    except InputError:
        raise
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last two come from encodings
        raise InputError(f"{where}: not XML, or cut off: {error}") from None


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _paragraphs_of_page(page: Any, namespaces: frozenset[str]) -> list[str]:
    fields = {_name(part): part for part in page.iter() if _name(part) in ("title", "ns", "redirect", "text")}
    texts = {name: (part.text or "") for name, part in fields.items()}
    if texts.get("ns", "0").strip() != "0" or "redirect" in fields or _REDIRECT.match(texts.get("text", "")):
        return []
    body = plain_text(texts.get("text", ""), namespaces)
    return [texts.get("title", "").strip(), *body] if body else []


def plain_text(markup: str, namespaces: frozenset[str] = _NAMESPACES) -> list[str]:
    """Extract paragraphs, headings and list items from wiki markup; headings end with a full stop.

    ``namespaces``, in lower case: links into them are removed with their text.
    """
    text = _DROPPED.sub("", _COMMENT.sub("", markup))
    text = _without_nested(_PARAMETER.sub(r"\1", text), namespaces)
    text = _TAG.sub("", _LINE_BREAK.sub(" ", _BLOCK.sub("\n", text)))
    text = _QUOTES.sub("", _MAGIC.sub("", _EXTERNAL.sub(r"\1", text)))
    text = html.unescape(html.unescape(text))
    paragraphs = []
    headings: list[str] = []
    for line in text.splitlines():
        heading = _HEADING.match(line) if len(line) <= _LONGEST_HEADING else None
        spaced = _SPACES.sub(" ", (heading[2] if heading else line).lstrip(_LINE_MARKS))
        bare = _EMPTY_BRACKETS.sub("", spaced).strip()  # brackets that held only a template
        if heading and bare:
            # A heading is kept only if text follows; empty sections (references) lose theirs.
            headings = [*headings[: max(len(heading[1]) - 2, 0)], bare if bare[-1] in ".?!" else f"{bare}."]
        elif any(character.isalnum() for character in bare):
            paragraphs += [*headings, bare]
            headings = []
    return paragraphs


def _without_nested(text: str, namespaces: frozenset[str]) -> str:
    """Remove templates and tables, and replace links by their visible text."""
    # Each level is (opening markup, parts of its text so far).
    levels: list[tuple[str, list[str]]] = [("", [])]
    position = 0
    while match := _PAIRS.search(text, position):
        mark = match[0]
        if mark == "|}" and levels[-1][0] != "{|" and text.startswith("}", match.end()):
            # The bar belongs to the template that ends here.
            levels[-1][1].append(text[position : match.start() + 1])
            position = match.start() + 1
            continue
        opener = {"}}": "{{", "|}": "{|", "]]": "[["}.get(mark)
        levels[-1][1].append(text[position : match.start()])
        position = match.end()
        if opener is None:
            if len(levels) < _DEEPEST:
                levels.append((mark, []))
        elif any(opened == opener for opened, _ in levels):
            # Unclosed markup inside ends here as well.
            while levels[-1][0] != opener:
                _, pieces = levels.pop()
                levels[-1][1].extend(pieces)
            _, pieces = levels.pop()
            if mark == "]]":
                levels[-1][1].append(_shown("".join(pieces), namespaces))
    levels[-1][1].append(text[position:])
    # An unclosed link or template keeps its text: better a stray word than half an article lost.
    return "".join(piece for _, pieces in levels for piece in pieces)


def _shown(link: str, namespaces: frozenset[str]) -> str:
    """The visible text of a link; empty for files, categories and other languages."""
    target, bar, label = link.partition("|")
    prefix, colon, _ = target.partition(":")
    if colon and (prefix.strip().lower() in namespaces or _LANGUAGE.fullmatch(prefix)):
        return ""
    return (label.rpartition("|")[2] if bar else target.lstrip(":")) or target.lstrip(":")
