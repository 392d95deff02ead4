"""Every language model by the same path: scores, generation and next tokens against separate forward passes."""

import math

import pytest
import torch
from tiny_language_models import LEFT_TO_RIGHT, NAMES, tiny_language_model

from firth.data.rows import pack_words
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, Loaded
from firth.inference.language_models import language_model
from firth.inference.model import Model

TEXTS = ["a1 b2 c3", "d4", "e5 f0 a1 b1 c1 d1"]


@torch.inference_mode()
def log_probs(made: Model, read: list[int], direction: str = "forward") -> torch.Tensor:
    """Log-probabilities of the token after ``read`` (ids in reading order), from a separate forward pass."""
    loaded = made.loaded
    backward = direction == "backward"
    row = read[::-1] if backward else read
    hidden = loaded.objective.encoder(pack_words([row], loaded.tokenizer))
    state = hidden.top[:1] if backward else hidden.top[-1:]
    if loaded.system_name == "elmo":
        state = state.chunk(2, 1)[int(backward)]
    return loaded.objective.logits(state).log_softmax(1)[0]


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_each_token_is_scored_as_by_itself_in_each_direction(name: str) -> None:
    made = tiny_language_model(name)
    asked = language_model(made.loaded)
    for text, score in zip(TEXTS, made.score_texts(TEXTS), strict=True):
        ids = list(made.loaded.tokenizer.encode(text).ids)
        for direction in asked.directions:
            backward = direction == "backward"
            order = ids[::-1] if backward else ids
            read = [*(asked.last[::-1] if backward else asked.first)]
            expected = []
            for number in order:
                if read:
                    expected.append(float(log_probs(made, read, direction)[number]))
                read.append(number)
            second = backward and len(asked.directions) > 1
            found = [token.log_probability for token in (score.backward if second else score.tokens)]
            assert found == pytest.approx(expected[::-1] if backward else expected, abs=1e-4)
            assert score.kind == asked.directions[0]
        values = [token.log_probability for token in score.tokens]
        if values:
            assert score.perplexity == pytest.approx(math.exp(-sum(values) / len(values)), rel=1e-6)
        else:
            assert name == "gpt" and math.isnan(score.perplexity)


def test_elmo_is_scored_in_both_directions_and_unknown_words_as_the_unknown_one() -> None:
    made = tiny_language_model("elmo")
    score, other = made.score_texts(["a1 zebra b2", "a1 lion b2"])
    assert [t.token for t in score.tokens] == [t.token for t in score.backward] == ["a1", "zebra", "b2"]
    both = sum(t.log_probability for t in (*score.tokens, *score.backward)) / 2
    assert score.log_probability == pytest.approx(both)
    # The unknown word itself has the same probability, but what follows it does not: its characters are read.
    assert score.tokens[1].log_probability == pytest.approx(other.tokens[1].log_probability, abs=1e-5)
    assert score.tokens[2].log_probability != pytest.approx(other.tokens[2].log_probability, abs=1e-3)


@pytest.mark.parametrize("name", ["bert", "bert-ltr", "gpt"])
def test_a_long_text_is_scored_in_windows(name: str) -> None:
    made = tiny_language_model(name)
    text = " ".join(NAMES)
    (score,) = made.score_texts([text])
    assert [t.token for t in score.tokens] == NAMES[1 if name == "gpt" else 0 :]
    assert all(text[t.start : t.end] == t.token for t in score.tokens)
    # What fits is scored as if it were alone: the first window begins where the text does.
    (short,) = made.score_texts([" ".join(NAMES[:14])])
    first = [t.log_probability for t in score.tokens[:6]]
    assert first == pytest.approx([t.log_probability for t in short.tokens[:6]], abs=1e-4)


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_generation_gives_what_reading_all_again_gives(name: str) -> None:
    made = tiny_language_model(name)
    asked = language_model(made.loaded)
    special = list(made.loaded.tokenizer.special_ids)
    for text, found in zip(TEXTS, made.generate(TEXTS, how="greedy", max_new_tokens=6), strict=True):
        ids = list(made.loaded.tokenizer.encode(text).ids)
        read = [*asked.start, *(ids[::-1] if asked.backward else ids)]
        total, pieces = 0.0, []
        for _ in range(6):
            values = log_probs(made, read, asked.directions[0]).clone()
            values[special] = -torch.inf
            read.append(int(values.argmax()))
            total += float(values.max())
            pieces.append(made.loaded.tokenizer.piece(read[-1]))
        assert found.tokens == (pieces[::-1] if asked.backward else pieces)
        assert found.log_prob == pytest.approx(total, abs=1e-3)
        assert found.before == asked.backward
        joined = made.loaded.tokenizer.decode(ids)
        assert found.whole.endswith(joined) if asked.backward else found.whole.startswith(text)
    beams = made.generate(TEXTS, how="beam", beam=3, max_new_tokens=4)
    greedy = made.generate(TEXTS, how="greedy", max_new_tokens=4)
    assert all(b.log_prob >= g.log_prob - 1e-4 for b, g in zip(beams, greedy, strict=True))


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_next_tokens(name: str) -> None:
    made = tiny_language_model(name)
    asked = language_model(made.loaded)
    ids = list(made.loaded.tokenizer.encode("a1 b2").ids)
    values = log_probs(made, [*asked.start, *(ids[::-1] if asked.backward else ids)], asked.directions[0])
    found = made.next_tokens("a1 b2", 5)
    assert len(found) == 5 and [c.probability for c in found] == sorted((c.probability for c in found), reverse=True)
    numbers = {made.loaded.tokenizer.piece(i): i for i in range(made.loaded.tokenizer.size)}
    for candidate in found:
        assert candidate.probability == pytest.approx(float(values[numbers[candidate.token]].exp()), rel=1e-3)
    every = made.next_tokens("a1 b2", 10_000)
    assert len(every) == made.loaded.tokenizer.size - len(made.loaded.tokenizer.special_ids)


def test_who_has_a_start_token_generates_from_nothing() -> None:
    assert len(tiny_language_model("lstm").generate("", max_new_tokens=3).tokens) == 3
    with pytest.raises(InputError, match="has no tokens"):
        tiny_language_model("gpt").generate("", max_new_tokens=3)
    with pytest.raises(LengthError, match="reads at most|exceeds the model's maximum of 16"):
        tiny_language_model("bert-ltr").next_tokens(" ".join(NAMES))


def test_a_masked_model_is_sent_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"firth fill-mask\): firth pretrain --model gpt-mini trains one"):
        tiny_language_model("bert").next_tokens("a1")
    headless = tiny_language_model("elmo").loaded
    headless = Loaded("elmo", PRETRAINING, headless.objective, headless.tokenizer, untrained=("softmax",))
    with pytest.raises(ConfigError, match="which was published without a language-model head"):
        Model(headless, torch.device("cpu")).score_texts(["a1"])
