"""A served model: each question to it as rows, a forward pass, and answers.

The tokenizer threads make rows and answers; the engine thread runs forward passes (``firth.serving.forward``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from firth.baseline.model import Baseline
from firth.errors import ConfigError, LengthError
from firth.inference.precision import Precision
from firth.serving.abilities import abilities_of, encoder_of, words_of
from firth.serving.cost import CostModel
from firth.serving.forward import Forward, Job, Prepared
from firth.serving.scheduler import QueuedRow

if TYPE_CHECKING:
    from firth.inference.joint import Joint
    from firth.inference.model import Model
    from firth.inference.word_table import WordTable
    from firth.tasks.config import Pool

# Characters that count as one token for a baseline.
_CHARACTERS_A_TOKEN = 4
# Tokens of one text for a model without a maximum length, which reads it in one piece while everybody else waits.
MOST_TOKENS = 4096


@dataclass(eq=False, slots=True)
class Hosted:
    """A loaded model, with the name that clients use for it. ``threshold``: see ``abstains``."""

    name: str
    path: Path
    predictor: "Model | Baseline"
    threshold: float = 0.0
    precision: Precision = "float32"
    cost: CostModel = field(default_factory=CostModel)
    # What reads tokens: the model itself, or the encoder of a joint model; None for other baselines.
    encoder: "Model | None" = field(init=False)
    # For a model of whole words: the words, with their vectors.
    words: "WordTable | None" = field(init=False)
    # What clients can ask it for: names of ``ABILITY_ROUTES``.
    abilities: frozenset[str] = field(init=False)
    # Whether it was trained on pairs of texts (True) or on single ones (False); None if its folder does not say.
    pairs: bool | None = field(init=False)

    def __post_init__(self) -> None:
        self.encoder = encoder_of(self.predictor)
        self.words = words_of(self.predictor)
        self.abilities = abilities_of(self.predictor) | ({"find-nearest"} if self.words is not None else set())
        self.pairs = self.predictor.pairs

    @property
    def task(self) -> str:
        """The kind of task, or ``"pretraining"``."""
        return self.predictor.task

    @property
    def model(self) -> "Model":
        """The model, for all questions except predictions; ConfigError for a baseline."""
        if isinstance(self.predictor, Baseline):
            raise ConfigError(f"{self.name} is a baseline ({self.predictor.system}), which only predicts")
        return self.predictor

    @property
    def compute_type(self) -> str:
        """``"gpu"`` or ``"cpu"``."""
        return "gpu" if self.encoder is not None and self.encoder.device.type == "cuda" else "cpu"

    @property
    def tags_entities(self) -> bool:
        """Whether the tags of a tagger mark entities."""
        tagger = self.predictor.method if isinstance(self.predictor, Baseline) else self.predictor.loaded.objective
        return bool(tagger.config.scheme != "plain")

    @property
    def batch_matters(self) -> bool:
        """Whether a sequence's outputs depend on what else is in its batch."""
        if self.encoder is None:
            return False
        network = getattr(self.encoder.loaded.objective.config, "network", None)
        return bool(getattr(network, "layer_norm", False))

    # Questions

    def predict(self, items: Sequence[Any]) -> Job:
        """Predictions of the task for items as ``firth.tasks.items.record_of`` takes them, each with its record."""
        return Job(Forward(self, "predict"), lambda: self._predict(items))

    def _predict(self, items: Sequence[Any]) -> Prepared:
        records: list[Any] = [self.predictor.record(item) for item in items]
        if self.encoder is None:
            rows = [QueuedRow(1 + len(str(record)) // _CHARACTERS_A_TOKEN, record) for record in records]
            return Prepared(rows, lambda found: list(zip(records, found, strict=True)))
        from firth.inference.answering import examples_of, task_model
        from firth.inference.outputs import join_parts, n_tokens, parts_of
        from firth.tasks.table import TASKS

        loaded = self.encoder.loaded
        model = task_model(loaded)
        examples, _ = examples_of(loaded, records)
        parts = parts_of(model, examples)

        def answers(found: list[Any]) -> list[Any]:
            outputs = join_parts(examples, found)
            made = TASKS[loaded.task].answers(records, examples, outputs, model.config)
            if isinstance(self.predictor, Baseline):
                made = cast("Joint", self.predictor.method).combine(records, made)
            return list(zip(records, made, strict=True))

        rows = [QueuedRow(max(n_tokens(part), 1), part) for part in parts]
        unknown = self.unknown(row.ids.tolist() for example in examples for row in example.rows)
        return Prepared(rows, answers, unknown=unknown)  # the answers say in how many windows each text was read

    def embed(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        *,
        layer: int = -1,
        pool: "Pool | None" = None,
        unit: bool | None = None,
        truncate: Literal["no", "left", "right"] = "no",
    ) -> Job:
        """Vectors (n, H) of texts, or of token ids; ``unit``: scaled to length 1; None: as the model was made for.

        ``truncate``: the side at which a text beyond the maximum length is cut; otherwise it is read in windows.
        """
        from firth.inference.embedding import check_embedding, join_windows

        number, how, own_unit = check_embedding(self.model.loaded, layer, pool)
        wanted = own_unit if unit is None else unit

        def join(windows: list[list[int]], outputs: list[Any]) -> np.ndarray:
            return join_windows(outputs, list(map(len, windows)), how, wanted)

        return self._windowed(Forward(self, "embed", (number, how)), texts, join, truncate)

    def embed_all(
        self, texts: Sequence[str], *, truncate: Literal["no", "left", "right"] = "no", most_numbers: int
    ) -> Job:
        """A vector for each token of each text, special ones included; those of windows are concatenated.

        Answering raises LengthError before anything is computed if the vectors have more than ``most_numbers``.
        """
        from firth.inference.embedding import layer_number

        def check(rows: list[list[int]]) -> None:
            tokens = sum(map(len, rows))
            numbers = tokens * self.model.loaded.objective.encoder.widths[-1]
            if numbers > most_numbers:
                raise LengthError(
                    f"inputs: the vectors of {tokens:,} tokens have {numbers:,} numbers; this server answers with at "
                    f"most {most_numbers:,}: send fewer or shorter texts"
                )

        forward = Forward(self, "embed_all", (layer_number(self.model.loaded, -1),))
        return self._windowed(forward, texts, lambda _, outputs: np.concatenate(outputs), truncate, check)

    def hidden_states(self, texts: Sequence[str]) -> Job:
        """For each text, the vectors (T, H) of its tokens in every layer, special tokens included."""

        def join(windows: list[list[int]], outputs: list[list[np.ndarray]]) -> list[np.ndarray]:
            return [np.concatenate(layer) for layer in zip(*outputs, strict=True)]

        return self._windowed(Forward(self, "layers"), texts, join)

    def layer_means(self, texts: Sequence[str]) -> Job:
        """For each text, the mean (H) of its tokens' vectors in every layer, pooled as by ``embed``."""
        from firth.inference.embedding import join_windows

        def join(windows: list[list[int]], outputs: list[Any]) -> list[np.ndarray]:
            lengths = list(map(len, windows))
            return [join_windows(layer, lengths, "mean", False) for layer in zip(*outputs, strict=True)]

        return self._windowed(Forward(self, "layer_means"), texts, join)

    def _windowed(
        self,
        forward: Forward,
        texts: Sequence[str] | Sequence[Sequence[int]],
        join: Callable[[list[list[int]], list[Any]], Any],
        truncate: Literal["no", "left", "right"] = "no",
        check: Callable[[list[list[int]]], None] | None = None,
    ) -> Job:
        """A question to all tokens of each text: ``join`` makes an array, or several, of its windows' outputs.

        ``check``: raises an error for sequences that are refused before anything is computed.
        """
        from firth.inference.embedding import windows_of
        from firth.inference.outputs import check_finite

        def prepare() -> Prepared:
            by_text, cut = self._rows(texts, truncate)
            rows = [row for windows in by_text for row in windows]
            if check is not None:
                check(rows)

            def answers(found: list[Any]) -> list[Any]:
                joined = list(map(join, by_text, windows_of(by_text, found)))
                check_finite([array for one in joined for array in (one if isinstance(one, list) else [one])])
                return joined

            n_windows = max(map(len, by_text), default=1)
            return Prepared([QueuedRow(len(row), row) for row in rows], answers, n_windows, cut, self.unknown(rows))

        return Job(forward, prepare)

    def _rows(self, texts: Sequence[Any], truncate: str) -> tuple[list[list[list[int]]], bool]:
        from firth.inference.embedding import rows_of_ids

        loaded = self.model.loaded
        if texts and isinstance(texts[0], str):
            ids: Sequence[Sequence[int]] = loaded.tokenizer.ids_many(list(texts))
        else:
            ids = texts
        room = (loaded.window_length or MOST_TOKENS) - loaded.layout.n_special
        cut = truncate != "no" and any(len(row) > room for row in ids)
        if cut:
            ids = [row[:room] if truncate == "right" else row[-room:] for row in ids]
        if loaded.window_length is None and (longest := max(map(len, ids), default=0)) > MOST_TOKENS:
            raise LengthError(
                f"inputs: a text of {longest:,} tokens; {self.name} reads a text in one piece, and this server reads "
                f"at most {MOST_TOKENS:,} at once: send it in parts"
            )
        return rows_of_ids(loaded, ids), cut

    def unknown(self, rows: Iterable[Sequence[int]]) -> int:
        """Count the ids of words that the vocabulary lacks; open words have ids beyond it."""
        assert self.encoder is not None
        unk, size = self.encoder.loaded.tokenizer.unk_id, self.encoder.loaded.tokenizer.size
        return sum(number == unk or number >= size for row in rows for number in row)

    def fill_mask(self, texts: Sequence[str], top_k: int) -> Job:
        """The most probable tokens for each mask of each text."""
        from firth.inference.masks import check_masked, masked_row

        loaded = self.model.loaded
        check_masked(loaded, top_k)

        def prepare() -> Prepared:
            rows = [masked_row(loaded, text) for text in texts]
            queued = [QueuedRow(len(row.ids), row) for row in rows]
            return Prepared(queued, lambda found: found, unknown=self.unknown(row.ids for row in rows))

        return Job(Forward(self, "fill-mask", (top_k,)), prepare)

    def masking(self, text: str, share: float, seed: int, top_k: int) -> Job:
        """Mask a text as pre-training does, and predict its tokens: ``(HiddenRow, [Guess])``.

        ConfigError for an invalid share, and for a model that does not fill masks.
        """
        from firth.data.config import MaskingConfig
        from firth.inference.masks import check_masked, hidden_row

        loaded, config = self.model.loaded, MaskingConfig(share=share)
        check_masked(loaded, top_k)

        def prepare() -> Prepared:
            row = hidden_row(loaded, text, config, seed)
            return Prepared([QueuedRow(len(row.ids), row)], lambda found: (row, found[0]))

        return Job(Forward(self, "masking", (top_k,)), prepare)

    def attention(self, text: str, second: str | None) -> Job:
        """The attention weights of a text or pair."""
        work = partial(self.model.attention, text, second)
        return self._called(Forward(self, "attention"), (text, second or ""), work, alone=True)

    def cross_attention(self, source: str, target: str) -> Job:
        """The weights of each token of a translation over the tokens of its source."""
        work = partial(self.model.cross_attention, source, target)
        return self._called(Forward(self, "attention"), (source, target), work, alone=True)

    def follows(self, first: str, second: str) -> Job:
        """The probability that the second text follows the first, by next-sentence prediction."""
        return self._called(Forward(self, "follow"), (first, second), partial(self.model.follows, first, second))

    def _called(self, forward: Forward, texts: Sequence[str], work: Callable[[], Any], *, alone: bool = False) -> Job:
        """A question that ``work`` answers in one call, which reads the texts."""

        def prepare() -> Prepared:
            n_tokens = sum(len(self.model.tokenize(text)) for text in texts)
            return Prepared([QueuedRow(max(n_tokens, 1), work)], lambda found: found[0])

        return Job(forward, prepare, alone=alone)

    @contextmanager
    def between_layers(self, do: Callable[[], None]) -> Iterator[None]:
        """A context that calls ``do`` before each layer of the encoder; ``do`` may run other models, or this one."""
        if self.encoder is None:
            yield
            return
        import torch

        device, pausing = self.encoder.device.type, False

        def pause(layer: Any, inputs: Any) -> None:
            nonlocal pausing
            if pausing:  # ``do`` runs this model
                return
            pausing = True
            try:
                # What ``do`` runs chooses its own precision.
                with torch.autocast(device, enabled=False):
                    do()
            finally:
                pausing = False

        layers = self.encoder.loaded.objective.encoder.regions()
        handles = [layer.register_forward_pre_hook(pause) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def nearest(self, word: str, top_k: int) -> Job:
        """The nearest words by cosine similarity; InputError for a word without a vector."""
        table = self.words
        assert table is not None, "its abilities say so"
        row = QueuedRow(1, lambda: table.nearest(word, top_k))
        # The word is compared with all others, which takes longer than its one token says.
        return Job(Forward(self, "nearest"), lambda: Prepared([row], lambda found: found[0]), alone=True)

    def step(self) -> Forward:
        """The kind of a search's steps: the rows' works are functions without arguments."""
        return Forward(self, "step")

    def abstains(self, probability: float) -> bool:
        """Whether the best label's probability is below the threshold: then the label is null, with that score."""
        return probability < self.threshold


def load_hosted(name: str, path: Path, precision: Precision, threshold: float) -> Hosted:
    """Load a model to serve it; errors as in ``firth.load``."""
    from firth.inference.loading import load

    return Hosted(name, path, load(path, precision=precision), threshold, precision)
