"""Word shapes: one example for each, and the order in which they are tried."""

import pytest

from firth.text.shapes import SHAPES, bucket_of, shape_of


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("1996-08-22", "number"),
        ("3,000", "number"),
        ("٣", "number"),
        ("B-52", "digits"),
        ("3rd", "digits"),
        ("--", "marks"),
        ("", "marks"),
        ("…", "marks"),
        ("NATO", "capitals"),
        ("U.S.", "capitals"),
        ("ÉTÉ", "capitals"),
        ("Geneva", "capital"),
        ("Émile", "capital"),
        ("I", "capital"),
        ("Xing", "capital"),
        ("eBay", "mixed"),
        ("left-handed", "hyphen"),
        ("running", "-ing"),
        ("walked", "-ed"),
        ("slowly", "-ly"),
        ("cats", "-s"),
        ("cat", "other"),
        ("강아지", "other"),
        ("ǅabc", "capital"),
    ],
)
def test_shape_of_a_word(word: str, shape: str) -> None:
    assert SHAPES[shape_of(word)] == shape


def test_a_bucket_is_a_function_of_the_word_alone() -> None:
    # CRC-32 of the UTF-8 bytes, against the published check value of another implementation.
    assert bucket_of("123456789", 1 << 32) == 0xCBF43926
    assert bucket_of("고양이", 1000) == bucket_of("고양이", 1000) < 1000
    assert len({bucket_of(f"w{i}", 1000) for i in range(500)}) > 350
    assert bucket_of("\ud800", 7) < 7
