"""``firth.load``: load a model folder for inference."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.rows import pack_lists, pack_words
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import Loaded
from firth.formats.table import open_model
from firth.inference.answering import answer_stream, task_model
from firth.inference.attention_maps import Attention, attention_weights
from firth.inference.batching import in_batches
from firth.inference.fast import Precision, make_fast, pack_linears
from firth.inference.gate import check_gate
from firth.inference.generation import AT_ONCE as PROMPTS_AT_ONCE
from firth.inference.generation import Continuation, How, Writing, generate_stream
from firth.inference.text_scores import MinimalPair, TextScore, prefers_good, score_texts
from firth.inference.token_vectors import Mix, ResolvedMix, TextVectors, resolve_mix, vectors_stream
from firth.inference.translating import AT_ONCE as LINES_AT_ONCE
from firth.inference.translating import Search, Translated, translate_stream
from firth.inference.word_table import Neighbour, table_of
from firth.layers.mixing import pool_rows
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Hidden, Tokens
from firth.tasks.items import AT_ONCE, record_of
from firth.tasks.predictions import Prediction
from firth.text.records import Record
from firth.training.regions import compile_regions

Pool = Literal["mean", "max", "first", "last", "summary"]
MASK = "[MASK]"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece that may stand in a blank. ``probability`` of it among all pieces."""

    piece: str
    probability: float


@dataclass(frozen=True, slots=True)
class Blank:
    """One ``[MASK]`` of a text: where it begins there (in characters), and the best pieces, best first."""

    start: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a tokenised text: characters ``[start:end]`` of it."""

    piece: str
    id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. Texts go in one at a time or as lists; results come in the same order.

    ``path``: what the encoder runs on and computes in, in words.
    """

    loaded: Loaded
    device: torch.device
    budget_tokens: int = 4096
    path: str = ""

    @property
    def system(self) -> str:
        """Name of the system, e.g. ``"bert"``."""
        return self.loaded.system_name

    @property
    def task(self) -> str:
        """The kind of task that it has learnt, or ``"pretraining"``."""
        return self.loaded.task

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the model comes from."""
        return self.loaded.provenance

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags of its task, in the order of the outputs; none for values, spans and choices."""
        return tuple(getattr(self.loaded.objective.config, "labels", ()))

    def tokenize(self, text: str) -> list[Piece]:
        """The pieces of a text, without special ones."""
        encoded, piece = self.loaded.tokenizer.encode(text), self.loaded.tokenizer.piece
        return [Piece(piece(i), i, a, b) for i, (a, b) in zip(encoded.ids, encoded.offsets, strict=True)]

    @overload
    def fill_mask(self, texts: str, top_k: int = 5) -> list[Blank]: ...
    @overload
    def fill_mask(self, texts: Sequence[str], top_k: int = 5) -> list[list[Blank]]: ...
    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> list[Blank] | list[list[Blank]]:
        """The likeliest pieces for each ``[MASK]`` of a text (or of each text), each blank on its own.

        Raises InputError for a text without ``[MASK]``, LengthError for one longer than the model reads.
        """
        if self.loaded.system.predict != "masked" or not hasattr(self.loaded.objective, "mlm"):
            raise ConfigError(f"a model of system {self.system} for {self.loaded.task} has not learnt to fill blanks")
        if "mlm" in self.loaded.untrained:
            raise ConfigError(
                "this model was published without a masked-LM head: it cannot fill blanks before "
                "firth pretrain --model has taught it to"
            )
        if not 1 <= top_k <= self.loaded.tokenizer.size:
            raise ConfigError(f"top_k={top_k}: expected 1 to {self.loaded.tokenizer.size}, the size of the vocabulary")
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k)[0]
        rows = [self._blank_row(text) for text in texts]
        answers: list[list[Blank]] = [[] for _ in rows]
        for numbers in in_batches([len(ids) for ids, _ in rows], self.budget_tokens):
            hidden = self._encode(pack_lists([rows[i][0] for i in numbers]), (-1,))
            index, where = [], []
            for offset, i in zip(hidden.rows.first.tolist(), numbers, strict=True):
                places = [p for p, piece in enumerate(rows[i][0]) if piece == self.loaded.tokenizer.mask_id]
                index += [offset + p for p in places]
                where += [(i, start) for start in rows[i][1]]
            for (i, start), candidates in zip(where, self._best(hidden, index, top_k), strict=True):
                answers[i].append(Blank(start, candidates))
        return answers

    def _masked_lm(self) -> MaskedLM:
        if not isinstance(self.loaded.objective, MaskedLM):
            raise ConfigError(f"a model of system {self.system} for {self.loaded.task} has not learnt to fill blanks")
        return self.loaded.objective

    @torch.inference_mode()
    def _best(self, hidden: Hidden, index: list[int], top_k: int) -> Iterator[tuple[Candidate, ...]]:
        chosen = hidden.top.index_select(0, torch.tensor(index, device=self.device))
        best = self._masked_lm().logits(chosen).float().softmax(1).topk(top_k)
        pieces = self.loaded.tokenizer.pieces
        for values, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            yield tuple(Candidate(pieces[i], p) for i, p in zip(ids, values, strict=True))

    def _blank_row(self, text: str) -> tuple[list[int], list[int]]:
        """The row of a text with blanks, and the character at which each blank begins."""
        tokenizer, layout = self.loaded.tokenizer, self.loaded.system.layout(self.loaded.tokenizer)
        parts = text.split(MASK)
        if len(parts) == 1:
            raise InputError(f"{_shown(text)} has no {MASK}: write one where a word is to be found")
        ids, starts, at = list[int](), list[int](), 0
        for number, part in enumerate(parts):
            if number:
                ids.append(tokenizer.mask_id)
                starts.append(at)
                at += len(MASK)
            ids += tokenizer.encode(part).ids
            at += len(part)
        row = layout.single(ids)
        if self.loaded.max_length is not None and len(row) > self.loaded.max_length:
            raise LengthError(
                f"{_shown(text)} has {len(row)} pieces, the model reads at most {self.loaded.max_length}: "
                f"shorten the text around its {MASK}"
            )
        return row, starts

    def embed(
        self, texts: str | Sequence[str], layer: int = -1, pool: Pool | None = None, mix: Mix | None = None
    ) -> Float[np.ndarray, "n H"]:
        """A vector for each text, float32 ``(n, H)``, in the order of the texts; one text gives ``(H,)``.

        ``layer``: 0 is the embedding output, -1 the top; ``mix``: of several layers, in its place. ``pool``: mean or
        max over all tokens, special ones included; the first or last token; or the system's own ``summary`` (which
        needs training to mean something, and is always the top layer's). Without it, what the model was made for: mean,
        unless it comes from sentence-transformers, whose models may also want a length of 1. A text longer than the
        model is read in consecutive windows: mean, max, first and last run over all of them, summaries are averaged. A
        model that was pre-trained without special pieces and has learnt no task reads without them, but for an empty
        text.
        """
        if isinstance(texts, str):
            return self.embed([texts], layer, pool, mix)[0]
        parts = list(self.embed_stream(texts, layer, pool, mix=mix))
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
        at_once: int = 2048,
        mix: Mix | None = None,
    ) -> Iterator[Float[np.ndarray, " H"]]:
        """As ``embed``, one vector after the other; ``at_once`` texts are held in memory."""
        layer = self._layer(layer)
        own = self.loaded.embedding
        how, unit = (own.pool, own.normalize) if pool is None else (pool, False)
        if how not in get_args(Pool):
            raise ConfigError(f"pool {how!r}: expected one of {', '.join(get_args(Pool))}")
        if how == "summary" and "encoder.pooler" in self.loaded.untrained:
            raise ConfigError("this model was published without a pooler, so it has no summary: choose another pool")
        if mix is not None and how == "summary":
            raise ConfigError("a summary is of the top layer alone: leave out the mix, or choose another pool")
        resolved = None if mix is None else resolve_mix(self.loaded, mix)
        source = iter(texts)
        while some := list(islice(source, at_once)):
            vectors = self._embed_some(some, layer, how, resolved)
            yield from map(_of_length_1, vectors) if unit else vectors

    def _layer(self, layer: int) -> int:
        """The number of a layer from 0; ConfigError for one that the model lacks."""
        n_layers = len(self.loaded.objective.encoder.widths) - 1
        if not -n_layers - 1 <= layer <= n_layers:
            raise ConfigError(
                f"layer {layer}: this model has layers 0 (embeddings) to {n_layers}, or -1 to -{n_layers + 1}"
            )
        return layer % (n_layers + 1)

    @overload
    def vectors(self, texts: str) -> TextVectors: ...
    @overload
    def vectors(self, texts: Sequence[str]) -> list[TextVectors]: ...
    def vectors(self, texts: str | Sequence[str]) -> TextVectors | list[TextVectors]:
        """Vectors in context of a text's tokens and words, or of those of each text, in all layers.

        ``.layers`` (L + 1, n, H) are the tokens', ``.word_layers`` the words'; ``.tokens`` and ``.words`` have their
        places in the text. ``vectors_stream`` takes any number of texts, and holds only the layers asked for.
        """
        found = list(self.vectors_stream([texts] if isinstance(texts, str) else texts))
        return found[0] if isinstance(texts, str) else found

    def vectors_stream(self, texts: Iterable[str], choice: int | ResolvedMix | None = None) -> Iterator[TextVectors]:
        """As ``vectors``, one text after the other; ``choice``: only one layer, or only those of a mix; None: all.

        A text longer than the model is read in windows that overlap by half; a token's vector is from the window in
        which it has the most context.
        """
        numbers: Sequence[int] = range(len(self.loaded.objective.encoder.widths))
        if choice is not None:
            numbers = (self._layer(choice),) if isinstance(choice, int) else choice.numbers
        return vectors_stream(self.loaded, texts, numbers, encode=self._encode, budget_tokens=self.budget_tokens)

    def mix(self, mix: Mix) -> ResolvedMix:
        """A mix of layers as this model has them, for ``vectors_stream`` and ``TextVectors.mixed``."""
        return resolve_mix(self.loaded, mix)

    def _embed_some(self, texts: list[str], layer: int, pool: Pool, mix: ResolvedMix | None) -> Iterator[np.ndarray]:
        layout, framed = self.loaded.layout, self.loaded.system.layout(self.loaded.tokenizer)
        room = (self.loaded.max_length or 10**9) - layout.n_special
        rows, owner = list[list[int]](), list[int]()
        for number, ids in enumerate(self.loaded.tokenizer.ids_many(texts)):
            for begin in range(0, max(len(ids), 1), room):
                # No row is empty: special pieces alone stand for nothing.
                rows.append(layout.single(ids[begin : begin + room]) or framed.single(ids))
                owner.append(number)
        pooled: list[Tensor] = [torch.empty(0)] * len(rows)
        for numbers in in_batches([len(row) for row in rows], self.budget_tokens):
            keep = (layer,) if mix is None else mix.numbers
            hidden = self._encode(pack_words([rows[i] for i in numbers], self.loaded.tokenizer), keep)
            states = hidden.top if mix is None else mix.of_hidden(hidden)
            for i, vector in zip(numbers, _pool(hidden, states, pool), strict=True):
                pooled[i] = vector
        joined: list[list[int]] = [[] for _ in texts]
        for i, number in enumerate(owner):
            joined[number].append(i)
        for windows in joined:
            yield _join([pooled[i] for i in windows], [len(rows[i]) for i in windows], pool).numpy()

    def score_texts(self, texts: Sequence[str]) -> list[TextScore]:
        """How likely a language model finds each text: the log-probability of each token, given the others.

        Of a masked model with that token masked, of a left-to-right model after the tokens before it. Raises as
        ``firth.inference.text_scores.score_texts``.
        """
        return list(score_texts(self.loaded, texts, device=self.device, budget_tokens=self.budget_tokens))

    def prefers_good(self, pairs: Iterable[MinimalPair]) -> Iterator[tuple[MinimalPair, bool]]:
        """Each minimal pair, and whether the model finds its ``good`` sentence more likely."""
        return prefers_good(self.loaded, pairs, device=self.device, budget_tokens=self.budget_tokens)

    def nearest(self, word: str, top_k: int = 10) -> list[Neighbour]:
        """The words whose vectors are nearest to a word's, by the cosine, without itself.

        For many words ``firth.inference.word_table.open_table`` is faster. ConfigError for a model that does not read
        whole words, InputError for a word without a vector.
        """
        return table_of(self.loaded).nearest(word, top_k)

    def attention(self, text: str, second: str | None = None) -> Attention:
        """What each head of each layer looks at while it reads a text, or a pair of texts.

        Special pieces are there as in ``embed``. Raises LengthError for more pieces than the model reads, InputError
        for none, ConfigError for a model without attention.
        """
        tokenizer, layout = self.loaded.tokenizer, self.loaded.layout
        row, segments = layout.single(tokenizer.encode(text).ids), None
        if second:
            row, segments = layout.pair(tokenizer.encode(text).ids, tokenizer.encode(second).ids)
        if self.loaded.max_length is not None and len(row) > self.loaded.max_length:
            raise LengthError(
                f"{_shown(text)} has {len(row)} pieces, the model reads at most {self.loaded.max_length}: shorten it"
            )
        if not row:
            raise InputError(f"{_shown(text)} has no pieces: give a text with a word in it")
        weights = attention_weights(self.loaded.objective.encoder, row, segments)
        return Attention([tokenizer.pieces[i] for i in row], weights)

    def predict(self, items: Any) -> Any:
        """What a fine-tuned model says of one item, or of each of a list of them, in order.

        Items and predictions are those of the task: ``firth.tasks.items.record_of`` says what may be passed
        in, ``firth.tasks.predictions`` what comes out. ConfigError for a model that has not learnt a task.
        """
        several = isinstance(items, list)
        records = [self.record(item) for item in (items if several else [items])]
        found = [prediction for _, prediction in answer_stream(self.loaded, records)]
        return found if several else found[0]

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[tuple[Record, Prediction]]:
        """As ``predict``, each item's record and prediction one after the other; ``at_once`` are held in memory."""
        return self.answer_stream((self.record(item) for item in items), at_once=at_once)

    def answer_stream(
        self, records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
    ) -> Iterator[tuple[Record, Prediction]]:
        """Each record with its prediction, in order; ``noted`` counts texts too long to read at once."""
        return answer_stream(self.loaded, records, at_once=at_once, noted=noted)

    @overload
    def translate(self, texts: str, *, beam: int = 4, length_penalty: float = 0.6, extra: int = 50) -> str: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, beam: int = 4, length_penalty: float = 0.6, extra: int = 50
    ) -> list[str]: ...
    def translate(
        self, texts: str | Sequence[str], *, beam: int = 4, length_penalty: float = 0.6, extra: int = 50
    ) -> str | list[str]:
        """The translation of a text, or of each of several, by beam search (``beam`` 1: greedy).

        ``length_penalty``: exponent of the length penalty, 0 is none. ``extra``: maximum output length is source length
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
        """As ``translate``, one after the other with its score; ``at_once`` texts are held in memory.

        ``on_progress`` is called with how many more texts are done.
        """
        return translate_stream(
            self.loaded,
            texts,
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
        how: How = "sample",
        max_new_tokens: int = 50,
        beam: int = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        seed: int = 0,
    ) -> Continuation: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        *,
        how: How = "sample",
        max_new_tokens: int = 50,
        beam: int = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        seed: int = 0,
    ) -> list[Continuation]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        how: How = "sample",
        max_new_tokens: int = 50,
        beam: int = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.9,
        seed: int = 0,
    ) -> Continuation | list[Continuation]:
        """What the model writes behind a text, or behind each of several: ``max_new_tokens`` tokens.

        The options are those of ``firth.inference.generation.Writing``. ConfigError for a model that does not go on
        with texts, InputError for an empty one, LengthError for more pieces than the model reads.
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
        """As ``generate``, one after the other; ``at_once`` prompts are held in memory."""
        return generate_stream(
            self.loaded, prompts, writing, device=self.device, budget_tokens=self.budget_tokens, at_once=at_once
        )

    def record(self, item: Any) -> Record:
        """An item as a record of the model's task."""
        return record_of(self.loaded.task, item, getattr(task_model(self.loaded).config, "unit", "word"))

    @torch.inference_mode()
    def _encode(self, tokens: Tokens, keep: tuple[int, ...]) -> Hidden:
        hidden: Hidden = self.loaded.objective.encoder(tokens.to(self.device), keep=keep)
        return hidden


def _pool(hidden: Hidden, states: Float[Tensor, "T H"], pool: Pool) -> Float[Tensor, "B H"]:
    """One vector a row, float32 on the host."""
    if pool == "summary":
        assert hidden.summary is not None
        return hidden.summary.float().cpu()
    return pool_rows(states.float(), hidden.rows, pool).cpu()


def _of_length_1(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _join(windows: list[Tensor], lengths: list[int], pool: Pool) -> Tensor:
    """The windows of one text as one vector."""
    stacked = torch.stack(windows)
    if pool == "mean":
        weights = torch.tensor(lengths, dtype=torch.float32)
        return (stacked * weights[:, None]).sum(0) / weights.sum()
    if pool == "max":
        return stacked.amax(0)
    if pool == "summary":
        return stacked.mean(0)
    return stacked[0 if pool == "first" else -1]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def load(
    path: str | Path, *, device: str | None = None, precision: Precision = "float32", compile: bool = False
) -> Model:
    """Load a model to use it: a model folder, a run folder's best model, or what another tool wrote.

    That may be a folder of Hugging Face or sentence-transformers, a checkpoint of google-research/bert, or
    ``"hub:org/name"``. ``precision``: what the encoder computes in; ``"auto"`` is bfloat16 where the machine
    multiplies in it; ``"int8"`` runs on a processor and wants the record that ``firth evaluate --precision int8``
    makes. ``compile``: the first batches take a minute longer, the others less. The model is for predictions: its
    weights are laid out for them (``firth.folder.read_model`` has them as they are). Raises ConfigError if there is
    nothing at ``path`` or the machine lacks what is asked for, CheckpointError if what is there cannot be read.
    """
    if precision == "int8":
        check_gate(path)
    loaded = open_model(path)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() and precision != "int8" else "cpu"))
    loaded.objective.to(place)
    loaded.objective.encoder, words = make_fast(loaded.objective.encoder, precision, place)
    if not compile:
        pack_linears(loaded.objective.encoder, place)
        return Model(loaded, place, path=words)
    if not loaded.objective.encoder.regions():
        raise ConfigError(f"compile: a model of system {loaded.system_name} has no blocks to compile: go without")
    if not compile_regions(loaded.objective.encoder, place):
        raise ConfigError("compile: this machine has no compiler for it (g++ or clang++): install one, or go without")
    return Model(loaded, place, path=f"{words}, compiled")
