"""How likely a language model finds a text: log-probabilities of its tokens, and which of two sentences it prefers.

A masked model is asked for each token with that token masked (pseudo-log-likelihood: Salazar et al. 2020); a
left-to-right model for each token after those before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import Loaded
from firth.inference.batching import in_batches
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM, TiedLM

AT_ONCE = 256  # texts
# Positions whose distribution over the vocabulary is in memory at once.
_CHUNK = 256
# Sums that differ by less are equal: the same text in another place of a batch is rounded in another way.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a text, characters ``[start:end]`` of it. ``log_probability`` is natural, given the context."""

    token: str
    start: int
    end: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class TextScore:
    """A text's scored tokens. A left-to-right model without a start token gives none for the first."""

    text: str
    tokens: tuple[TokenScore, ...]

    @property
    def log_probability(self) -> float:
        """The sum over tokens; of a masked model the pseudo-log-likelihood."""
        return sum(token.log_probability for token in self.tokens)


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """Two sentences that differ in one point; ``good`` is the one that a speaker accepts."""

    good: str
    bad: str
    field: str = ""
    paradigm: str = ""


def score_texts(
    loaded: Loaded, texts: Iterable[str], *, device: torch.device, budget_tokens: int, at_once: int = AT_ONCE
) -> Iterator[TextScore]:
    """The score of each text, in order; ``at_once`` texts are held in memory.

    ConfigError for a model that is no masked or left-to-right language model, InputError for an empty text,
    LengthError for one with more tokens than the model reads.
    """
    objective = loaded.objective
    if not isinstance(objective, (MaskedLM, CausalLM, TiedLM)) or {"mlm", "lm"} & set(loaded.untrained):
        raise ConfigError(
            f"a model of system {loaded.system_name} for {loaded.task} does not score texts: give a pre-trained BERT "
            "(masked or left to right) or GPT with its language-model head"
        )
    source = iter(texts)
    while some := list(islice(source, at_once)):
        rows = [_Row.of(loaded, text) for text in some]
        if isinstance(objective, MaskedLM):
            found = _masked(loaded, objective, rows, device, budget_tokens)
        else:
            found = _left_to_right(objective, rows, device, budget_tokens)
        for row, values in zip(rows, found, strict=True):
            yield row.score(loaded, values)


@dataclass(frozen=True, slots=True)
class _Row:
    """A text as the model reads it: the text's own tokens are ``ids[begin:begin + len(offsets)]``."""

    text: str
    ids: list[int]
    begin: int
    offsets: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, loaded: Loaded, text: str) -> "_Row":
        encoded = loaded.tokenizer.encode(text)
        if not encoded.ids:
            raise InputError(f"{text[:60]!r} has no tokens: give a text with a word in it")
        row = loaded.layout.single(list(encoded.ids))
        if loaded.max_length is not None and len(row) > loaded.max_length:
            raise LengthError(
                f"{text[:60]!r} has {len(row)} tokens, the model reads at most {loaded.max_length}: split the text"
            )
        begin = next(i for i in range(len(row)) if row[i : i + len(encoded.ids)] == list(encoded.ids))
        return cls(text, list(row), begin, encoded.offsets)

    @property
    def places(self) -> range:
        return range(self.begin, self.begin + len(self.offsets))

    def score(self, loaded: Loaded, values: list[float]) -> TextScore:
        # A row without a start token has no value for its first token.
        unscored = len(self.offsets) - len(values)
        scored = zip(self.places[unscored:], self.offsets[unscored:], values, strict=True)
        return TextScore(
            self.text,
            tuple(TokenScore(loaded.tokenizer.piece(self.ids[p]), a, b, value) for p, (a, b), value in scored),
        )


@torch.inference_mode()
def _masked(
    loaded: Loaded, objective: MaskedLM, rows: list[_Row], device: torch.device, budget_tokens: int
) -> list[list[float]]:
    """One copy of a row for each of its tokens, which is masked there."""
    copies = [(number, place) for number, row in enumerate(rows) for place in row.places]
    values = [[0.0] * len(row.offsets) for row in rows]
    for chosen in in_batches([len(rows[number].ids) for number, _ in copies], budget_tokens):
        some = [copies[i] for i in chosen]
        inputs, labels = [], []
        for number, place in some:
            ids = rows[number].ids
            inputs.append([*ids[:place], loaded.tokenizer.mask_id, *ids[place + 1 :]])
            labels.append(ids[place])
        tokens = pack_lists(inputs).to(device)
        index = tokens.rows.first + torch.tensor([place for _, place in some], device=device)
        found = _log_probabilities(objective, objective.encoder(tokens).top.index_select(0, index), labels)
        for (number, place), value in zip(some, found, strict=True):
            values[number][place - rows[number].begin] = value
    return values


@torch.inference_mode()
def _left_to_right(
    objective: CausalLM | TiedLM, rows: list[_Row], device: torch.device, budget_tokens: int
) -> list[list[float]]:
    values: list[list[float]] = [[] for _ in rows]
    for chosen in in_batches([len(row.ids) for row in rows], budget_tokens):
        tokens = pack_lists([rows[i].ids for i in chosen]).to(device)
        index, labels, owner = [], [], []
        for first, number in zip(tokens.rows.first.tolist(), chosen, strict=True):
            for place in rows[number].places:
                if place:  # nothing stands before the first token of a row
                    index.append(first + place - 1)
                    labels.append(rows[number].ids[place])
                    owner.append(number)
        if not index:
            continue
        top = objective.encoder(tokens).top.index_select(0, torch.tensor(index, device=device))
        for number, value in zip(owner, _log_probabilities(objective, top, labels), strict=True):
            values[number].append(value)
    return values


def _log_probabilities(
    objective: MaskedLM | CausalLM | TiedLM, states: Float[Tensor, "M H"], labels: list[int]
) -> list[float]:
    answers: Int[Tensor, " M"] = torch.tensor(labels, device=states.device)
    found: list[float] = []
    for some, answer in zip(states.split(_CHUNK), answers.split(_CHUNK), strict=True):
        logits = objective.logits(some).float()
        found += (logits.gather(1, answer[:, None])[:, 0] - logits.logsumexp(1)).tolist()
    return found


def prefers_good(
    loaded: Loaded, pairs: Iterable[MinimalPair], *, device: torch.device, budget_tokens: int
) -> Iterator[tuple[MinimalPair, bool]]:
    """Each pair, and whether the model gives ``good`` the higher summed log-probability (a tie is wrong)."""
    source = iter(pairs)
    while some := list(islice(source, AT_ONCE // 2)):
        texts = [text for pair in some for text in (pair.good, pair.bad)]
        scores = [s.log_probability for s in score_texts(loaded, texts, device=device, budget_tokens=budget_tokens)]
        for number, pair in enumerate(some):
            yield pair, scores[2 * number] - scores[2 * number + 1] > _ROUNDING


def pair_accuracies(answers: Iterable[tuple[MinimalPair, bool]]) -> dict[str, dict[str, float]]:
    """Accuracy by ``paradigm`` and by ``field``, and ``all``: the mean over paradigms, as BLiMP and Zorro report it."""
    right: dict[tuple[str, str], list[bool]] = {}
    for pair, good in answers:
        right.setdefault((pair.field, pair.paradigm), []).append(good)
    shares = {key: sum(values) / len(values) for key, values in right.items()}
    fields: dict[str, list[float]] = {}
    for (field, _), share in shares.items():
        fields.setdefault(field, []).append(share)
    return {
        "all": {"accuracy": sum(shares.values()) / len(shares), "pairs": float(sum(map(len, right.values())))},
        "field": {name: sum(values) / len(values) for name, values in sorted(fields.items())},
        "paradigm": {name: share for (_, name), share in sorted(shares.items())},
    }
