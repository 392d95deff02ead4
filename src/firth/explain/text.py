"""One page that shows what a model makes of a text: its tokens, its input, its masks, its probabilities, its heads."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from firth.data.config import MaskingConfig
from firth.data.masking import Masker
from firth.errors import FirthError, InputError
from firth.explain.markup import (
    Mark,
    box,
    head_maps,
    label,
    labelled_map,
    svg,
    text_width,
    token_row,
    visible,
)
from firth.explain.pieces import PieceStep, wordpiece_steps
from firth.explain.sentences import Language, say_in
from firth.inference.attention_maps import attention_layers
from firth.inference.language_models import language_model
from firth.inference.model import Model
from firth.inference.next_sentence import next_sentence_model
from firth.inference.text_scores import TokenScore, perplexity_of
from firth.inference.token_vectors import TextVectors
from firth.metrics.neighbours import unit_vectors
from firth.objectives.masked_lm import MaskedLM
from firth.page import Report
from firth.text.sentences import split_sentences
from firth.text.tokenizer import WORDPIECE

# What is drawn of a long text. More would be too small to read, and a page of many heads too large to open.
MOST_TOKENS = 200
MOST_MAPPED = 32
MOST_INPUT = 14
_MOST_WORDS = 8
_EPOCHS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a page is about: texts, the word to compare in them (None: the longest that repeats).

    ``name``: of the model; ``others``: models in which the word is compared too, with their names.
    """

    texts: tuple[str, ...]
    word: str | None = None
    language: Language = "en"
    name: str = ""
    others: tuple[tuple[str, Model], ...] = ()

    def say(self, key: str, **values: object) -> str:
        return say_in(self.language, key, **values)


def explain(
    model: Model,
    texts: Sequence[str],
    out: Path,
    *,
    word: str | None = None,
    language: Language = "en",
    name: str = "",
    others: Sequence[tuple[str, Model]] = (),
) -> list[str]:
    """Write the page of some texts to a file; returns the headings of its sections.

    A section is left out where the model has nothing to show in it: attention of an LSTM, masks of GPT. ``others``:
    further models, by name, in which the word's vectors are compared too. InputError for no text, an empty one, or a
    ``word`` that no text has.
    """
    if not texts or not all(model.tokenize(text) for text in texts):
        raise InputError("a text has no tokens: give texts with a word in each")
    asked = Asked(texts=tuple(texts), word=word, language=language, name=name or model.system, others=tuple(others))
    page = Report(asked.say("title", model=asked.name), language=language)
    found = [section(page, model, asked) for section in _SECTIONS]
    page.write_new(out)
    return [heading for heading in found if heading]


def _row(model: Model, text: str) -> tuple[list[int], list[bool]]:
    """The ids of a text as the model reads it, cut to what can be drawn and read, and which are special."""
    layout = model.loaded.layout
    room = min(MOST_TOKENS, (model.loaded.max_length or MOST_TOKENS) - layout.n_special)
    ids = model.loaded.tokenizer.encode(text).ids[:room]
    row = layout.single(ids)
    before = len(layout.first)
    return row, [not before <= i < before + len(ids) for i in range(len(row))]


def _tokens(page: Report, model: Model, asked: Asked) -> str:
    heading = asked.say("tokens")
    page.heading(heading)
    page.text(asked.say("tokens_text"))
    piece = model.loaded.tokenizer.piece
    for text in asked.texts:
        row, special = _row(model, text)
        places = iter(model.tokenize(text))
        marks = list[Mark]()
        for i, is_special in zip(row, special, strict=True):
            token = None if is_special else next(places)
            below = "" if token is None else f"{token.start}–{token.end}"
            hint = "" if token is None else f"{text[token.start : token.end]} · id {i}"
            marks.append(Mark(piece(i), 0.0 if is_special else 0.12, below=below, hint=hint, dashed=is_special))
        page.drawing(token_row(marks))
        if len(model.tokenize(text)) > len(row):
            page.text(asked.say("cut", n=len(row)))
    return heading


def _steps(page: Report, model: Model, asked: Asked) -> str:
    if model.loaded.tokenizer.kind is not WORDPIECE:
        return ""
    heading = asked.say("steps")
    page.heading(heading)
    divided = divided_words(model, asked.texts)
    if not divided:
        page.text(asked.say("steps_none"))
        return heading
    page.text(asked.say("steps_text"))
    rows = []
    for word, steps in divided[:_MOST_WORDS]:
        for number, step in enumerate(steps):
            unknown = model.loaded.tokenizer.kind.unk
            rows.append(
                (visible(word) if not number else "", visible(step.rest), step.tried, visible(step.found or unknown))
            )
    page.table(asked.say("steps_columns").split("|"), rows)
    return heading


def divided_words(model: Model, texts: Sequence[str]) -> list[tuple[str, list[PieceStep]]]:
    """The different words of texts that are more than one token or unknown, each with its steps."""
    vocabulary = frozenset(model.loaded.tokenizer.pieces)
    found: dict[str, list[PieceStep]] = {}
    for text in texts:
        for word in model.loaded.tokenizer.words(text):
            steps = wordpiece_steps(word, vocabulary)
            if len(steps) > 1 or steps[0].found is None:
                found.setdefault(word, steps)
    return list(found.items())


def _input(page: Report, model: Model, asked: Asked) -> str:
    rows = input_embeddings(model, asked.texts)
    if not rows:
        return ""
    heading = asked.say("input")
    page.heading(heading)
    page.text(asked.say("input_text"))
    tokens, parts = rows
    # As wide as the widest name in the column.
    named = zip(tokens, *(names for _, names in parts.values()), strict=True)
    columns = [max(34.0, *map(text_width, column)) + 12 for column in named]
    left = max(text_width(asked.say(f"input_{key}")) for key in parts) + 12
    starts = left + np.concatenate([[0], np.cumsum(columns)])
    drawn = [label(starts[i] + columns[i] / 2 - 4, 12, token, anchor="middle") for i, token in enumerate(tokens)]
    longest = max(float(norm) for norms, _ in parts.values() for norm in norms)
    for number, (key, (norms, names)) in enumerate(parts.items()):
        y = 30 + 52 * number
        drawn.append(label(left - 8, y + 19, asked.say(f"input_{key}"), anchor="end", faint=True))
        for i, (norm, name) in enumerate(zip(norms, names, strict=True)):
            amount = 0.08 + 0.5 * float(norm) / max(longest, 1e-9)
            drawn.append(
                box(starts[i], y, columns[i] - 8, 38, colour=number, amount=amount, hint=f"{name}: {norm:.3f}")
            )
            drawn.append(label(starts[i] + columns[i] / 2 - 4, y + 12, name, anchor="middle"))
            drawn.append(label(starts[i] + columns[i] / 2 - 4, y + 28, f"{norm:.2f}", anchor="middle", faint=True))
            if number:
                drawn.append(label(starts[i] + columns[i] / 2 - 4, y - 7, "+", anchor="middle", faint=True))
    page.drawing(svg(float(starts[-1]), 30 + 52 * len(parts), drawn, heading), heading)
    return heading


Parts = dict[str, tuple[Float[np.ndarray, " n"], list[str]]]


def input_embeddings(model: Model, texts: Sequence[str]) -> tuple[list[str], Parts] | None:
    """The first tokens of the input, and by kind of embedding the lengths of the vectors added and their names.

    Two texts are read as a pair where the model has segments. None for a model that adds nothing to its tokens.
    """
    embeddings = getattr(model.loaded.objective.encoder, "embeddings", None)
    layout, tokenizer = model.loaded.layout, model.loaded.tokenizer
    if embeddings is None or not hasattr(embeddings, "positions"):
        return None
    if layout.has_segments and len(texts) > 1:
        half = (MOST_INPUT - layout.n_special_pair) // 2
        row, segments = layout.pair(*(tokenizer.encode(text).ids[:half] for text in texts[:2]))
    else:
        row = layout.single(tokenizer.encode(texts[0]).ids)[:MOST_INPUT]
        segments = [0] * len(row)
    tables = {
        "token": (embeddings.pieces, row, [f"E({visible(tokenizer.piece(i))})" for i in row]),
        "segment": (getattr(embeddings, "segments", None), segments, [f"E({'AB'[s]})" for s in segments]),
        "position": (embeddings.positions, list(range(len(row))), [f"E({i})" for i in range(len(row))]),
    }
    parts: Parts = {}
    for key, (table, numbers, names) in tables.items():
        if table is not None:
            vectors = table.weight.detach().index_select(0, torch.tensor(numbers, device=table.weight.device))
            parts[key] = (vectors.float().norm(dim=1).cpu().numpy(), names)
    return [tokenizer.piece(i) for i in row], parts


def _masks(page: Report, model: Model, asked: Asked) -> str:
    if not isinstance(model.loaded.objective, MaskedLM):
        return ""
    heading = asked.say("masks")
    page.heading(heading)
    page.text(asked.say("masks_text", share=f"{MaskingConfig().share:.0%}"))
    for epoch, marks in enumerate(masked_rows(model, asked), start=1):
        page.text(asked.say("masks_epoch", n=epoch))
        for row in marks:
            page.drawing(token_row(row))
    return heading


def masked_rows(model: Model, asked: Asked) -> list[list[list[Mark]]]:
    """By epoch and text the tokens as the model sees them in pre-training, the chosen ones with their answers."""
    tokenizer, config = model.loaded.tokenizer, MaskingConfig()
    rows = [_row(model, text) for text in asked.texts]
    ids = np.array([i for row, _ in rows for i in row], np.int64)
    special = np.array([s for _, flags in rows for s in flags])
    starts = np.cumsum([0, *(len(row) for row, _ in rows[:-1])])
    masker = Masker(config, tokenizer.mask_id, tokenizer.continues, max(len(row) for row, _ in rows))
    epochs = []
    for epoch in range(_EPOCHS):
        seen, chosen, labels = masker(ids, starts, special, np.arange(len(rows)) + 1, epoch)
        answers = dict(zip(chosen.tolist(), labels.tolist(), strict=True))
        marks = []
        for at, i in enumerate(seen.tolist()):
            if at not in answers:
                marks.append(Mark(tokenizer.piece(i)))
                continue
            masked, kept = i == tokenizer.mask_id, i == answers[at]
            key = "masks_masked" if masked else "masks_kept" if kept else "masks_random"
            colour = 0 if masked else 2 if kept else 1
            # The word beside the answer says what the colour says.
            below = f"{visible(tokenizer.piece(answers[at]))} ({asked.say(key)})"
            marks.append(Mark(tokenizer.piece(i), 0.4, colour, below, dashed=not masked))
        bounds = [*starts.tolist(), len(ids)]
        epochs.append([marks[a:b] for a, b in zip(bounds, bounds[1:], strict=False)])
    return epochs


def _pairs(page: Report, model: Model, asked: Asked) -> str:
    objective = model.loaded.objective
    sentences = [s for text in asked.texts for s in split_sentences(text) if model.tokenize(s)]
    if not isinstance(objective, MaskedLM) or objective.nsp is None or len(sentences) < 3:
        return ""
    heading = asked.say("pairs")
    page.heading(heading)
    page.text(asked.say("pairs_text"))
    follows = _can(lambda: next_sentence_model(model.loaded))
    pairs = list[tuple[str, str, bool]]()
    for i in range(min(len(sentences) - 1, _MOST_WORDS)):
        pairs += [(sentences[i], sentences[i + 1], True), (sentences[i], sentences[(i + 2) % len(sentences)], False)]
    room = (model.loaded.max_length or 10**9) - model.loaded.layout.n_special_pair
    pairs = [p for p in pairs if len(model.tokenize(p[0])) + len(model.tokenize(p[1])) <= room]
    trained: list[float | None] = [None] * len(pairs)
    if follows:
        trained = [*model.follows([a for a, _, _ in pairs], [b for _, b, _ in pairs])]
    rows = [
        (visible(a), visible(b), asked.say("pairs_next" if true else "pairs_not"), None if p is None else f"{p:.1%}")
        for (a, b, true), p in zip(pairs, trained, strict=True)
    ]
    page.table(asked.say("pairs_columns").split("|"), rows)
    return heading


def _can(ask: Callable[[], object]) -> bool:
    """Whether a model has what a section shows."""
    try:
        ask()
    except FirthError:
        return False
    return True


def _probabilities(page: Report, model: Model, asked: Asked) -> str:
    loaded = model.loaded
    masked = isinstance(loaded.objective, MaskedLM) and "mlm" not in loaded.untrained
    if not masked and not _can(lambda: language_model(loaded)):
        return ""
    heading = asked.say("probabilities")
    page.heading(heading)
    page.text(asked.say("probabilities_text"))
    for text in asked.texts:
        (score,) = model.score_texts([text])
        ways = [(score.kind, score.tokens)] + ([("backward", score.backward)] if score.backward else [])
        for kind, tokens in ways:
            page.text(asked.say(f"probabilities_{kind}", value=f"{perplexity_of(tokens):,.1f}"))
            page.drawing(token_row([_coloured(token) for token in tokens[:MOST_TOKENS]]))
            if len(tokens) > MOST_TOKENS:
                page.text(asked.say("cut", n=MOST_TOKENS))
    return heading


def _coloured(token: TokenScore) -> Mark:
    probability = float(np.exp(token.log_probability))
    # Full at 1, half at about 3 %, empty at a thousandth: most differences are between small probabilities.
    amount = 1 + max(token.log_probability, np.log(1e-3)) / np.log(1e3)
    below = f"{100 * probability:.0f}" if probability >= 0.01 else "<1"
    return Mark(token.token, 0.7 * amount, below=below, hint=f"p = {probability:.2g}")


def _context(page: Report, model: Model, asked: Asked) -> str:
    found = model.vectors(asked.texts)
    word = asked.word or repeated_word(found)
    if word is None:
        return ""
    places = [
        (number, i)
        for number, one in enumerate(found)
        for i, unit in enumerate(one.words)
        if unit.text.casefold() == word.casefold()
    ]
    if asked.word and not places:
        raise InputError(f"--word {asked.word!r}: no text has this word")
    if len(places) < 2:
        return ""
    heading = asked.say("context", word=visible(word))
    page.heading(heading)
    page.text(asked.say("context_text"))
    names = [visible(_around(found[number], i)) for number, i in places]
    layers = [0, len(found[0].each) - 1]
    for layer in dict.fromkeys(layers):
        cosines = cosine_table(found, places, layer)
        title = asked.say("context_bottom") if layer == 0 else asked.say("context_layer", n=layer)
        page.table([title, *(f"{i + 1}" for i in range(len(places)))],
                   [(f"{i + 1}  {name}", *(float(round(c, 3)) for c in row))
                    for i, (name, row) in enumerate(zip(names, cosines.tolist(), strict=True))])  # fmt: skip
        numbers = [str(i + 1) for i in range(len(places))]
        page.drawing(labelled_map(names, numbers, cosines.clip(0, 1), title, side=26), title)
    return heading


def _models(page: Report, model: Model, asked: Asked) -> str:
    if not asked.others:
        return ""
    word = asked.word or repeated_word(model.vectors(asked.texts))
    if word is None:
        return ""
    heading = asked.say("models", word=visible(word))
    page.heading(heading)
    page.text(asked.say("models_text"))
    named = [(asked.name, model), *asked.others]
    names = [name for name, _ in named]
    found = [word_cosines(one, asked.texts, word) for _, one in named]
    columns = asked.say("models_columns").split("|")
    rows = [
        (name, *(None if np.isnan(cosine) else round(cosine, 3) for cosine in both))
        for name, both in zip(names, found, strict=True)
    ]
    page.table(columns, rows)
    bars = np.nan_to_num(np.array(found)).clip(0, 1)
    page.drawing(labelled_map(names, columns[1:], bars, heading, side=26), heading)
    return heading


def word_cosines(model: Model, texts: Sequence[str], word: str) -> tuple[float, float]:
    """The mean cosine in the top layer between occurrences of a word, and between all other pairs of words.

    NaN where there is no such pair.
    """
    found = model.vectors(texts)
    spelled = [unit.text.casefold() for one in found for unit in one.words]
    x = unit_vectors(np.concatenate([one.of_words(one.layer(-1)) for one in found]))
    rows, columns = np.triu_indices(len(x), 1)
    same = np.array([spelled[i] == spelled[j] for i, j in zip(rows.tolist(), columns.tolist(), strict=True)], bool)
    asked = same & np.array([spelled[i] == word.casefold() for i in rows.tolist()], bool)
    cosines = (x[rows] * x[columns]).sum(1)
    means = [float(cosines[some].mean()) if some.any() else float("nan") for some in (asked, ~same)]
    return means[0], means[1]


def repeated_word(found: Sequence[TextVectors]) -> str | None:
    """The longest word that occurs twice or more; None if there is none of three letters, or of two ideographs."""
    counts = Counter(unit.text.casefold() for one in found for unit in one.words)
    often = [word for word, n in counts.items() if n > 1 and len(word) > (2 if word.isascii() else 1)]
    return max(often, key=len, default=None)


def cosine_table(
    found: Sequence[TextVectors], places: Sequence[tuple[int, int]], layer: int
) -> Float[np.ndarray, "P P"]:
    """The cosines between words, given as (text, word) numbers, in one layer."""
    x = unit_vectors(np.stack([found[number].of_words(found[number].layer(layer))[i] for number, i in places]))
    return x @ x.T


def _around(one: TextVectors, i: int) -> str:
    """A word with its neighbours."""
    begin, end = one.words[max(i - 2, 0)].start, one.words[min(i + 2, len(one.words) - 1)].end
    unit = one.words[i]
    return f"{one.text[begin : unit.start]}[{unit.text}]{one.text[unit.end : end]}"


def _attention(page: Report, model: Model, asked: Asked) -> str:
    if not attention_layers(model.loaded.objective.encoder):
        return ""
    heading = asked.say("attention")
    page.heading(heading)
    page.text(asked.say("attention_text"))
    text = asked.texts[0]
    pieces = model.tokenize(text)
    room = min(MOST_MAPPED, model.loaded.max_length or MOST_MAPPED) - model.loaded.layout.n_special
    if len(pieces) > room:
        text = text[: pieces[room - 1].end]
        page.text(asked.say("cut", n=room))
    found = model.attention(text)
    mean = asked.say("attention_mean")
    page.drawing(labelled_map(found.tokens, found.tokens, found.weights.mean((0, 1)), mean), mean)
    names = [asked.say("attention_head", n=head + 1) for head in range(found.weights.shape[1])]
    for layer, weights in enumerate(found.weights, start=1):
        title = asked.say("attention_layer", n=layer)
        page.drawing(head_maps(found.tokens, weights, title, names), title)
    if len(found.tokens) > 1:
        page.text(asked.say("saturation_text"))
        sharp = model.saturation(text)
        rows = [
            (str(s.layer), *(f"{v:.2f}" for v in (s.largest, s.largest_unscaled, s.slope, s.slope_unscaled)))
            for s in sharp
        ]
        page.table(asked.say("saturation_columns").split("|"), rows)
        bars = np.array([(s.largest, s.largest_unscaled) for s in sharp]).T
        names = asked.say("saturation_columns").split("|")[1:3]
        page.drawing(
            labelled_map(names, [str(s.layer) for s in sharp], bars, asked.say("saturation"), side=26),
            asked.say("saturation"),
        )
    return heading


# In the order of the page; each writes its part and returns its heading, or an empty text where it has nothing to show.
_SECTIONS: tuple[Callable[[Report, Model, Asked], str], ...] = (
    _tokens, _steps, _input, _masks, _pairs, _probabilities, _context, _models, _attention,
)  # fmt: skip
