"""``scripts/cloze_questions.py``: questions made from articles alone, with answers that occur in their contexts."""

import json
import lzma
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "cloze_questions.py"
ARTICLE = (
    "The painter Maria Lind settled on the northern coast in spring. Her house by the harbour became a school.",
    "Storms from the sea damaged many boats that year. Fishermen repaired them through the winter months.",
    "The northern coast remembers Maria Lind as the painter of storms. A museum keeps her letters.",
    "The harbour school closed after the war had ended. Its garden is open to visitors now.",
)


def run(*arguments: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_answers_stand_in_contexts_that_lack_the_asked_sentence(tmp_path: Path) -> None:
    text, out = tmp_path / "text.xz", tmp_path / "questions.json"
    text.write_bytes(lzma.compress("\n".join([*ARTICLE, "", *ARTICLE, ""]).encode()))
    assert run(text, "9", out).stdout == f"{out}: 2 questions\n"
    for article in json.loads(out.read_text("utf-8"))["data"]:
        (paragraph,) = article["paragraphs"]
        (question,) = paragraph["qas"]
        (answer,) = question["answers"]
        assert answer["text"] == "Maria Lind" and "Maria Lind" not in question["question"]
        assert paragraph["context"][answer["answer_start"] :].startswith("Maria Lind")
        assert paragraph["context"].count("Maria Lind") == 1 and question["question"].endswith("?")
    again = tmp_path / "again.json"
    run(text, "9", again)
    assert again.read_bytes() == out.read_bytes()


def test_known_contexts_are_left_out(tmp_path: Path) -> None:
    text, squad, out = tmp_path / "text.xz", tmp_path / "squad.json", tmp_path / "questions.json"
    text.write_bytes(lzma.compress("\n".join([*ARTICLE, ""]).encode()))
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": " ".join(ARTICLE), "qas": []}]}]}), "utf-8")
    assert run(text, "9", out, squad).stdout == f"{out}: 0 questions\n"
