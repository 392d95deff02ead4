"""The peer's side of prepare.py: text to blocks of ids for masked-LM training, as in transformers' examples.

.venv/bin/python benchmarks/peer_prepare.py TEXT TOKENIZER OUT --workers 2

Reads a file of lines, tokenises it in batches in several processes, joins the ids and cuts them into blocks of one
length; all with ``datasets``, whose files training then reads. Ends with a line of JSON.
"""

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

LENGTH = 512


def tokens_of(rows: dict[str, list[str]], tokenizer: Any) -> dict[str, Any]:
    """The ids of each line, with special tokens marked so that they are never masked."""
    found: dict[str, Any] = tokenizer(rows["text"], return_special_tokens_mask=True)
    return found


def blocks_of(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Join each column and cut it into blocks of LENGTH; the incomplete last block is left out."""
    joined = {name: list(chain.from_iterable(values)) for name, values in rows.items()}
    n = len(joined["input_ids"]) // LENGTH * LENGTH
    return {name: [values[a : a + LENGTH] for a in range(0, n, LENGTH)] for name, values in joined.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("text", "tokenizer", "out"):
        parser.add_argument(name)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--count", action="store_true", help="also count the tokens, which takes time")
    options = parser.parse_args()

    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    # Long lines are cut into blocks later, so warnings about their length do not matter.
    tokenizer.model_max_length = 10**9
    text = datasets.load_dataset("text", data_files={"train": options.text}, cache_dir=options.out, split="train")
    tokenised = text.map(
        tokens_of, batched=True, num_proc=options.workers, remove_columns=["text"], fn_kwargs={"tokenizer": tokenizer}
    )
    blocks = tokenised.map(blocks_of, batched=True, num_proc=options.workers)
    said = {"training_bytes": sum(Path(file["filename"]).stat().st_size for file in blocks.cache_files)}
    if options.count:
        # Without the two special tokens of each line.
        said["tokens"] = sum(len(ids) - 2 for ids in tokenised["input_ids"])
    print(json.dumps(said))


if __name__ == "__main__":
    main()
