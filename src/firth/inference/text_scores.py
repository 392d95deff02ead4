"""Score texts with a language model: log-probabilities of tokens, and preferences between two sentences.

A masked model predicts each token with that token masked (pseudo-log-likelihood: Salazar et al. 2020), a
left-to-right model from the tokens before it, a backward one from those after it, ELMo in both directions.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.rows import pack_lists, pack_words
from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, Loaded
from firth.inference.batching import in_batches, in_blocks
from firth.inference.language_models import LanguageModel, NextToken, language_model
from firth.inference.masks import masked_base
from firth.inference.outputs import check_finite
from firth.inference.token_vectors import MOST_CHARACTERS, windows
from firth.objectives.masked_lm import MaskedLM

AT_ONCE = 256  # texts
# Positions whose distribution over the vocabulary is in memory at a time.
_CHUNK = 256
# Sums that differ by less count as equal: rounding depends on the position in a batch.
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
    """A text's scored tokens. A left-to-right model without a start token does not score the first.

    ``kind``: how ``tokens`` were predicted. ``backward``: for ELMo, the same tokens given those after them; else empty.
    """

    text: str
    tokens: tuple[TokenScore, ...]
    kind: Literal["masked", "forward", "backward"] = "forward"
    backward: tuple[TokenScore, ...] = ()

    @property
    def log_probability(self) -> float:
        """The sum over tokens; for a masked model the pseudo-log-likelihood, for ELMo the mean of both directions."""
        forward = sum((token.log_probability for token in self.tokens), 0.0)
        return (forward + sum(token.log_probability for token in self.backward)) / 2 if self.backward else forward

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-probability of a token (masked model: pseudo-perplexity); NaN without tokens."""
        return perplexity_of(self.tokens)

    @property
    def backward_perplexity(self) -> float | None:
        """The same in ELMo's other direction; None for other models."""
        return perplexity_of(self.backward) if self.backward else None


def perplexity_of(tokens: Sequence[TokenScore]) -> float:
    """The perplexity of some tokens: see ``perplexity_from``."""
    return perplexity_from(sum((token.log_probability for token in tokens), 0.0), len(tokens))


def perplexity_from(log_probability: float, n_tokens: int) -> float:
    """e to the mean negative log-probability; infinity if that overflows, NaN without tokens."""
    if not n_tokens:
        return math.nan
    mean = -log_probability / n_tokens
    return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """Two sentences that differ in one point; ``good`` is the acceptable one."""

    good: str
    bad: str
    field: str = ""
    paradigm: str = ""


def score_texts(
    loaded: Loaded, texts: Iterable[str], *, device: torch.device, budget_tokens: int
) -> Iterator[TextScore]:
    """Yield the score of each text, in order; holds ``AT_ONCE`` texts in memory, fewer if they are long.

    A text longer than the model's maximum is read in windows that overlap by half, and each token is scored where it
    has the most context. ConfigError for a model that is not a language model, InputError for an empty text.
    """
    masked = _masked_lm(loaded)
    model = None if masked is not None else language_model(loaded)
    for some in in_blocks(texts, AT_ONCE, MOST_CHARACTERS):
        rows, pieces = list[_Row](), list[list[str]]()
        encoded = loaded.tokenizer.encode_many(some)
        for number, (text, found) in enumerate(zip(some, encoded, strict=True)):
            if not found.ids:
                raise _no_tokens(text)
            rows += _rows(loaded, model, number, found.ids)
            pieces.append([loaded.tokenizer.piece(i) for i in found.ids])
        if masked is not None:
            values: dict[str, list[Places]] = {"masked": _masked(loaded, masked, rows, device, budget_tokens)}
        else:
            assert model is not None
            values = _directed(loaded, model, rows, device, budget_tokens)
        scored: dict[str, list[list[TokenScore]]] = {}
        for kind, of_rows in values.items():
            scored[kind] = [[] for _ in some]
            for row, of_row in zip(rows, of_rows, strict=True):
                spans = encoded[row.number].offsets
                scored[kind][row.number] += [
                    TokenScore(pieces[row.number][place], *spans[place], value) for place, value in of_row
                ]
        for number, text in enumerate(some):
            kinds = list(scored)
            others = tuple(scored[kinds[1]][number]) if len(kinds) > 1 else ()
            yield TextScore(text, tuple(scored[kinds[0]][number]), kinds[0], others)  # type: ignore[arg-type]


def check_tokens(loaded: Loaded, text: str) -> None:
    """Raise InputError for a text without tokens."""
    if not loaded.tokenizer.encode(text).ids:
        raise _no_tokens(text)


def _no_tokens(text: str) -> InputError:
    return InputError(f"{text[:60]!r} has no tokens: give a text with a word in it")


def _masked_lm(loaded: Loaded) -> MaskedLM | None:
    """Return the objective of a masked model, None for other models; ConfigError for one without its head."""
    if loaded.system.predict == "masked" and loaded.task != PRETRAINING:
        raise ConfigError(
            f"a model of system {loaded.system_name} for {loaded.task} scores no texts: its pre-trained base does, "
            f"such as firth score-text {masked_base(loaded)} TEXT"
        )
    if not isinstance(loaded.objective, MaskedLM) or loaded.task != PRETRAINING:
        return None
    if "mlm" in loaded.untrained:
        raise ConfigError(
            "this model was published without a masked-LM head, so it cannot score texts until "
            "firth pretrain --model trains one"
        )
    return loaded.objective


@dataclass(frozen=True, slots=True)
class _Row:
    """A window of text ``number`` as the model reads it: ``ids``, special tokens included.

    The text's token i is ``ids[i + shift]``; tokens ``[first:last]`` are scored.
    """

    number: int
    ids: list[int]
    shift: int
    first: int
    last: int


def _rows(loaded: Loaded, model: LanguageModel | None, number: int, ids: list[int]) -> Iterator[_Row]:
    before, after = (model.first, model.last) if model is not None else (loaded.layout.first, loaded.layout.last)
    room = max((loaded.window_length or 10**9) - len(before) - len(after), 1)
    one_sided = model is not None and len(model.directions) == 1
    for begin, first, last in windows(len(ids), room, causal=one_sided):
        row = [*before, *ids[begin : begin + room], *after]
        yield _Row(number, row, len(before) - begin, first, last)


Places = list[tuple[int, float]]


@torch.inference_mode()
def _masked(
    loaded: Loaded, objective: MaskedLM, rows: list[_Row], device: torch.device, budget_tokens: int
) -> list[Places]:
    """Score each token of each sequence in a copy of the sequence with that token masked."""
    copies = [(number, place) for number, row in enumerate(rows) for place in range(row.first, row.last)]
    values: list[dict[int, float]] = [{} for _ in rows]
    for chosen in in_batches([len(rows[number].ids) for number, _ in copies], budget_tokens):
        some = [(number, place, place + rows[number].shift) for number, place in (copies[i] for i in chosen)]
        inputs, labels = [], []
        for number, _, at in some:
            ids = rows[number].ids
            inputs.append([*ids[:at], loaded.tokenizer.mask_id, *ids[at + 1 :]])
            labels.append(ids[at])
        tokens = pack_lists(inputs).to(device)
        index = tokens.rows.first + torch.tensor([at for *_, at in some], device=device)
        found = _log_probabilities(objective, objective.encoder(tokens).top.index_select(0, index), labels)
        for (number, place, _), value in zip(some, found, strict=True):
            values[number][place] = value
    return [sorted(of_row.items()) for of_row in values]


@torch.inference_mode()
def _directed(
    loaded: Loaded, model: LanguageModel, rows: list[_Row], device: torch.device, budget_tokens: int
) -> dict[str, list[Places]]:
    """Score each token in each direction, if its sequence has a state before it (backward: after it)."""
    values: dict[str, list[Places]] = {direction: [[] for _ in rows] for direction in model.directions}
    for chosen in in_batches([len(row.ids) for row in rows], budget_tokens):
        tokens = pack_words([rows[i].ids for i in chosen], loaded.tokenizer).to(device)
        states = model.states(model.objective.encoder(tokens))
        for direction in model.directions:
            step = -1 if direction == "forward" else 1
            index, labels, owners = [], [], []
            for start, number in zip(tokens.rows.first.tolist(), chosen, strict=True):
                row = rows[number]
                for place in range(row.first, row.last):
                    at = place + row.shift
                    if 0 <= at + step < len(row.ids):  # a sequence's first token has nothing before it
                        index.append(start + at + step)
                        # With an open vocabulary, the softmax treats words outside it as the unknown token.
                        known = row.ids[at] < loaded.tokenizer.size
                        labels.append(row.ids[at] if known else loaded.tokenizer.unk_id)
                        owners.append((number, place))
            if not index:
                continue
            chosen_states = states[direction].index_select(0, torch.tensor(index, device=device))
            found = _log_probabilities(model.objective, chosen_states, labels)
            for (number, place), value in zip(owners, found, strict=True):
                values[direction][number].append((place, value))
    return values


def _log_probabilities(objective: MaskedLM | NextToken, states: Float[Tensor, "M H"], labels: list[int]) -> list[float]:
    answers: Int[Tensor, " M"] = torch.tensor(labels, device=states.device)
    found: list[float] = []
    for some, answer in zip(states.split(_CHUNK), answers.split(_CHUNK), strict=True):
        logits = objective.logits(some).float()
        found += (logits.gather(1, answer[:, None])[:, 0] - logits.logsumexp(1)).tolist()
    check_finite([found])
    return found


def prefers_good(
    loaded: Loaded, pairs: Iterable[MinimalPair], *, device: torch.device, budget_tokens: int
) -> Iterator[tuple[MinimalPair, bool]]:
    """Yield each pair, and whether ``good`` has the higher summed log-probability (a tie counts as wrong)."""
    source = iter(pairs)
    while some := list(islice(source, AT_ONCE // 2)):
        texts = [text for pair in some for text in (pair.good, pair.bad)]
        scores = [s.log_probability for s in score_texts(loaded, texts, device=device, budget_tokens=budget_tokens)]
        for number, pair in enumerate(some):
            yield pair, scores[2 * number] - scores[2 * number + 1] > _ROUNDING


def pair_accuracies(answers: Iterable[tuple[MinimalPair, bool]]) -> dict[str, dict[str, float]]:
    """Accuracy by ``paradigm`` and by ``field``, and ``all``: the mean over paradigms, as BLiMP and Zorro report it.

    A paradigm's name is prefixed by its field if another field has one of the same name, or if it has no name.
    """
    right: dict[tuple[str, str], list[bool]] = {}
    for pair, good in answers:
        right.setdefault((pair.field, pair.paradigm), []).append(good)
    shares = {key: sum(values) / len(values) for key, values in right.items()}
    fields: dict[str, list[float]] = {}
    for (field, _), share in shares.items():
        fields.setdefault(field, []).append(share)
    times = Counter(name for _, name in shares)
    names = {key: key[1] if key[1] and times[key[1]] == 1 else "/".join(filter(None, key)) for key in shares}
    return {
        "all": {"accuracy": sum(shares.values()) / len(shares), "pairs": float(sum(map(len, right.values())))},
        "field": {name: sum(values) / len(values) for name, values in sorted(fields.items())},
        "paradigm": {names[key]: share for key, share in sorted(shares.items())},
    }
