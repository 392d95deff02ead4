"""Detects a file's encoding, and suggests the command that converts it."""

import subprocess
from pathlib import Path

import pytest

from firth.text.encodings import conversion

KOREAN, GERMAN = "배송이 빨라서 좋아요. 가격도 괜찮습니다.", "Café, naïve, über; Größe £5 – „gut“"
CHINESE, JAPANESE = "今天天气很好，大家都去公园散步。", "今日は天気がいいので散歩に行きました。"
RUSSIAN = "Сегодня хорошая погода."


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        (KOREAN, "cp949", "CP949"),
        (GERMAN, "cp1252", "WINDOWS-1252"),
        (KOREAN, "utf-16", "UTF-16"),
        (GERMAN, "utf-16", "UTF-16"),
        (GERMAN, "utf-32", "UTF-32"),
        (GERMAN, "utf-16-le", "UTF-16LE"),
        (GERMAN, "utf-16-be", "UTF-16BE"),
    ],
)
def test_the_command_converts_the_file(tmp_path: Path, text: str, encoding: str, named: str) -> None:
    path = tmp_path / "my labels.csv"
    path.write_bytes(text.encode(encoding))
    said = conversion(path, path.read_bytes())
    assert f"iconv -f {named} -t UTF-8" in said
    subprocess.run(["sh", "-c", said.partition("such as by: ")[2]], check=True)
    assert (tmp_path / "my labels-utf8.csv").read_text("utf-8") == text


def test_a_line_that_is_cut_in_a_character_is_korean_still(tmp_path: Path) -> None:
    assert "-f CP949" in conversion(tmp_path / "a.txt", KOREAN.encode("cp949")[:-2])


def test_a_packed_file_has_no_such_command(tmp_path: Path) -> None:
    assert conversion(tmp_path / "a.tsv.gz", b"\xe9") == "convert the file to UTF-8"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [(CHINESE, "gb18030"), (CHINESE, "big5hkscs"), (JAPANESE, "shift_jis"), (JAPANESE, "euc_jp"), (RUSSIAN, "cp1251")],
)
def test_no_command_makes_other_letters_of_a_text(tmp_path: Path, text: str, encoding: str) -> None:
    said = conversion(tmp_path / "a.txt", text.encode(encoding, "ignore"))
    assert "iconv -f ENCODING -t UTF-8" in said and "GB18030, BIG5, SHIFT_JIS" in said
