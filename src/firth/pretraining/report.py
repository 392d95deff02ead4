"""``report.html`` of a pre-training run: curves, scores, recipe."""

from pathlib import Path
from typing import Any

import numpy as np

from firth.config import to_toml
from firth.data.shards import Corpus
from firth.explain.attention import MOST_LABELS, draw_attention
from firth.folder import read_model
from firth.inference.attention_maps import Attention, attention_layers, attention_weights
from firth.page import Report
from firth.pretraining.recipe import Pretrain
from firth.training.log import read_log

# Display names of loss terms.
_TERMS = {
    "mlm": "masked LM",
    "nsp": "next sentence",
    "lm": "language model",
    "forward": "forward language model",
    "backward": "backward language model",
    "translation": "translation",
    "contrast": "crops compared",
}
# Per-token losses depend on the vocabulary.
_OF_PIECES = ("mlm_loss", "lm_loss")
# Minimum number of tokens of a sentence to show attention for.
_SHORTEST = 8


def write_run_report(run: Path, recipe: Pretrain, corpus: Corpus | None = None) -> Path:
    """Write the report of a run from its log; needs the extra ``report`` (ConfigError without it).

    With the run's ``corpus``, losses are given per word as well.
    """
    events = read_log(run / "log.jsonl")
    train = [e for e in events if e["event"] == "train"]
    dev = [e for e in events if e["event"] == "dev"]
    report = Report(f"{recipe.model} pre-trained: {run.name}")
    _numbers(report, train, dev, None if corpus is None else tokens_per_word(corpus))
    for term, title in _TERMS.items():
        for kind, label in (("loss", "loss per prediction, nats"), ("accuracy", "accuracy")):
            key = f"{term}_{kind}"
            curves = {
                name: ([e["step"] for e in some], [e[key] for e in some])
                for name, some in (("training", train), ("held-out", dev))
                if len(some) > 1 and key in some[0]
            }
            if curves:
                report.lines_plot(f"{title}: {kind}", curves, "step", label)
    if len(train) > 1:
        steps = [e["step"] for e in train]
        report.lines_plot("Speed", {"tokens/s": (steps, [e["tokens_per_s"] for e in train])}, "step", "tokens/s")
        report.lines_plot(
            "Learning rate", {"learning rate": (steps, [e["rate"] for e in train])}, "step", "learning rate"
        )
    if corpus is not None and (run / "model").is_dir():
        _attention(report, run, corpus)
    report.heading("Recipe")
    report.pre(to_toml(recipe))
    return report.write(run / "report.html")


def tokens_per_word(corpus: Corpus) -> float | None:
    """Tokens per word of the held-out text; None without such text."""
    n_pieces = n_words = 0
    for info in corpus.shards("dev"):
        ids = corpus.open(info).ids
        n_pieces += len(ids)
        n_words += int(np.count_nonzero(~corpus.tokenizer.continues[ids]))
    return n_pieces / n_words if n_words else None


def _attention(report: Report, run: Path, corpus: Corpus) -> None:
    """Add the attention maps of the run's model on a held-out sentence, if it has attention."""
    loaded = read_model(run)
    encoder, layout = loaded.objective.encoder, loaded.layout
    most = min(MOST_LABELS, loaded.max_length or MOST_LABELS)
    ids = short_sentence(corpus, most - layout.n_special)
    if ids is None or not attention_layers(encoder):
        return
    row = layout.single(ids)
    attention = Attention([loaded.tokenizer.pieces[i] for i in row], attention_weights(encoder, row))
    report.plot("Attention of each head on a held-out sentence", draw_attention(attention))
    report.text("Rows attend (queries), columns are attended to (keys); darker is more.")


def short_sentence(corpus: Corpus, most: int) -> list[int] | None:
    """The ids of the first held-out sentence that is neither very short nor longer than ``most``, or None."""
    for info in corpus.shards("dev"):
        shard = corpus.open(info)
        lengths = np.diff(shard.sentences)
        fitting = np.flatnonzero((lengths >= _SHORTEST) & (lengths <= most))
        if len(fitting):
            begin, end = shard.sentences[fitting[0] : fitting[0] + 2]
            return shard.ids[begin:end].tolist()
    return None


def _numbers(report: Report, train: list[dict[str, Any]], dev: list[dict[str, Any]], per_word: float | None) -> None:
    """Add the last and best evaluations, that of the starting model, and the cost."""
    # Step 0 is the starting model: the best must be one that the run trained.
    before, made = [e for e in dev if not e["step"]], [e for e in dev if e["step"]]
    rows = [("before", e) for e in before]
    if made:
        best = min(made, key=lambda e: e["loss"])
        rows += [("best", best), ("last", made[-1])]
    if rows:
        _held_out_table(report, rows, per_word)
    if before and made and before[-1]["loss"] < best["loss"]:
        report.text("No evaluation of this run was better than its starting model.")
    if train:
        rates = sorted(e["tokens_per_s"] for e in train)
        report.text(
            f"{train[-1]['step']:,} steps in {train[-1]['elapsed_s'] / 60:.1f} minutes; "
            f"{rates[len(rates) // 2]:,.0f} tokens/s in the median."
        )


def _held_out_table(report: Report, rows: list[tuple[str, dict[str, Any]]], per_word: float | None) -> None:
    names = [name for name in rows[-1][1] if name not in ("event", "step", "loss")]
    of_pieces = [name for name in names if name in _OF_PIECES and per_word is not None]
    report.heading("Held-out text")
    report.table(
        ["", *(_title(name) for name in names), *(f"{_title(name)} per word" for name in of_pieces)],
        [
            [
                f"{what} (step {event['step']:,})",
                *(f"{event[name]:.4f}" for name in names),
                *(f"{event[name] * (per_word or 0):.4f}" for name in of_pieces),
            ]
            for what, event in rows
        ],
    )
    if of_pieces:
        report.text(
            f"Per-token losses of two vocabularies cannot be compared. Losses per word ({per_word:.3f} tokens here) "
            f"can, on the same text: roughly for masked tokens, which see the rest of their word."
        )


def _title(name: str) -> str:
    term, _, kind = name.partition("_")
    return f"{_TERMS.get(term, term)} {kind}"
