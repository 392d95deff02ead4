"""Records in portions."""

from firth.tasks.items import chunks
from firth.text.records import Record, Tagged, Text


def drawn_with(records: list[Record], at_once: int) -> list[tuple[int, list[Record]]]:
    """Each portion, and how many records were read before it came."""
    read = 0

    def counted():
        nonlocal read
        for record in records:
            read += 1
            yield record

    return [(read, some) for some in chunks(counted(), at_once)]


def test_a_portion_comes_before_the_next_record_is_read() -> None:
    a, b, c = (Text(letter) for letter in "abc")
    assert drawn_with([a, b, c], 1) == [(1, [a]), (2, [b]), (3, [c])]
    assert drawn_with([a, b, c], 2) == [(2, [a, b]), (3, [c])]


def test_a_document_stays_together_and_ends_with_its_last_sentence() -> None:
    one, two, other = (Tagged(text, ((0, 1),), group=group) for text, group in (("a", "1"), ("b", "1"), ("c", "2")))
    alone = Tagged("d", ((0, 1),))
    assert drawn_with([one, two, other, alone], 1) == [(3, [one, two]), (4, [other]), (4, [alone])]
    assert list(chunks([one, two], 1)) == [[one, two]] and list(chunks([], 1)) == []
