"""P5: plans, masks and packing: pre-training batches from a corpus folder, in one thread.

.venv/bin/python benchmarks/loader.py      # --megabytes 20; --corpus FOLDER; --quick
"""

import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import texts as material
import torch

from firth.bench.measure import in_turn
from firth.corpus.prepare import prepare
from firth.data.shards import Corpus
from firth.pretraining.assembly import make_loader
from firth.pretraining.recipe import read_recipe

# A row's name, the model that the batches are for, and its settings.
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "pairs, sequences of 128": ("bert-base", {"data.length": 128}),
    "pairs, sequences of 512": ("bert-base", {"data.length": 512}),
    "documents, sequences of 512": ("bert-base", {"data.length": 512, "data.instances": '"documents"'}),
    "pairs, sequences of 512, whole words": ("bert-base", {"data.length": 512, "masking.whole_words": "true"}),
    "left to right, sequences of 512": ("bert-ltr-base", {"data.length": 512}),
}
BATCH_TOKENS = 16_384
COLUMNS: measure.Columns = (
    ("name", "", "{}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("tokens", "tokens", "{:,}"),
    ("seconds", "seconds", "{:.3g}"),
    ("least_s", "least", "{:.3g}"),
    ("most_s", "most", "{:.3g}"),
)


def reading(corpus: Corpus, model: str, settings: dict[str, Any], batch_tokens: int) -> Callable[[], int]:
    """A function that makes all batches of an epoch from the corpus alone and counts their tokens."""
    data = {"corpus": str(corpus.folder), "workers": 0}
    plain = {"model": model, "data": data, "train": {"batch_tokens": batch_tokens}}
    laid_over = [f"{key}={value}" for key, value in settings.items()]
    recipe = read_recipe(plain, laid_over, "benchmark", vocab_size=corpus.tokenizer.size)
    # A new loader each time, because a loader keeps its last plans.
    return lambda: sum(batch.tokens.rows.n_tokens for batch in make_loader(recipe, corpus).one_epoch())


def corpus_of(options: Namespace, folder: Path) -> Corpus:
    if options.corpus is not None:
        return Corpus(options.corpus)
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    tokenizer.save(folder / "vocab")
    n_bytes = 100_000 if options.quick else options.megabytes * 10**6
    material.write_text(folder / "text.txt", n_bytes, options.data, tokenizer)
    prepare([folder / "text.txt"], folder / "vocab", folder / "corpus", hold_out=0.0)
    return Corpus(folder / "corpus")


def run(options: Namespace, folder: Path) -> Path:
    corpus = corpus_of(options, folder)
    batch_tokens = 1024 if options.quick else BATCH_TOKENS
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        readings = {name: reading(corpus, *what, batch_tokens) for name, what in READINGS.items()}
        tokens = {name: read() for name, read in readings.items()}
        spreads = in_turn(readings, options.repeats)
    finally:
        torch.set_num_threads(before)
    rows = [
        {"name": name, "tokens": tokens[name], "tokens_per_s": tokens[name] / spread.median, "seconds": spread.median,
         "least_s": spread.least, "most_s": spread.most, "all_s": list(spread.seconds)}
        for name, spread in spreads.items()
    ]  # fmt: skip
    shards = corpus.manifest.train
    return measure.write(
        "loader",
        title="Batches for pre-training, one thread",
        target="at least 3 million tokens a second and core",
        about=f"All batches of an epoch over {sum(info.tokens for info in shards):,} tokens in {len(shards)} shards, "
        f"{batch_tokens:,} tokens a batch: plan of the sequences, masks, packing, as training reads them; files are in "
        "memory already.",
        arguments=options,
        settings={"batch_tokens": batch_tokens, "shards": len(shards)},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=20, help="of text, of which the corpus is made")
    parser.add_argument("--corpus", type=Path, help="a corpus folder that is there already")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-loader-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
