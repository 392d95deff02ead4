"""Write lengths.json: the lengths of the benchmarks' texts, for machines without those texts.

.venv/bin/python benchmarks/record_lengths.py ../shared/data
"""

import json
import lzma
import sys
from collections import Counter
from pathlib import Path

from texts import LENGTHS, VOCABULARY, read

from firth.text.sentences import split_sentences
from firth.text.tokenizer import Tokenizer

if __name__ == "__main__":
    data = Path(sys.argv[1])
    tokenizer = Tokenizer.load(data / VOCABULARY)
    with lzma.open(data / "en-wiki/dev.txt.xz", "rt", encoding="utf-8") as file:
        paragraphs = [line for line in file.read().split("\n") if line]
    kinds = {kind: read(data, kind) for kind in ("sentences", "questions", "paragraphs")}
    kinds["article sentences"] = [sentence for text in paragraphs for sentence in split_sentences(text)]
    histograms = {
        kind: dict(sorted(Counter(max(len(ids), 1) for ids in tokenizer.ids_many(texts)).items()))
        for kind, texts in kinds.items()
    }
    about = "pieces a text, special ones left out: {length: how many texts}"
    record = {"about": about, "vocabulary": VOCABULARY, "histograms": histograms}
    LENGTHS.write_text(json.dumps(record, indent=None, separators=(",", ":")) + "\n", "utf-8")
