"""Record a pre-training run in docs/results/: numbers and examples as JSON, curves as an image.

    .venv/bin/python scripts/record.py models/en-large/firth-mini-en firth-mini-en

Masks are chosen by rule, not by hand: the first sentences of 8 to 24 words in the held-out text (in the order of a
hash), with one whole-word token of each masked by the same hash.
"""

import dataclasses
import hashlib
import json
import math
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from recorded import commit

import firth
from firth.config import read_json
from firth.data.shards import Corpus
from firth.files import write_json
from firth.pretraining.assembly import make_dev_loader
from firth.pretraining.recipe import Pretrain
from firth.pretraining.run import recipe_of
from firth.studies.learning import PAIRS, preferred
from firth.training.checkpoint import list_checkpoints
from firth.training.log import read_log

OUT = Path("docs/results")
DATA = Path(os.environ.get("DATA", "../shared/data"))
N_EXAMPLES = 12
N_CASED = 300
HELD_OUT_BATCHES = 120
CURVES = {
    "mlm_loss": "masked-LM loss (nats)",
    "mlm_accuracy": "masked-LM accuracy",
    "nsp_accuracy": "next-sentence accuracy",
}


def rank(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def examples(model: firth.Model, corpus: Corpus) -> list[dict[str, Any]]:
    """Held-out sentences with one mask each: the original token, and the five likeliest tokens."""
    tokenizer, sentences = corpus.tokenizer, []
    for info in corpus.shards("dev"):
        shard = corpus.open(info)
        sentences += [shard.ids[a:b].tolist() for a, b in zip(shard.sentences[:-1], shard.sentences[1:], strict=True)]
    chosen = []
    for ids in sorted((s for s in sentences if 8 <= len(s) <= 32), key=lambda s: rank(tokenizer.decode(s))):
        text = tokenizer.decode(ids)
        # Whole words of one token: letters, not continued by the next token.
        after = [*(tokenizer.continues[piece] for piece in ids[1:]), False]
        words = [i for i, piece in enumerate(ids) if tokenizer.pieces[piece].isalpha() and not after[i]]
        if len(words) < 6:
            continue
        at = words[int.from_bytes(rank(text), "little") % len(words)]
        masked = f"{tokenizer.decode(ids[:at])} [MASK] {tokenizer.decode(ids[at + 1 :])}".strip()
        chosen.append((masked, tokenizer.pieces[ids[at]]))
        if len(chosen) == N_EXAMPLES:
            break
    answers = model.fill_mask([text for text, _ in chosen])
    return [
        {"text": text, "was": truth, "best": [[c.token, round(c.probability, 3)] for c in blanks[0].candidates]}
        for (text, truth), blanks in zip(chosen, answers, strict=True)
    ]


@torch.no_grad()
def scores(model: firth.Model, recipe: Pretrain, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Scores on held-out text, in sequences of each length of the run: mean losses and accuracies, in float32."""
    found = {}
    for length in sorted({recipe.data.length, *recipe.data.lengths}):
        data = dataclasses.replace(recipe.data, length=length, long_length=0, mixed_lengths=False)
        loader = make_dev_loader(dataclasses.replace(recipe, data=data), corpus)
        sums: dict[str, float] = {}
        for batch in loader.one_epoch(HELD_OUT_BATCHES):
            step = model.loaded.objective(batch)
            for term, count in batch.counts().items():
                for name, value in (("loss", step.losses[term]), ("accuracy", step.correct[term]), ("count", count)):
                    sums[f"{term}_{name}"] = sums.get(f"{term}_{name}", 0.0) + float(value)
        found[f"rows of {length}"] = {
            name: round(value / sums[f"{name.split('_')[0]}_count"], 4)
            for name, value in sums.items()
            if not name.endswith("count")
        } | {name: value for name, value in sums.items() if name.endswith("count")}
    return found


def lower_case(model: firth.Model, corpus: Corpus) -> dict[str, float]:
    """Pseudo-perplexity per token of held-out sentences of 60 to 200 characters, unchanged and in lower case."""
    tokenizer, sentences = corpus.tokenizer, set[str]()
    for info in corpus.shards("dev"):
        shard = corpus.open(info)
        bounds = zip(shard.sentences[:-1], shard.sentences[1:], strict=True)
        sentences.update(tokenizer.decode(shard.ids[a:b].tolist()) for a, b in bounds)
    chosen = sorted((s for s in sentences if 60 <= len(s) <= 200), key=rank)[:N_CASED]
    found = {}
    for name, texts in (("as written", chosen), ("lower case", [text.lower() for text in chosen])):
        tokens = [token.log_probability for score in model.score_texts(texts) for token in score.tokens]
        found[name] = round(math.exp(-sum(tokens) / len(tokens)), 2)
    return found


def _place(made: dict[str, Any]) -> str:
    """Where a run was trained, as far as its checkpoint records it."""
    return "one GPU" if made["device"] == "cuda" else f"{platform.machine()}, {made['threads']} CPU threads"


def plot(events: list[dict[str, Any]], name: str) -> None:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    shown = {key: title for key, title in CURVES.items() if any(key in event for event in events)}
    for axes, (key, title) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        for event, label, colour in (("train", "training", "#0072b2"), ("dev", "held-out", "#d55e00")):
            some = [e for e in events if e["event"] == event and key in e]
            axes.plot([e["step"] for e in some], [e[key] for e in some], label=label, color=colour, linewidth=1.3)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(color="#e4e4ea", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(OUT / f"{name}.png", dpi=110, facecolor="white")


def main(run: Path, name: str) -> None:
    recipe, events = recipe_of(run), read_log(run / "log.jsonl")
    train = [e for e in events if e["event"] == "train"]
    dev = [e for e in events if e["event"] == "dev"]
    corpus = Corpus(recipe.data.corpus)
    rates = sorted(e["tokens_per_s"] for e in train)
    _, checkpoint = list_checkpoints(run / "checkpoints")[-1]
    made = read_json(checkpoint / "train" / "state.json")["environment"]
    # The minimal pairs are English.
    pairs = {title: DATA / path for title, path in PAIRS.items()} if "-en" in name else {}
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {
        "command": f"make models; .venv/bin/python scripts/record.py {run} {name}",
        "commit": commit(),
        "machine": f"{_place(made)}, {made['numbers']}",
        "torch": made["torch"],
        "python": platform.python_version(),
        "corpus": {
            "tokens": sum(i.tokens for i in corpus.manifest.train),
            "documents": sum(i.documents for i in corpus.manifest.train),
            "held_out_tokens": sum(i.tokens for i in corpus.manifest.dev),
        },
        "steps": train[-1]["step"],
        "minutes": round(train[-1]["elapsed_s"] / 60, 1),
        "median_tokens_per_s": rates[len(rates) // 2],
        "best": min(dev, key=lambda e: e["loss"]),
        "held_out": scores(firth.load(run), recipe, corpus),
        "pseudo_perplexity": lower_case(firth.load(run), corpus) if "-en" in name else {},
        "pairs": {title: preferred(checkpoint, path) for title, path in pairs.items() if path.is_file()},
        "curve": dev,
        "examples": examples(firth.load(run), corpus),
        "recipe": dataclasses.asdict(recipe),
    }
    write_json(OUT / f"{name}.json", json.loads(json.dumps(facts)))
    plot(events, name)
    print(f"wrote {OUT / name}.json and .png")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: scripts/record.py RUN NAME")
    main(Path(sys.argv[1]), sys.argv[2])
