"""Wikipedia dumps: which parts of the markup are text."""

import bz2
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.text.corpus import CorpusReader
from firth.text.wikipedia import plain_text

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="ko">
  <siteinfo><namespaces><namespace key="0" /><namespace key="6">파일</namespace></namespaces></siteinfo>
  {pages}
</mediawiki>
"""
PAGE = "<page><title>{}</title><ns>{}</ns>{}<revision><text>{}</text></revision></page>"


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''italic''.", ["Bold and italic."]),
        ("A [[link]], [[target|shown]] and [[wood]]s.", ["A link, shown and woods."]),
        ("[[2001: A Space Odyssey]] and [[Star Trek: Picard|it]].", ["2001: A Space Odyssey and it."]),
        ("[[File:a.jpg|thumb|A [[caption]] here]]Text.[[Category:Things]] [[de:Ding]]", ["Text."]),
        ("One {{cite|a={{b|c}}|d}}two{{reflist}}.", ["One two."]),
        ("Name ({{lang|el|ὄνομα}}, ) is.", ["Name is."]),
        ("See [http://x.y/z the site], [https://x.y] or [//x.y a b].", ["See the site, or a b."]),
        ('A fact.<ref name="a">Book, p. 3</ref> More.<ref name=b /> End.', ["A fact. More. End."]),
        ("a<!-- hidden -->b <math>x^2</math> c<br/>d <b>e</b>", ["ab c d e"]),
        ("Red,<br>\nblue.<br />Sugar.<p>New</p>and<div>old</div>", ["Red,", "blue. Sugar.", "New", "and", "old"]),
        ("{{{name|John}}} was {{{here}}} {{x|a={{{b|}}}}}.", ["John was ."]),
        ('{| class="wikitable"\n! a\n|-\n| b || c\n|}\nAfter.', ["After."]),
        ("{{Infobox\n|name = S\n|}}\nA town.{{cn|}} More {{x|{{y|}}}}.", ["A town. More ."]),
        ("{|\n| x {{cn|}} || y\n|-\n| z\n|}\nAfter.", ["After."]),
        ("{{x|\n{| class=a\n| b\n|}}} after.", ["after."]),
        ("* one\n** two\n# three\n:: four", ["one", "two", "three", "four"]),
        (
            "Text.\n== History ==\n=== Early ===\nThen.\n== References ==\n{{reflist}}",
            ["Text.", "History.", "Early.", "Then."],
        ),
        ("== A ==\nx\n=== B ===\n== C ==\ny", ["A.", "x", "C.", "y"]),
        ("A &amp;amp; B &lt;c&gt; __NOTOC__ d", ["A & B <c> d"]),
        ("Unclosed {{template with text", ["Unclosed template with text"]),
        ("Unopened }} and ]] here", ["Unopened and here"]),
        ("", []),
        ("----\n|}", []),
    ],
)
def test_markup(markup: str, expected: list[str]) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    "mark", ["{{", "{{{", "{{{a|", "<br", "[[", "{|", "[[a", "[//", "<ref>", "<!--", "= ", "( ", "'''", "&amp;", "<a"]
)
def test_unclosed_marks_end(mark: str) -> None:
    """Each of these once took quadratic time in some reader of wiki text: here each is repeated 200,000 times."""
    assert isinstance(plain_text(mark * 200_000), list)


def test_nesting_of_any_depth() -> None:
    assert plain_text("{{" * 20_000 + "x" + "}}" * 20_000 + " y") in (["y"], ["x y"], ["x"])
    assert plain_text("[[a|" * 30 + "x" + "]]" * 30) == ["x"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_dump(tmp_path: Path, packed: bool) -> None:
    pages = [
        PAGE.format("강", 0, "", "'''강'''은 흐른다. [[파일:a.jpg|섬네일]]\n\n== 역사 ==\n오래되었다."),
        PAGE.format("옮김", 0, '<redirect title="강" />', "#넘겨주기 [[강]]"),
        PAGE.format("토론:강", 1, "", "Talk."),
        PAGE.format("빈 문서", 0, "", "{{a}}"),
        PAGE.format("산 &amp; 들", 0, "", "높다."),
    ]
    data = DUMP.format(pages="\n".join(pages)).encode()
    path = tmp_path / ("pages-articles.xml.bz2" if packed else "pages-articles.xml")
    path.write_bytes(bz2.compress(data) if packed else data)
    reader = CorpusReader([path])
    read = [(document.paragraphs, document.where) for document in reader]
    assert read == [
        (("강", "강은 흐른다.", "역사.", "오래되었다."), f"{path}:1"),
        (("산 & 들", "높다."), f"{path}:5"),
    ]
    assert reader.bytes_consumed == reader.total_bytes == path.stat().st_size
    assert reader.report.bytes_read == len(data) and reader.report.documents == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html><body/></html>", "expected a Wikipedia dump .*got <html>"),
        ("not XML at all", "a.xml: not XML, or cut off"),
        (DUMP.format(pages=PAGE.format("A", 0, "", "Text."))[:-30], "a.xml: not XML, or cut off"),
        ("", "a.xml: not XML, or cut off"),
        ('<?xml version="1.0" encoding="EUC-KR"?><mediawiki/>', "a.xml: not XML, or cut off: multi-byte encodings"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.xml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(CorpusReader([path]))
