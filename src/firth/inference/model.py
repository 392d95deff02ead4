"""``firth.load``: load a model folder for inference."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np
import torch
from jaxtyping import Float

from firth.errors import ConfigError, InputError
from firth.folder import Loaded
from firth.formats.table import open_model
from firth.inference.answering import answer_stream, task_model
from firth.inference.attention_maps import (
    Attention,
    Saturation,
    attention_of,
    attention_row,
    cross_attention,
    head_importance,
    saturations,
)
from firth.inference.batching import in_batches
from firth.inference.defaults import BEAM, EXTRA, LENGTH_PENALTY, NEW_TOKENS, TOP_P
from firth.inference.embedding import AT_ONCE as TEXTS_AT_ONCE
from firth.inference.embedding import embed_stream, layer_number
from firth.inference.fast import make_fast, pack_linears
from firth.inference.gate import check_gate
from firth.inference.generation import AT_ONCE as PROMPTS_AT_ONCE
from firth.inference.generation import Continuation, How, Writing, generate_stream, next_tokens
from firth.inference.masks import Candidate, FilledMask, check_masked, fill_rows, masked_row
from firth.inference.next_sentence import AT_ONCE as PAIRS_AT_ONCE
from firth.inference.next_sentence import follow_probabilities
from firth.inference.precision import ON_CPU, Precision
from firth.inference.text_scores import MinimalPair, TextScore, prefers_good, score_texts
from firth.inference.token_vectors import MOST_TEXTS, Mix, ResolvedMix, TextVectors, resolve_mix, vectors_stream
from firth.inference.translating import AT_ONCE as LINES_AT_ONCE
from firth.inference.translating import Search, Translated, translate_stream
from firth.inference.word_table import Neighbour, table_of
from firth.packed import Hidden, Tokens
from firth.tasks.config import Pool, TowersConfig
from firth.tasks.items import AT_ONCE, RECORDS, check_several, listed, record_of
from firth.tasks.learnt import check_pair, learnt_pairs
from firth.tasks.predictions import Prediction
from firth.text.records import Record, Text
from firth.training.compiled_blocks import compile_regions


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text, at characters ``[start:end]``."""

    token: str
    id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. Methods take one text or a list; results have the same order.

    ``path``: a description of the encoder's device and precision. ``n_parameters``: as in its folder.
    """

    loaded: Loaded
    device: torch.device
    budget_tokens: int = 4096
    path: str = ""
    n_parameters: int = 0

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a loaded model is not copied, pickled or given to another process: give its path instead")

    def __repr__(self) -> str:
        size = f"{self.n_parameters / 1e6:.1f} M parameters"
        return f"<firth.Model: {self.system}, {self.task}, {size}, on {self.device}>"

    @property
    def system(self) -> str:
        """Name of the system, e.g. ``"bert"``."""
        return self.loaded.system_name

    @property
    def task(self) -> str:
        """The kind of task it is fine-tuned for, or ``"pretraining"``."""
        return self.loaded.task

    @property
    def provenance(self) -> dict[str, Any]:
        """Origin of the model: recipe, data hashes, metrics."""
        return self.loaded.provenance

    @property
    def pairs(self) -> bool | None:
        """Whether it was trained on pairs of texts (True) or on single ones (False); None if this is not recorded."""
        if isinstance(getattr(self.loaded.objective.config, "network", None), TowersConfig):
            return True  # it compares two texts, whatever its folder says
        return learnt_pairs(self.provenance) if RECORDS.get(self.task) is Text else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags of its task, in the order of the outputs; empty for values, spans and choices."""
        return tuple(getattr(self.loaded.objective.config, "labels", ()))

    def tokenize(self, text: str) -> list[Token]:
        """Tokenise a text, without special tokens."""
        encoded, piece = self.loaded.tokenizer.encode(text), self.loaded.tokenizer.piece
        return [Token(piece(i), i, a, b) for i, (a, b) in zip(encoded.ids, encoded.offsets, strict=True)]

    @overload
    def fill_mask(self, texts: str, top_k: int = ...) -> list[FilledMask]: ...
    @overload
    def fill_mask(self, texts: Sequence[str], top_k: int = ...) -> list[list[FilledMask]]: ...
    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> list[FilledMask] | list[list[FilledMask]]:
        """Predict the most probable tokens for each ``[MASK]`` of a text (or of each text), independently.

        Raises InputError for a text without ``[MASK]``, LengthError for one longer than the model reads.
        """
        check_masked(self.loaded, top_k)
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k)[0]
        rows = [masked_row(self.loaded, text) for text in texts]
        answers: list[list[FilledMask]] = [[] for _ in rows]
        for numbers in in_batches([len(row.ids) for row in rows], self.budget_tokens):
            found = fill_rows(self.loaded, [rows[i] for i in numbers], top_k, self.device)
            for i, masks in zip(numbers, found, strict=True):
                answers[i] = masks
        return answers

    def embed(
        self, texts: str | Sequence[str], layer: int = -1, pool: Pool | None = None, mix: Mix | None = None
    ) -> Float[np.ndarray, "*n H"]:
        """Embed texts: float32 ``(n, H)``, in the order of the texts; one text gives ``(H,)``.

        ``layer``: 0 is the embedding output, -1 the top; ``mix``: combines several layers instead. ``pool``: mean or
        max over all tokens, special ones included; the first or last token; or the system's ``summary`` vector (which
        needs training, and always comes from the top layer). Default: mean, or for models from sentence-transformers
        their own pooling, possibly normalised to length 1. A text longer than the model's maximum is read in
        consecutive windows: mean, max, first and last run over all of them, summaries are averaged. A model pre-trained
        without special tokens and not fine-tuned reads texts without them, except for an empty text.
        """
        if isinstance(texts, str):
            return self.embed([texts], layer, pool, mix)[0]
        parts = list(self.embed_stream(texts, layer, pool, mix))
        encoder, how = self.loaded.objective.encoder, pool or self.loaded.embedding.pool
        width = encoder.summary_width if how == "summary" else encoder.widths[layer]
        if mix is not None:
            widths = [encoder.widths[number] for number in resolve_mix(self.loaded, mix).numbers]
            width = sum(widths) if mix.kind == "concat" else widths[0]
        return np.stack(parts) if parts else np.zeros((0, width), np.float32)

    def embed_stream(
        self,
        texts: Iterable[str],
        layer: int = -1,
        pool: Pool | None = None,
        mix: Mix | None = None,
        *,
        at_once: int = TEXTS_AT_ONCE,
    ) -> Iterator[Float[np.ndarray, " H"]]:
        """Yield the vectors of ``embed`` one by one; holds ``at_once`` texts in memory, fewer if they are long."""
        return embed_stream(
            self.loaded,
            check_several(texts),
            layer,
            pool,
            mix,
            device=self.device,
            budget_tokens=self.budget_tokens,
            at_once=at_once,
        )

    @overload
    def vectors(self, texts: str) -> TextVectors: ...
    @overload
    def vectors(self, texts: Sequence[str]) -> list[TextVectors]: ...
    def vectors(self, texts: str | Sequence[str]) -> TextVectors | list[TextVectors]:
        """Contextual vectors of the tokens and words of a text, or of each text, in all layers.

        ``.layers`` (L + 1, n, H) for tokens, ``.word_layers`` for words; ``.tokens`` and ``.words`` have their
        character spans. ``vectors_stream`` takes any number of texts, and holds only the requested layers.
        """
        found = list(self.vectors_stream([texts] if isinstance(texts, str) else texts))
        return found[0] if isinstance(texts, str) else found

    def vectors_stream(
        self, texts: Iterable[str], choice: int | ResolvedMix | None = None, *, at_once: int = MOST_TEXTS
    ) -> Iterator[TextVectors]:
        """Yield the vectors of each text; ``choice``: only one layer, or those of a mix; None: all.

        Holds ``at_once`` texts in memory, fewer if they are long.

        A text longer than the model's maximum is read in windows that overlap by half; a token's vector comes from the
        window in which it has the most context.
        """
        numbers: Sequence[int] = range(len(self.loaded.objective.encoder.widths))
        if choice is not None:
            numbers = choice.numbers if isinstance(choice, ResolvedMix) else (layer_number(self.loaded, choice),)
        return vectors_stream(
            self.loaded,
            check_several(texts),
            numbers,
            encode=self._encode,
            budget_tokens=self.budget_tokens,
            at_once=at_once,
        )

    def mix(self, mix: Mix) -> ResolvedMix:
        """Resolve a mix of layers for this model, for ``vectors_stream`` and ``TextVectors.mixed``."""
        return resolve_mix(self.loaded, mix)

    @overload
    def score_texts(self, texts: str) -> TextScore: ...
    @overload
    def score_texts(self, texts: Sequence[str]) -> list[TextScore]: ...
    def score_texts(self, texts: str | Sequence[str]) -> TextScore | list[TextScore]:
        """Score a text, or each text, with a language model: each token's log-probability, and the perplexity.

        A masked model predicts each token with that token masked, a left-to-right model from the tokens before it, ELMo
        in both directions. Raises as ``firth.inference.text_scores.score_texts``.
        """
        if isinstance(texts, str):
            return self.score_texts([texts])[0]
        return list(self.score_stream(texts))

    def score_stream(self, texts: Iterable[str]) -> Iterator[TextScore]:
        """As ``score_texts``, one text after another, in constant memory."""
        return score_texts(self.loaded, check_several(texts), device=self.device, budget_tokens=self.budget_tokens)

    def next_tokens(self, text: str, top_k: int = 10) -> list[Candidate]:
        """Return the most probable tokens after a text (before it for a backward model) with probabilities, best first.

        ConfigError for a model that does not predict the next token, LengthError for a text longer than it reads.
        """
        return [Candidate(*found) for found in next_tokens(self.loaded, text, top_k, device=self.device)]

    @overload
    def follows(self, first: str, second: str) -> float: ...
    @overload
    def follows(self, first: Sequence[str], second: Sequence[str]) -> list[float]: ...
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """Predict the probability that ``second`` follows ``first``, by next-sentence prediction; for pairs, in order.

        Raises as ``firth.inference.next_sentence.follow_probabilities``.
        """
        if isinstance(first, str) and isinstance(second, str):
            return next(self.follows_stream([(first, second)]))
        firsts, seconds = list(check_several(first)), list(check_several(second))
        if len(firsts) != len(seconds):
            raise InputError(f"{len(firsts)} first texts and {len(seconds)} second ones: expected equal numbers")
        return list(self.follows_stream(zip(firsts, seconds, strict=True)))

    def follows_stream(self, pairs: Iterable[tuple[str, str]], *, at_once: int = PAIRS_AT_ONCE) -> Iterator[float]:
        """As ``follows``, one pair after another; holds ``at_once`` pairs in memory."""
        return follow_probabilities(
            self.loaded, map(_pair, pairs), device=self.device, budget_tokens=self.budget_tokens, at_once=at_once
        )

    def prefers_good(self, pairs: Iterable[MinimalPair]) -> Iterator[tuple[MinimalPair, bool]]:
        """Yield each minimal pair, and whether the model gives its ``good`` sentence the higher probability."""
        return prefers_good(self.loaded, pairs, device=self.device, budget_tokens=self.budget_tokens)

    def nearest(self, word: str, top_k: int = 10) -> list[Neighbour]:
        """Return the words nearest to a word by cosine similarity, without the word itself.

        For many words ``firth.inference.word_table.open_table`` is faster. ConfigError for a model that does not read
        whole words, InputError for a word without a vector.
        """
        return table_of(self.loaded).nearest(word, top_k)

    def attention(self, text: str, second: str | None = None) -> Attention:
        """Compute the attention weights of each head of each layer over a text, or a pair of texts.

        Special tokens as in ``embed``. LengthError for more tokens than the model reads, InputError
        for none, ConfigError for a model without attention.
        """
        return attention_of(self.loaded, text, second)

    def saturation(self, text: str, second: str | None = None) -> list[Saturation]:
        """Measure how sharp each layer's softmax is over a text, with and without 1/√D. Raises as ``attention``."""
        return saturations(self.loaded.objective.encoder, *attention_row(self.loaded, text, second))

    def cross_attention(self, source: str, target: str | None = None) -> Attention:
        """Compute how much each token of a translation (``tokens``) attends to each token of its source (``keys``).

        ``target``: a translation; None: the model's own. ConfigError for a model without cross-attention, InputError
        for an empty source.
        """
        return cross_attention(self.loaded, source, self.translate if target is None else target, self.device)

    def head_importance(self, texts: str | Iterable[str]) -> Float[np.ndarray, "L N"]:
        """Measure how far silencing each head lowers the mean log-probability of the texts' tokens, in nats.

        This measures use, not meaning: heads can replace one another (Michel et al. 2019). ConfigError for a model that
        cannot score texts, or has no attention.
        """
        scored = [texts] if isinstance(texts, str) else list(texts)
        return head_importance(self.loaded.objective.encoder, lambda: self.score_stream(scored))

    def predict(self, items: Any) -> Any:
        """Predict one item, or each of several (a list, an array, a generator), in order.

        Items and predictions depend on the task: see ``firth.tasks.items.record_of`` for inputs and
        ``firth.tasks.predictions`` for outputs. ConfigError for a model that is not fine-tuned.
        """
        given, several = listed(items)
        found = [prediction for _, prediction in self.predict_stream(given)]
        return found if several else found[0]

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[tuple[Record, Prediction]]:
        """Yield each item's record and prediction; holds ``at_once`` items in memory."""
        return self.answer_stream((self.record(item) for item in check_several(items)), at_once=at_once)

    def answer_stream(
        self, records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
    ) -> Iterator[tuple[Record, Prediction]]:
        """Yield each record with its prediction, in order; ``noted`` counts texts too long for one sequence."""
        return answer_stream(self.loaded, records, at_once=at_once, noted=noted)

    @overload
    def translate(self, texts: str, *, beam: int = ..., length_penalty: float = ..., extra: int = ...) -> str: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, beam: int = ..., length_penalty: float = ..., extra: int = ...
    ) -> list[str]: ...
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int = BEAM,
        length_penalty: float = LENGTH_PENALTY,
        extra: int = EXTRA,
    ) -> str | list[str]:
        """Translate a text, or each of several, by beam search (``beam`` 1: greedy).

        ``length_penalty``: exponent of the length penalty; 0: none. ``extra``: maximum output length is source length
        plus this many tokens, end token included. ConfigError for a model that does not translate.
        """
        several = [texts] if isinstance(texts, str) else texts
        search = Search(beam=beam, length_penalty=length_penalty, extra=extra)
        found = [t.text for t in self.translate_stream(several, search)]
        return found[0] if isinstance(texts, str) else found

    def translate_stream(
        self,
        texts: Iterable[str],
        search: Search,
        at_once: int = LINES_AT_ONCE,
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Translated]:
        """Yield each translation with its score; holds ``at_once`` texts in memory.

        ``on_progress`` receives the number of texts done since its last call.
        """
        return translate_stream(
            self.loaded,
            check_several(texts),
            search,
            device=self.device,
            budget_tokens=self.budget_tokens,
            at_once=at_once,
            on_progress=on_progress,
        )

    @overload
    def generate(
        self,
        prompts: str,
        *,
        how: How = ...,
        max_new_tokens: int = ...,
        beam: int = ...,
        temperature: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        seed: int = ...,
    ) -> Continuation: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        *,
        how: How = ...,
        max_new_tokens: int = ...,
        beam: int = ...,
        temperature: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        seed: int = ...,
    ) -> list[Continuation]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        how: How = "sample",
        max_new_tokens: int = NEW_TOKENS,
        beam: int = BEAM,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = TOP_P,
        seed: int = 0,
    ) -> Continuation | list[Continuation]:
        """Continue a text, or each of several, by ``max_new_tokens`` tokens.

        A backward model (AWD-LSTM's) generates the text before it; ELMo uses its forward language model.

        Options: see ``firth.inference.generation.Writing``. ConfigError for a model that cannot generate,
        InputError for an empty text, LengthError for more tokens than the model reads.
        """
        writing = Writing(
            how=how,
            max_new_tokens=max_new_tokens,
            beam=beam,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        if isinstance(prompts, str):
            return next(self.generate_stream([prompts], writing))
        return list(self.generate_stream(prompts, writing))

    def generate_stream(
        self, prompts: Iterable[str], writing: Writing, at_once: int = PROMPTS_AT_ONCE
    ) -> Iterator[Continuation]:
        """Yield each continuation; holds ``at_once`` prompts in memory."""
        return generate_stream(
            self.loaded,
            check_several(prompts),
            writing,
            device=self.device,
            budget_tokens=self.budget_tokens,
            at_once=at_once,
        )

    @property
    def unit(self) -> str:
        """What a tagger tags: ``"word"`` or ``"character"``."""
        return getattr(task_model(self.loaded).config, "unit", "word")

    def record(self, item: Any) -> Record:
        """Convert an item to a record of the model's task."""
        return check_pair(record_of(self.loaded.task, item, self.unit), self.pairs)

    @torch.inference_mode()
    def _encode(self, tokens: Tokens, keep: tuple[int, ...]) -> Hidden:
        hidden: Hidden = self.loaded.objective.encoder(tokens.to(self.device), keep=keep)
        return hidden


def _pair(pair: Any) -> tuple[str, str]:
    if isinstance(pair, str) or len(pair) != 2:
        raise InputError(f"{pair!r}: expected a pair of texts")
    first, second = pair
    return first, second


def load_model(
    path: str | Path, *, device: str | None = None, precision: Precision = "float32", compile: bool = False
) -> Model:
    """Load a model for inference: a model folder, a run folder's best model, or another tool's model.

    The latter may be a folder of Hugging Face or sentence-transformers, a checkpoint of google-research/bert, or
    ``"hub:org/name"``. ``precision``: the encoder's; ``"auto"`` is bfloat16 if the machine supports it, else float16
    weights; ``"float16"`` and ``"int8"`` run on the CPU, and int8 requires the record of
    ``firth evaluate --precision int8``. ``compile``: the first batches take a minute longer, later ones less. Weights
    may be repacked for inference (``firth.folder.read_model`` returns the originals). ConfigError if there is nothing
    at ``path`` or the machine lacks what an option requires, CheckpointError if the model cannot be read.
    """
    if device is not None:
        check_device(device)
    if precision == "int8":
        check_gate(path)
    loaded = open_model(path)
    # Count first: repacked weights are no longer parameters.
    n_parameters = sum(parameter.numel() for parameter in loaded.objective.parameters())
    place = torch.device(device or ("cuda" if torch.cuda.is_available() and precision not in ON_CPU else "cpu"))
    loaded.objective.to(place)
    loaded.objective.encoder, words = make_fast(loaded.objective.encoder, precision, place)
    if not compile:
        pack_linears(loaded.objective.encoder, place)
        return Model(loaded, place, path=words, n_parameters=n_parameters)
    if not loaded.objective.encoder.regions():
        raise ConfigError(f"compile: {loaded.system_name} models have no blocks to compile: leave it out")
    if not compile_regions(loaded.objective.encoder, place):
        raise ConfigError("compile: this machine has no compiler for it (g++ or clang++): install one, or leave it out")
    return Model(loaded, place, path=f"{words}, compiled", n_parameters=n_parameters)


def check_device(device: str) -> None:
    """Raise ConfigError for anything but the name of a device that is here."""
    if not (isinstance(device, str) and re.fullmatch(r"cpu|cuda(:\d+)?", device, re.ASCII)):
        raise ConfigError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:0'")
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device={device!r}: PyTorch finds no GPU here; leave it out, or give 'cpu'")
    if int(device.partition(":")[2] or 0) >= max(torch.cuda.device_count(), 1):
        raise ConfigError(f"device={device!r}: PyTorch finds {torch.cuda.device_count()} GPUs here, numbered from 0")
