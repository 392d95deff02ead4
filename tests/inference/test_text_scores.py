"""Scores of texts, against each probability computed separately."""

from dataclasses import replace

import pytest
import torch

from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, Loaded
from firth.inference.embedding import embedding_rows
from firth.inference.model import Model
from firth.inference.text_scores import MinimalPair, pair_accuracies
from firth.models.bert import Bert
from firth.models.config import BertConfig, GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import CausalLMConfig, MaskedLMConfig, TiedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM, TiedLM
from firth.packed import Rows, Tokens
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *(f"{c}{i}" for c in "abcdef" for i in range(6)), "##s"]
TEXTS = ["a1 b2 c3", "d4", "e5 f0 a1s b1 c1 d1"]


def model(system: str, **options: int) -> Model:
    torch.manual_seed(0)
    sizes = {"vocab_size": len(PIECES), "width": 16, "n_layers": 2, "n_heads": 2, "max_positions": 12} | options
    if system == "gpt":
        objective = TiedLM(Gpt(GptConfig(**sizes)), TiedLMConfig())
    elif system == "bert":
        config = BertConfig(**sizes, feed_forward_width=16)
        objective = MaskedLM(Bert(config), MaskedLMConfig(next_sentence=False))
    else:
        config = BertConfig(**sizes, feed_forward_width=16, causal=True)
        objective = CausalLM(Bert(config), CausalLMConfig())
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    return Model(Loaded(system, PRETRAINING, objective.eval(), tokenizer), torch.device("cpu"), budget_tokens=20)


@torch.inference_mode()
def one_by_one(made: Model, text: str) -> list[float]:
    """Each token's log-probability from a forward pass of its own."""
    loaded = made.loaded
    ids = list(loaded.tokenizer.encode(text).ids)
    row = loaded.layout.single(ids)
    begin = row.index(ids[0])
    values = []
    for place in range(begin, begin + len(ids)):
        if made.system == "bert":
            shown, asked = [*row[:place], loaded.tokenizer.mask_id, *row[place + 1 :]], place
        else:
            shown, asked = row[:place], place - 1
        if shown:
            top = loaded.objective.encoder(Tokens(Rows.from_lengths([len(shown)]), torch.tensor(shown))).top
            values.append(float(loaded.objective.logits(top[[asked]]).log_softmax(1)[0, row[place]]))
    return values


@pytest.mark.parametrize("system", ["bert", "bert-ltr", "gpt"])
def test_each_token_is_scored_as_by_itself(system: str) -> None:
    made = model(system)
    for text, score in zip(TEXTS, made.score_texts(TEXTS), strict=True):
        expected = one_by_one(made, text)
        assert [t.log_probability for t in score.tokens] == pytest.approx(expected, abs=1e-4)
        assert score.log_probability == pytest.approx(sum(expected), abs=1e-3)
        pieces = made.tokenize(text)[-len(score.tokens) :] if score.tokens else []
        assert [(t.token, t.start, t.end) for t in score.tokens] == [(p.token, p.start, p.end) for p in pieces]


@pytest.mark.parametrize("system", ["bert", "bert-ltr", "gpt"])
def test_positions_that_pre_training_never_read_are_not_used(system: str) -> None:
    made = model(system)
    short = Model(replace(made.loaded, provenance={"recipe": {"data.length": 6}}), torch.device("cpu"))
    tuned = replace(made.loaded, provenance={"recipe": {}, "base": {"provenance": {"recipe": {"data.length": 6}}}})
    assert (made.loaded.window_length, short.loaded.window_length, tuned.window_length) == (12, 6, 6)
    text = "a1 b2 c3 d4 e5 f0 a1 b1 c1 d1"
    assert len(embedding_rows(made.loaded, [text])[0]) == 1
    rows = embedding_rows(short.loaded, [text])[0]
    assert len(rows) > 1 and max(map(len, rows)) == 6
    by_itself = Model(model(system, max_positions=6).loaded, torch.device("cpu"))
    state = made.loaded.objective.state_dict()
    cut = {name: value[:6] if name.endswith("positions.weight") else value for name, value in state.items()}
    by_itself.loaded.objective.load_state_dict(cut)
    found, expected = (one.score_texts(text) for one in (short, by_itself))
    assert [t.log_probability for t in found.tokens] == pytest.approx(
        [t.log_probability for t in expected.tokens], abs=1e-5
    )


def test_gpt_has_no_score_for_a_single_token() -> None:
    (score,) = model("gpt").score_texts(["d4"])
    assert score.tokens == () and score.log_probability == 0


def test_one_text_has_one_score() -> None:
    made = model("bert")
    assert made.score_texts(TEXTS[0]) == made.score_texts(TEXTS[:1])[0]


def test_what_cannot_be_scored_is_refused() -> None:
    made = model("bert")
    with pytest.raises(InputError, match="has no tokens"):
        made.score_texts([" "])
    untrained = Loaded("bert", PRETRAINING, made.loaded.objective, made.loaded.tokenizer, untrained=("mlm",))
    with pytest.raises(ConfigError, match="cannot score texts"):
        Model(untrained, torch.device("cpu")).score_texts(["a1"])


def test_a_pair_is_right_if_the_good_sentence_is_likelier_and_a_tie_is_wrong() -> None:
    made = model("bert")
    better, worse = sorted(("a1 b2", "c3 d4"), key=lambda text: -made.score_texts([text])[0].log_probability)
    pairs = [MinimalPair(better, worse), MinimalPair(worse, better), MinimalPair(better, better)]
    assert [good for _, good in made.prefers_good(pairs)] == [True, False, False]


def test_the_mean_is_over_paradigms_not_over_pairs() -> None:
    pairs = [(MinimalPair("a", "b", "syntax", "one"), True)] * 3 + [(MinimalPair("a", "b", "syntax", "two"), False)]
    found = pair_accuracies(pairs)
    assert found["all"] == {"accuracy": 0.5, "pairs": 4.0}
    assert found["field"] == {"syntax": 0.5}
    assert found["paradigm"] == {"one": 1.0, "two": 0.0}
    # One name used for two fields, and no name.
    found = pair_accuracies(
        [
            (MinimalPair("a", "b", field="x", paradigm="one"), True),
            (MinimalPair("a", "b", field="y", paradigm="one"), False),
            (MinimalPair("a", "b", field="z"), True),
        ]
    )
    assert found["paradigm"] == {"x/one": 1.0, "y/one": 0.0, "z": 1.0}
