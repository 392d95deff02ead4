"""The demo's Korean example: film reviews, labelled by their authors' star ratings.

500 reviews from the Naver Sentiment Movie Corpus (Park 2016, CC0), among those that no bundled model was trained on.
"""

from pathlib import Path

from firth.text.records import Text

_FILE = Path(__file__).with_name("reviews.tsv")


def read_reviews() -> list[Text]:
    """Return the reviews; ``where`` is ``nsmc:NUMBER:``."""
    lines = [line for line in _FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = (line.split("\t") for line in lines)
    return [Text(text, label, f"nsmc:{number}:") for number, text, label in rows]
