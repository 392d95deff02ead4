"""The campaign's material: small inputs, commands that write, commands that only answer, and the files they read."""

import bz2
import gzip
import json
import lzma
import pickle
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torture_harness import Command, Server, Workplace

WORDS = "the river a green hill market quiet garden old farmer walked 강가에서 시장에서 편지를 썼다"
_TRAIN = """[train]
steps = 6
batch_tokens = 64
micro_batches = 2
log_every = 1
eval_every = 2
eval_batches = 2
save_every = 2
precision = "float32"
"""
RECIPE = f"""model = "bert-tiny"
[encoder]
width = 16
n_layers = 1
n_heads = 2
feed_forward_width = 32
max_positions = 32
[data]
corpus = "corpus"
length = 16
{_TRAIN}"""
FINETUNE = """task = "{task}"
model = "./run"
[data]
train = "{train}"
dev = "{dev}"
[train]
epochs = 1
batch_examples = 8
precision = "float32"
"""


def _run(server: Server, inputs: Path, commands: Sequence[tuple[str, ...]]) -> None:
    """Run commands whose last word is their output; an output that exists is complete, and is kept."""
    for words in commands:
        if not (inputs / words[-1]).exists():
            (ran,) = server.run(words, root=inputs)
            assert ran.code == 0, (words, ran.err)


def make_workplace(folder: Path, server: Server) -> Workplace:
    """Make text, labels, a tokenizer, a corpus, a run and a fine-tuned model; those that exist are kept."""
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = WORDS.split()
    documents = ["\n".join(" ".join(rng.choices(words, k=9)) + "." for _ in range(8)) for _ in range(40)]
    (inputs / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
    (inputs / "recipe.toml").write_text(RECIPE)
    (inputs / "finetune.toml").write_text(FINETUNE.format(task="classify", train="train.tsv", dev="dev.tsv"))
    for name, n in (("train", 24), ("dev", 8)):
        rows = [f"{' '.join(rng.choices(words, k=4))}\t{'ab'[i % 2]}\n" for i in range(n)]
        (inputs / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows), "utf-8")
    _run(server, inputs, MADE)
    return Workplace(inputs)


_SHARED = ("--workers", "1", "--hold-out", "0.2", "--out")
MADE: list[tuple[str, ...]] = [
    ("vocab", "text.txt", "--size", "80", "--workers", "1", "--out", "vocab"),
    ("prepare", "text.txt", "--tokenizer", "vocab", *_SHARED, "corpus"),
    ("pretrain", "recipe.toml", "--out", "run"),
    ("finetune", "finetune.toml", "--out", "classifier"),
]

# One entry per system: recipe tables that make it small, as in the contract tests, and the corpus that it reads.
SYSTEMS: dict[str, tuple[str, str]] = {
    "bert-ltr": (
        "corpus",
        'model = "bert-ltr-tiny"\n[encoder]\nwidth = 16\nn_layers = 1\nn_heads = 2\nfeed_forward_width = 32\n'
        "max_positions = 32\n",
    ),
    "gpt": ("corpus", 'model = "gpt-tiny"\n[encoder]\nwidth = 64\nn_layers = 1\nn_heads = 1\nmax_positions = 32\n'),
    "transformer": (
        "pairs",
        'model = "transformer-tiny"\n[encoder]\nwidth = 16\nn_heads = 2\nfeed_forward_width = 32\n',
    ),
    "vectors": ("words-corpus", 'model = "vectors-small"\n[encoder]\nwidth = 16\n'),
    "awd-lstm": ("corpus", 'model = "awd-lstm-tiny"\n[encoder]\nwidth = 12\nhidden_width = 16\n'),
    "elmo": (
        "words-corpus",
        'model = "elmo-mini"\n[objective]\nnegatives = 10\n[encoder]\nwidth = 8\ncells = 12\ncharacter_width = 4\n'
        "filters = [[1, 4], [2, 8]]\n",
    ),
    "cove": (
        "words-pairs",
        'model = "cove-small"\nvectors = "vectors.txt"\n[encoder]\nwidth = 16\nhidden_width = 12\n',
    ),
    "lstm": ("corpus", 'model = "lstm-small"\n[encoder]\nwidth = 12\ndropout = 0.1\n'),
}
_WORD_VOCABULARY = ("vocab", "text.txt", "--size", "20", "--kind", "words", "--workers", "1", "--out", "words")
# The commands that make each corpus; the tokenizer first.
_CORPORA: dict[str, list[tuple[str, ...]]] = {
    "corpus": [],
    "pairs": [("prepare", "a.txt", "--second", "b.txt", "--tokenizer", "vocab", *_SHARED, "pairs")],
    "words-corpus": [_WORD_VOCABULARY, ("prepare", "text.txt", "--tokenizer", "words", *_SHARED, "words-corpus")],
    "words-pairs": [
        _WORD_VOCABULARY,
        ("prepare", "a.txt", "--second", "b.txt", "--tokenizer", "words", *_SHARED, "words-pairs"),
    ],
}


def make_systems(workplace: Workplace, server: Server, names: Sequence[str] = ("bert", *SYSTEMS)) -> list[Command]:
    """Make the inputs, and return the commands that train systems by name; inputs that exist are kept."""
    inputs, commands = workplace.folder, []
    lines = [line for line in (inputs / "text.txt").read_text("utf-8").splitlines() if line]
    for name, step in (("a.txt", 1), ("b.txt", -1)):
        (inputs / name).write_text("\n".join(" ".join(line.split()[::step]) for line in lines) + "\n", "utf-8")
    rng = random.Random(0)
    vectors = {word: [rng.gauss(0, 1) for _ in range(16)] for word in sorted(set(WORDS.split()))}
    rows = [f"{word} {' '.join(f'{x:.3f}' for x in row)}\n" for word, row in vectors.items()]
    (inputs / "vectors.txt").write_text("".join(rows), "utf-8")
    binary = b"".join(word.encode() + b" " + struct.pack("<16f", *row) for word, row in vectors.items())
    (inputs / "vectors.bin").write_bytes(f"{len(vectors)} 16\n".encode() + binary)
    for name in names:
        corpus, tables = SYSTEMS.get(name, ("corpus", ""))
        recipe = f"{name}.toml" if tables else "recipe.toml"
        if tables:
            (inputs / recipe).write_text(f'{tables}[data]\ncorpus = "{corpus}"\nlength = 16\n{_TRAIN}')
        _run(server, inputs, _CORPORA[corpus])
        commands.append(
            Command(f"pretrain-{name}", ("pretrain", recipe, "--out", "out"), ("pretrain", "--resume", "out"))
        )
    return commands


# The other inputs of commands: models of each kind, and in the formats of other tools.
_MORE: list[tuple[str, ...]] = [
    *(("pretrain", f"{name}.toml", "--out", f"trained-{name}") for name in ("gpt", "transformer", "elmo")),
    ("vectors", "convert", "vectors.txt", "--out", "word-model"),
    ("finetune", "answer.toml", "--out", "answers"),
    ("finetune", "--task", "classify", "--model", "tfidf", "--train", "train.tsv", "--out", "baseline"),
    ("search", "--texts", "text.txt", "--model", "./run", "index"),
    ("predict", "./classifier", "--input", "dev.tsv", "--out", "predictions.jsonl"),
    ("convert", "./run", "--as", "google", "--out", "google"),
    ("convert", "./run", "--as", "hf", "--out", "hf"),
    ("convert", "./run", "--as", "st", "--out", "st"),
    ("convert", "trained-gpt", "--as", "openai", "--out", "openai"),
    ("convert", "trained-elmo", "--as", "elmo", "--out", "bilm"),
]


def make_more(workplace: Workplace, server: Server) -> None:
    """Make the inputs of all commands and of all kinds of files; those that exist are kept."""
    inputs = workplace.folder
    make_systems(workplace, server, ("gpt", "transformer", "elmo"))
    text = (inputs / "text.txt").read_bytes()
    (inputs / "packed.txt.xz").write_bytes(lzma.compress(text))
    (inputs / "packed.txt.bz2").write_bytes(bz2.compress(text))
    (inputs / "packed.txt.gz").write_bytes(gzip.compress(text, mtime=0))
    documents = text.decode().split("\n\n")
    pages = "".join(f"<page><title>{n}</title><ns>0</ns><text>{one}</text></page>" for n, one in enumerate(documents))
    (inputs / "pages.xml").write_text(f"<mediawiki>{pages}</mediawiki>\n", "utf-8")
    rows = [row.split("\t") for row in (inputs / "train.tsv").read_text("utf-8").splitlines()]
    (inputs / "rows.csv").write_text("".join(f'"{a}",{b}\n' for a, b in rows), "utf-8")
    (inputs / "rows.jsonl").write_text(
        "".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in rows[1:]), "utf-8"
    )
    (inputs / "objects.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
    (inputs / "answer.toml").write_text(FINETUNE.format(task="answer", train="questions.json", dev="questions.json"))
    articles = []
    for n, document in enumerate(documents[:8]):
        context, word = document.replace("\n", " "), document.split()[3]
        answer = {"text": word, "answer_start": context.index(word)}
        questions = [{"id": str(n), "question": "a hill", "answers": [answer]}]
        articles.append({"title": str(n), "paragraphs": [{"context": context, "qas": questions}]})
    (inputs / "questions.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    rng, words = random.Random(0), WORDS.split()
    sentences = [[rng.choice(words) for _ in range(5)] for _ in range(12)]
    tagged = [
        "".join(f"{word} N {'B-PLACE' if word in ('river', 'hill') else 'O'}\n" for word in one) for one in sentences
    ]
    (inputs / "tags.conll").write_text("\n".join(tagged), "utf-8")
    treebank = [
        "".join(f"{n}\t{word}\t_\tNOUN\t_\t_\t0\t_\t_\t_\n" for n, word in enumerate(one, 1)) for one in sentences
    ]
    (inputs / "tags.conllu").write_text("\n".join(treebank) + "\n", "utf-8")
    _make_pickles(inputs)
    _run(server, inputs, _MORE)


def _make_pickles(inputs: Path) -> None:
    """Make a fastai language model with its pickled words, and CoVe's encoder: PyTorch's own files."""
    torch.manual_seed(0)
    names = ["xxunk", "xxpad", "xxbos", "xxeos", "the", "river", "hill"]
    weights = {"0.encoder.weight": torch.randn(len(names), 4)}
    for i, (below, own) in enumerate(((4, 6), (6, 6), (6, 4))):
        layer = f"0.rnns.{i}."
        weights |= {
            f"{layer}module.weight_ih_l0": torch.randn(4 * own, below),
            f"{layer}weight_hh_l0_raw": torch.randn(4 * own, own),
            f"{layer}module.bias_ih_l0": torch.randn(4 * own),
            f"{layer}module.bias_hh_l0": torch.randn(4 * own),
        }
    weights |= {"1.decoder.weight": weights["0.encoder.weight"], "1.decoder.bias": torch.randn(len(names))}
    folder = inputs / "fastai"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.save(weights, folder / "lm.pth")
    (folder / "itos.pkl").write_bytes(pickle.dumps(names))
    torch.save(dict(nn.LSTM(16, 4, 2, bidirectional=True).state_dict()), inputs / "cove.pth")


# Every command that writes. firth study and firth demo, which take minutes at least, run such commands in sequence.
COMMANDS = [
    Command("pretrain", ("pretrain", "recipe.toml", "--out", "out"), ("pretrain", "--resume", "out")),
    Command("finetune", ("finetune", "finetune.toml", "--out", "out"), ("finetune", "--resume", "out")),
    Command(
        "baseline",
        ("finetune", "--task", "classify", "--model", "tfidf", "--train", "train.tsv", "--dev", "dev.tsv")
        + ("--out", "out"),
    ),
    Command(
        "compare",
        ("compare", "--train", "train.tsv", "--dev", "dev.tsv", "--models", "./run", "--minutes", "5", "--out", "out"),
        most=30,
    ),
    Command(
        "probe",
        ("probe", "--task", "classify", "--train", "train.tsv", "--dev", "dev.tsv", "--model", "./run", "--out", "out"),
        most=100,
    ),
    Command("average", ("average", "./run", "--last", "2", "--out", "out")),
    Command("convert", ("convert", "./classifier", "--out", "out")),
    Command("convert-google", ("convert", "./run", "--as", "google", "--out", "out")),
    Command("convert-st", ("convert", "./run", "--as", "st", "--out", "out")),
    Command("convert-onnx", ("convert", "./classifier", "--as", "onnx", "--out", "out")),
    Command("convert-elmo", ("convert", "trained-elmo", "--as", "elmo", "--out", "out")),
    Command("extend", ("extend", "./run", "text.txt", "--tokens", "5", "--out", "out")),
    Command("embed", ("embed", "./run", "--input", "text.txt", "--out", "out")),
    Command("search", ("search", "out", "--texts", "text.txt", "--model", "./run")),
    Command("predict", ("predict", "./classifier", "--input", "dev.tsv", "--out", "out")),
    Command("explain", ("explain", "./run", "the old river", "a green river", "--out", "out.html"), out="out.html"),
    Command("attention", ("attention", "./run", "the old river", "--out", "out.svg"), out="out.svg"),
    Command("vectors-convert", ("vectors", "convert", "vectors.txt", "--out", "out")),
    Command("vectors-train", ("vectors", "train", "text.txt", "--kind", "glove", "--out", "out")),
    Command(
        "vectors-gensim",
        ("vectors", "train", "text.txt", "--kind", "fasttext", "--workers", "1", "--set", "n_buckets=100")
        + ("--out", "out"),
    ),
    Command("vocab", ("vocab", "text.txt", "--size", "80", "--workers", "1", "--out", "out")),
    Command("prepare", ("prepare", "text.txt", "--tokenizer", "vocab", *_SHARED, "out")),
    Command(
        "prepare-clean",
        ("prepare", "text.txt", "--tokenizer", "vocab", "--clean", *_SHARED, "out"),
        most=20,
    ),
    Command("convert-openai", ("convert", "trained-gpt", "--as", "openai", "--out", "out"), most=20),
]

# Every command that only answers, except firth serve, which needs a network.
ASKS = [
    Command("evaluate", ("evaluate", "./classifier", "--data", "dev.tsv")),
    Command("score", ("score", "--task", "classify", "--predictions", "predictions.jsonl", "--gold", "dev.tsv")),
    Command("fill-mask", ("fill-mask", "./run", "the old [MASK] walked")),
    Command("next-sentence", ("next-sentence", "./run", "the old river.", "a green hill.")),
    Command("score-text", ("score-text", "./run", "the old river")),
    Command("generate", ("generate", "trained-gpt", "the old", "--max-new-tokens", "3")),
    Command("translate", ("translate", "trained-transformer", "the old river")),
    Command("search-query", ("search", "index", "the old river")),
    Command("embed-text", ("embed", "./run", "the old river")),
    Command("vectors-nearest", ("vectors", "nearest", "word-model", "river")),
    Command("vectors-analogy", ("vectors", "analogy", "word-model", "river", "hill", "garden")),
    Command("models", ("models",)),
    Command("plan", ("plan", "text.txt", "--minutes", "1")),
    Command("bench", ("bench", "--model", "./run", "--repeats", "1")),
]

_PREDICT = ("predict", "./classifier", "--input", "dev.tsv")
_PREPARE = ("--tokenizer", "vocab", *_SHARED, "out")


def _convert(source: str, *more: str) -> tuple[str, ...]:
    return ("convert", source, *more, "--out", "out")


def _tags(file: str) -> tuple[str, ...]:
    return ("finetune", "--task", "tag", "--model", "commonest-tag", "--train", file, "--out", "out")


def _labels(file: str) -> tuple[str, ...]:
    return ("finetune", "--task", "classify", "--model", "tfidf", "--train", file, "--out", "out")


def _in(folder: str, names: Sequence[str], command: tuple[str, ...]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {f"{folder}/{name}": (f"{folder}/{name}", command) for name in names}


# What is read, and by which command; a case damages the file.
READS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"model/{name}": (f"classifier/model/{name}", _PREDICT)
        for name in (
            "config.json",
            "firth.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
            "manifest.json",
        )
    },
    **{
        f"corpus/{name}": (f"corpus/{name}", ("pretrain", "recipe.toml", "--out", "out"))
        for name in ("manifest.json", "train-00000.ids.npy", "train-00000.documents.npy", "tokenizer/tokenizer.json")
    },
    **{
        f"checkpoint/{name}": (f"run/checkpoints/step-6/{name}", ("pretrain", "--resume", "run"))
        for name in ("train/state.json", "train/optimizer.safetensors", "model.safetensors", "manifest.json")
    },
    "recipe": ("recipe.toml", ("pretrain", "recipe.toml", "--show-recipe")),
    "run/recipe": ("run/recipe.toml", ("pretrain", "--resume", "run")),
    "labels": ("dev.tsv", _PREDICT),
}
# The inputs that make_more makes, and plain text.
MORE_READS: dict[str, tuple[str, tuple[str, ...]]] = {
    "text": ("text.txt", ("prepare", "text.txt", *_PREPARE)),
    "text.xz": ("packed.txt.xz", ("prepare", "packed.txt.xz", *_PREPARE)),
    "text.gz": ("packed.txt.gz", ("prepare", "packed.txt.gz", *_PREPARE)),
    "text.bz2": ("packed.txt.bz2", ("prepare", "packed.txt.bz2", *_PREPARE)),
    "text.xml": ("pages.xml", ("prepare", "pages.xml", *_PREPARE)),
    "text.jsonl": ("objects.jsonl", ("prepare", "objects.jsonl", *_PREPARE)),
    "vocabulary": ("vocab/tokenizer.json", ("prepare", "text.txt", *_PREPARE)),
    "conll": ("tags.conll", _tags("tags.conll")),
    "conllu": ("tags.conllu", _tags("tags.conllu")),
    "labels.csv": ("rows.csv", _labels("rows.csv")),
    "labels.jsonl": ("rows.jsonl", _labels("rows.jsonl")),
    **_in("classifier", ("identity.json", "results.json"), ("finetune", "--resume", "classifier")),
    "squad": ("questions.json", ("evaluate", "answers", "--data", "questions.json")),
    "predictions": ("predictions.jsonl", ASKS[1].words),
    "vectors.txt": ("vectors.txt", ("vectors", "convert", "vectors.txt", "--out", "out")),
    "vectors.bin": ("vectors.bin", ("vectors", "convert", "vectors.bin", "--out", "out")),
    "cove": ("cove.pth", _convert("cove.pth", "--vectors", "vectors.txt")),
    **_in("fastai", ("lm.pth", "itos.pkl"), _convert("fastai/lm.pth")),
    **_in("bilm", ("options.json", "weights.hdf5"), _convert("bilm")),
    **_in(
        "google",
        ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"),
        _convert("google"),
    ),
    **_in("hf", ("config.json", "model.safetensors", "tokenizer.json"), _convert("hf")),
    **_in("st", ("modules.json", "1_Pooling/config.json"), ("embed", "./st", "the old river")),
    **_in("openai", ("params_shapes.json", "params_0.npy"), _convert("openai")),
    **_in("index", ("index.json", "vectors.f32", "lines.npy", "texts.txt"), ("search", "index", "the old river")),
    **{
        f"baseline/{name}": (f"baseline/model/{name}", ("predict", "./baseline", "--input", "dev.tsv"))
        for name in ("firth.json", "vocabulary.json", "model.safetensors")
    },
}
# A manifest covers them, so that the answer must be the same or an error.
COVERED = ("model/", "corpus/", "checkpoint/", "baseline/", "index/")
