"""``firth plan``: what to pre-train on a text in the time available, with the reasons."""

import dataclasses
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from firth.bench.synthetic import plain_corpus, plain_tokenizer
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.machine import Machine, find_machine, free_memory
from firth.memory import Memory
from firth.pretraining.length import MOST_EPOCHS
from firth.pretraining.recipe import Pretrain
from firth.pretraining.run import measure_pace, resolve
from firth.pretraining.several import for_processes, memory_of
from firth.progress import say
from firth.recipes import read_recipe_file
from firth.remote import place_of
from firth.systems import SIZES
from firth.text.corpus import CorpusReader
from firth.text.tokenizer_kinds import WORDPIECE
from firth.training.collectives import World

RECIPE = "small"
# Sizes of BERT, from the smallest hidden size to the largest.
CANDIDATES = tuple(f"bert-{size}" for size in ("tiny", "mini", "small", "medium", "base"))
# A rule of thumb: with fewer tokens read per weight of its blocks, a smaller model learns more in the same time.
TOKENS_PER_WEIGHT = 4
# Vocabulary size by the number of tokens in the text: each entry should occur some hundred times.
_VOCABULARIES = ((1e6, 4_000), (5e6, 8_000), (1e8, 16_000), (float("inf"), 30_000))
# The share of twice one process's speed that two single-threaded processes reach (docs/benchmarks.md: 94 and 97 %).
_SHARED = 0.94
# Tokens of the random text on which speed is measured, and seconds per size.
_SPEED_TOKENS, _SPEED_S = 60_000, 1.0
# Characters of a text that are read to estimate its tokens.
_SAMPLE = 2_000_000
# Tokens per word between spaces, punctuation included: for text in Latin letters, and for other text.
_LATIN_TOKENS, _OTHER_TOKENS = 1.5, 2.2
# Scripts without spaces between words: BERT reads each ideograph as a token; in kana, Thai, Lao, Burmese and Khmer a
# token has about two characters.
_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]")

# Held-out masked-LM loss and accuracy of the shipped English BERT-mini by millions of tokens read, at a nearly constant
# learning rate up to 92 million and with a decay to zero after that: docs/results/firth-mini-en.json.
CURVE = (
    (8.192, 4.33, 0.306), (16.384, 3.94, 0.348), (24.576, 3.78, 0.367), (32.768, 3.64, 0.380), (40.96, 3.57, 0.387),
    (49.152, 3.50, 0.396), (57.344, 3.44, 0.403), (65.536, 3.42, 0.408), (73.728, 3.43, 0.406), (81.92, 3.42, 0.407),
    (90.112, 3.41, 0.406), (98.304, 3.20, 0.429), (106.496, 3.12, 0.439), (114.688, 3.09, 0.445), (122.88, 3.05, 0.450),
    (131.072, 3.03, 0.453), (139.264, 3.00, 0.457), (147.456, 2.98, 0.458),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What to expect of a model size: tokens read in the time available, in total and per weight of its blocks."""

    model: str
    parameters: int
    tokens_per_s: float
    tokens: float
    tokens_per_weight: float
    memory: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A suggestion. ``text_tokens``: in the training text; ``counted``: whether they were counted, not estimated."""

    source: str
    text_tokens: float
    counted: bool
    minutes: float
    machine: str
    free_memory: float | None
    vocabulary: int
    sizes: tuple[Size, ...]
    chosen: Size
    epochs: float
    recorded: tuple[float, float, float] | None


def make_plan(sources: Sequence[str | Path], minutes: float, tell: Callable[[str], None] = say) -> Suggestion:
    """Choose vocabulary and model size for a text, or a corpus folder, and minutes of training on this machine.

    The speed of each size is measured on random text, smallest first, until one is too large for the time.
    InputError or ConfigError if the text does not exist.
    """
    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes={minutes:g}: expected a number above 0")
    corpus = _corpus(sources)
    if corpus and (corpus.is_parallel or corpus.tokenizer.kind is not WORDPIECE):
        raise ConfigError(
            f"{sources[0]}: a size is suggested for BERT, which masks WordPiece tokens; this corpus "
            f"{'is parallel text' if corpus.is_parallel else f'has a vocabulary of kind {corpus.tokenizer.kind.name}'}"
        )
    tokens, counted = (_tokens_of(corpus), True) if corpus else (_estimated_tokens(sources), False)
    vocabulary = corpus.tokenizer.size if corpus else suggested_vocabulary(tokens)
    machine = find_machine("auto")
    tell("measuring how fast each model size trains here")
    with tempfile.TemporaryDirectory(prefix="firth-plan-") as place:
        text = plain_corpus(Path(place) / "corpus", plain_tokenizer(vocabulary), _SPEED_TOKENS)
        free = free_memory(machine.device)
        sizes: list[Size] = []
        for model in CANDIDATES:
            recipe = _recipe(model, text)
            need = _memory(recipe, machine)
            if sizes and free is not None and need.total > free:
                break  # larger ones do not fit either
            sizes.append(_size(model, recipe, machine, need, minutes, tokens))
            if sizes[-1].tokens_per_weight < TOKENS_PER_WEIGHT:
                break
    chosen = choose_size(sizes, free)
    return Suggestion(
        source=", ".join(map(str, sources)),
        text_tokens=tokens,
        counted=counted,
        minutes=minutes,
        machine=machine.path,
        free_memory=free,
        vocabulary=vocabulary,
        sizes=tuple(sizes),
        chosen=chosen,
        epochs=chosen.tokens / max(tokens, 1.0),
        recorded=recorded_loss(chosen.tokens) if chosen.model == "bert-mini" else None,
    )


def choose_size(sizes: Sequence[Size], free: float | None) -> Size:
    """Choose the largest size that reads enough tokens per weight and fits into memory; else the smallest."""
    fit = [size for size in sizes if size.tokens_per_weight >= TOKENS_PER_WEIGHT]
    fit = [size for size in fit if free is None or size.memory <= free]
    return fit[-1] if fit else sizes[0]


def suggested_vocabulary(tokens: float) -> int:
    """The vocabulary size for a text of ``tokens``."""
    return next(size for most, size in _VOCABULARIES if tokens < most)


def recorded_loss(tokens: float) -> tuple[float, float, float] | None:
    """The last point of the recorded curve at or before ``tokens``: tokens, loss, accuracy; None before its start."""
    points = [(1e6 * millions, loss, accuracy) for millions, loss, accuracy in CURVE if 1e6 * millions <= tokens]
    return points[-1] if points else None


def text_tokens(sources: Sequence[str | Path]) -> tuple[float, int | None]:
    """Count the tokens of a corpus folder, whose vocabulary size is returned too, or estimate those of a text.

    InputError or ConfigError if it is missing.
    """
    corpus = _corpus(sources)
    return (_tokens_of(corpus), corpus.tokenizer.size) if corpus else (_estimated_tokens(sources), None)


def _corpus(sources: Sequence[str | Path]) -> Corpus | None:
    """The corpus folder that the sources name; None if they are text."""
    if len(sources) != 1 or not (place_of(sources[0]) / "manifest.json").is_file():
        return None
    return Corpus(sources[0])


def _tokens_of(corpus: Corpus) -> float:
    return float(sum(info.tokens for info in corpus.shards("train")))


def _estimated_tokens(sources: Sequence[str | Path]) -> float:
    """Estimate the tokens of a text from the words and characters in its first part."""
    reader = CorpusReader(sources)
    characters = latin = words = ideographs = unspaced = 0
    for document in reader:
        for paragraph in document.paragraphs:
            characters += len(paragraph)
            latin += sum(character.isascii() for character in paragraph)
            spaced, n_ideographs = _IDEOGRAPHS.subn(" ", paragraph)
            spaced, n_unspaced = _UNSPACED.subn(" ", spaced)
            words += len(spaced.split())
            ideographs += n_ideographs
            unspaced += n_unspaced
        if characters > _SAMPLE:
            break
    if not words + ideographs + unspaced:
        raise ConfigError(f"{', '.join(map(str, sources))}: no words in it")
    # A small text was read to its end.
    share = 1.0 if characters <= _SAMPLE else max(reader.bytes_consumed, 1) / reader.total_bytes
    each = _LATIN_TOKENS if latin > characters / 2 else _OTHER_TOKENS
    return (words * each + ideographs + unspaced / 2) / min(share, 1.0)


def _recipe(model: str, corpus: Path) -> Pretrain:
    plain = read_recipe_file(RECIPE)
    return resolve(plain, {"model": model, "data.corpus": str(corpus), "data.workers": 0}, f"recipe {RECIPE}")


def _processes(machine: Machine) -> int:
    return 1 if machine.device.type != "cpu" else torch.get_num_threads()


def _memory(recipe: Pretrain, machine: Machine) -> Memory:
    processes = _processes(machine)
    return memory_of(for_processes(recipe, processes), machine, processes)


def _size(model: str, recipe: Pretrain, machine: Machine, need: Memory, minutes: float, text_tokens: float) -> Size:
    processes = _processes(machine)
    shared = for_processes(recipe, processes)
    # One process with its part of a step: all together do a multiple of that, less the cost of sharing.
    slots = shared.train.slots
    one = dataclasses.replace(shared, train=dataclasses.replace(shared.train, micro_batches=1))
    pace = measure_pace(one, Path(one.data.corpus), World(), n_threads=0 if processes == 1 else 1, seconds=_SPEED_S)
    gain = 1.0 if processes == 1 else _SHARED * slots
    tokens_per_s = gain * pace.step_tokens / pace.step_s
    tokens = min(60 * minutes * tokens_per_s, MOST_EPOCHS * text_tokens)
    sizes = SIZES[model][1]
    blocks = sizes["n_layers"] * (4 * sizes["width"] ** 2 + 2 * sizes["width"] * sizes["feed_forward_width"])
    return Size(
        model=model,
        parameters=blocks + recipe.encoder.vocab_size * sizes["width"],
        tokens_per_s=tokens_per_s,
        tokens=tokens,
        tokens_per_weight=tokens / blocks,
        memory=need.total,
    )
