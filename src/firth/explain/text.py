"""One page that shows how a model processes a text: its tokens, input, masks, probabilities and heads."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from firth.data.config import MaskingConfig
from firth.data.masking import Masker
from firth.errors import InputError
from firth.explain.asked import MOST_INPUT, MOST_NEXT, MOST_TOKENS, MOST_WORDS, Asked, can
from firth.explain.heads import attention_section, cross_section, importance_section
from firth.explain.markup import Mark, box, label, svg, text_width, token_row, visible
from firth.explain.pieces import PieceStep, wordpiece_steps
from firth.explain.sentences import Language
from firth.explain.words import context_section, models_section, neighbours_section
from firth.inference.attention_maps import encodes_apart, pair_texts
from firth.inference.fast import FastEncoder
from firth.inference.language_models import language_model
from firth.inference.model import Model
from firth.inference.next_sentence import next_sentence_model
from firth.inference.text_scores import TokenScore, perplexity_of
from firth.objectives.contrastive import Contrastive
from firth.objectives.masked_lm import MaskedLM
from firth.page import Report
from firth.tasks.rows import marked_pair
from firth.text.sentences import split_sentences
from firth.text.tokenizer_kinds import WORDPIECE

_EPOCHS = 3
_ELLIPSIS = "\u2026"


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
    """Write a page about some texts to a file; returns the headings of its sections.

    A section is left out if the model has nothing to show in it: attention of an LSTM, masks of GPT. ``others``:
    further models, by name, in which the word's vectors are compared too. InputError for no text, an empty one, or a
    ``word`` that no text contains.
    """
    if not texts or not all(model.tokenize(text) for text in texts):
        raise InputError("a text has no tokens: give texts with a word in each")
    asked = Asked(texts=tuple(texts), word=word, language=language, name=name or model.system, others=tuple(others))
    page = Report(asked.say("title", model=asked.name), language=language)
    found = [section(page, model, asked) for section in _SECTIONS]
    page.write_new(out)
    return [heading for heading in found if heading]


def _row(model: Model, text: str) -> tuple[list[int], list[bool]]:
    """The ids of a text as the model reads it, truncated to what can be drawn and read, and which are special."""
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
        n_shown = special.count(False)
        if len(model.tokenize(text)) > n_shown:
            page.text(asked.say("cut", n=n_shown))
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
    for word, steps in divided[:MOST_WORDS]:
        for number, step in enumerate(steps):
            unknown = model.loaded.tokenizer.kind.unk
            rows.append(
                (visible(word) if not number else "", visible(step.rest), step.tried, visible(step.found or unknown))
            )
    page.table(asked.say("steps_columns").split("|"), rows)
    if len(divided) > MOST_WORDS:
        page.text(asked.say("shown", n=MOST_WORDS, all=len(divided)))
    return heading


def divided_words(model: Model, texts: Sequence[str]) -> list[tuple[str, list[PieceStep]]]:
    """The distinct words of texts that are more than one token or unknown, each with its steps."""
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
    tokens, parts, n_all = rows
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
    page.drawing(svg(float(starts[-1]), 30 + 52 * len(parts), drawn, heading))
    if n_all > len(tokens):
        page.text(asked.say("shown", n=len(tokens), all=n_all))
    return heading


# Names of the segments of a pair, and of the words that both texts have where a model marks them.
_SEGMENTS = ("A", "B", "A shared", "B shared")

Parts = dict[str, tuple[Float[np.ndarray, " n"], list[str]]]


def input_embeddings(model: Model, texts: Sequence[str]) -> tuple[list[str], Parts, int] | None:
    """The first tokens of the input, by kind of embedding the lengths of the vectors added and their names, and the
    number of tokens in the whole input.

    Two texts are read as a pair if the model has segments. None for a model that adds nothing to its tokens.
    """
    encoder = model.loaded.objective.encoder
    embeddings = getattr(encoder.encoder if isinstance(encoder, FastEncoder) else encoder, "embeddings", None)
    layout, tokenizer = model.loaded.layout, model.loaded.tokenizer
    if embeddings is None or not hasattr(embeddings, "positions"):
        return None
    room = min(MOST_INPUT, model.loaded.max_length or MOST_INPUT)
    if layout.has_segments and len(texts) > 1 and not encodes_apart(model.loaded):
        half = (room - layout.n_special_pair) // 2
        first, second = pair_texts(model.loaded, *texts[:2])
        row, segments = marked_pair(layout, first.part(0, half), second.part(0, half))
        n_all = len(first) + len(second) + layout.n_special_pair
    else:
        whole = layout.single(tokenizer.encode(texts[0]).ids)
        row, n_all = whole[:room], len(whole)
        segments = [0] * len(row)
    if getattr(getattr(embeddings, "segments", None), "num_embeddings", 2) == 1:
        segments = [0] * len(row)
    tables = {
        "token": (embeddings.pieces, row, [f"E({visible(tokenizer.piece(i))})" for i in row]),
        "segment": (getattr(embeddings, "segments", None), segments, [f"E({_SEGMENTS[s]})" for s in segments]),
        "position": (embeddings.positions, list(range(len(row))), [f"E({i})" for i in range(len(row))]),
    }
    parts: Parts = {}
    for key, (table, numbers, names) in tables.items():
        if table is not None:
            vectors = table.weight.detach().index_select(0, torch.tensor(numbers, device=table.weight.device))
            parts[key] = (vectors.float().norm(dim=1).cpu().numpy(), names)
    return [tokenizer.piece(i) for i in row], parts, n_all


def _masks(page: Report, model: Model, asked: Asked) -> str:
    objective = model.loaded.objective
    if not isinstance(objective, MaskedLM) or isinstance(objective, Contrastive):
        return ""
    heading = asked.say("masks")
    page.heading(heading)
    masking = masking_of(model)
    shares = {"masked": masking.mask, "random": 1 - masking.mask - masking.keep, "kept": masking.keep}
    page.text(
        asked.say(
            "masks_text", share=f"{masking.share:.0%}", **{name: f"{share:.0%}" for name, share in shares.items()}
        )
    )
    for epoch, marks in enumerate(masked_rows(model, asked), start=1):
        page.text(asked.say("masks_epoch", n=epoch))
        for row in marks:
            page.drawing(token_row(row))
    return heading


def masking_of(model: Model) -> MaskingConfig:
    """How the model's pre-training masked; as published if its folder does not say."""
    recipe = model.loaded.provenance.get("recipe", {})
    names = [field.name for field in dataclasses.fields(MaskingConfig)]
    return MaskingConfig(**{name: recipe[f"masking.{name}"] for name in names if f"masking.{name}" in recipe})


def masked_rows(model: Model, asked: Asked) -> list[list[list[Mark]]]:
    """By epoch and text, the tokens as the model sees them in pre-training, the chosen ones with their targets."""
    tokenizer, config = model.loaded.tokenizer, masking_of(model)
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
            # The word next to the target repeats what the colour shows.
            below = tokenizer.piece(answers[at])
            marks.append(Mark(tokenizer.piece(i), 0.4, colour, below, asked.say(key), dashed=not masked))
        bounds = [*starts.tolist(), len(ids)]
        epochs.append([marks[a:b] for a, b in zip(bounds, bounds[1:], strict=False)])
    return epochs


def _pairs(page: Report, model: Model, asked: Asked) -> str:
    objective = model.loaded.objective
    numbered = [(n, s) for n, text in enumerate(asked.texts) for s in split_sentences(text) if model.tokenize(s)]
    sentences = [sentence for _, sentence in numbered]
    if not isinstance(objective, MaskedLM) or objective.nsp is None or len(sentences) < 3:
        return ""
    heading = asked.say("pairs")
    page.heading(heading)
    page.text(asked.say("pairs_text"))
    follows = can(lambda: next_sentence_model(model.loaded))
    pairs = list[tuple[str, str, bool]]()
    for i in range(min(len(sentences) - 1, MOST_WORDS)):
        # The next sentence of another text does not follow.
        if numbered[i][0] == numbered[i + 1][0]:
            pairs.append((sentences[i], sentences[i + 1], True))
        pairs.append((sentences[i], sentences[(i + 2) % len(sentences)], False))
    room = (model.loaded.max_length or 10**9) - model.loaded.layout.n_special_pair
    fitting = [p for p in pairs if len(model.tokenize(p[0])) + len(model.tokenize(p[1])) <= room]
    n_long, pairs = len(pairs) - len(fitting), fitting
    trained: list[float | None] = [None] * len(pairs)
    if follows:
        trained = [*model.follows([a for a, _, _ in pairs], [b for _, b, _ in pairs])]
    rows = [
        (visible(a), visible(b), asked.say("pairs_next" if true else "pairs_not"), None if p is None else f"{p:.1%}")
        for (a, b, true), p in zip(pairs, trained, strict=True)
    ]
    page.table(asked.say("pairs_columns").split("|"), rows)
    if len(sentences) - 1 > MOST_WORDS:
        page.text(asked.say("shown_sentences", n=MOST_WORDS, all=len(sentences)))
    if n_long:
        page.text(asked.say("pairs_long", n=n_long, room=room))
    return heading


def _probabilities(page: Report, model: Model, asked: Asked) -> str:
    loaded = model.loaded
    masked = isinstance(loaded.objective, MaskedLM) and "mlm" not in loaded.untrained
    if not masked and not can(lambda: language_model(loaded)):
        return ""
    heading = asked.say("probabilities")
    page.heading(heading)
    page.text(asked.say("probabilities_text"))
    for text in asked.texts:
        # A masked model reads a text once per token: no more are scored than are drawn.
        places = model.tokenize(text)[:MOST_TOKENS]
        (score,) = model.score_texts([text[: places[-1].end]])
        ways = [(score.kind, score.tokens)] + ([("backward", score.backward)] if score.backward else [])
        for kind, tokens in ways:
            if not tokens:  # the only token has none before it
                continue
            page.text(asked.say(f"probabilities_{kind}", value=f"{perplexity_of(tokens):,.1f}"))
            page.drawing(token_row([_coloured(token) for token in tokens]))
        if places[-1].end < model.tokenize(text)[-1].end:
            page.text(asked.say("read", n=MOST_TOKENS))
    return heading


def _coloured(token: TokenScore) -> Mark:
    return _probable(token.token, float(np.exp(token.log_probability)))


def _probable(token: str, probability: float) -> Mark:
    # Full at 1, half at about 3 %, empty at 0.1 %: most differences are between small probabilities.
    amount = 1 + np.log(max(probability, 1e-3)) / np.log(1e3)
    below = f"{100 * probability:.0f}" if probability >= 0.01 else "<1"
    return Mark(token, 0.7 * float(amount), below=below, hint=f"p = {probability:.2g}")


def _next(page: Report, model: Model, asked: Asked) -> str:
    if not can(lambda: language_model(model.loaded)):
        return ""
    heading = asked.say("next")
    page.heading(heading)
    backward = language_model(model.loaded).backward
    page.text(asked.say("next_before" if backward else "next_after", n=MOST_NEXT))
    room = (model.loaded.max_length or MOST_TOKENS) - model.loaded.layout.n_special - 1
    for text in asked.texts:
        text = part_of(model, text, room, backward)
        # Show a readable part of the text, on the side where the model continues.
        near = model.tokenize(text)
        near_text = text[: near[:MOST_INPUT][-1].end] if backward else text[near[-MOST_INPUT:][0].start :]
        page.text(f"{_ELLIPSIS} {visible(near_text)}" if backward else f"{visible(near_text)} {_ELLIPSIS}")
        page.drawing(token_row([_probable(one.token, one.probability) for one in model.next_tokens(text, MOST_NEXT)]))
    return heading


def part_of(model: Model, text: str, room: int, backward: bool) -> str:
    """Return as much of a text as fits into ``room`` tokens: its end, or its beginning for a backward model.

    Part of a word may have more tokens than it had within the word; less text is taken then.
    """
    places = model.tokenize(text)
    if len(places) <= room:
        return text
    parts = (text[: places[n - 1].end] if backward else text[places[-n].start :] for n in range(room, 0, -1))
    return next(part for part in parts if len(model.tokenize(part)) <= room)


# In page order; each writes its section and returns the heading, or an empty string if it has nothing to show.
_SECTIONS: tuple[Callable[[Report, Model, Asked], str], ...] = (
    _tokens, _steps, _input, _masks, _pairs, _probabilities, _next,
    context_section, models_section, neighbours_section, attention_section, cross_section, importance_section,
)  # fmt: skip
