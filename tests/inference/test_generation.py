"""Generation: the cache gives the same results as rereading everything, and unsupported requests are refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_language_models import tiny_language_model
from torch import nn

from firth.errors import CheckpointError, ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, Loaded, write_model
from firth.inference.decoding import beam_search
from firth.inference.generation import How, NextTokenModel, Writing, generate_stream
from firth.inference.model import Model, load_model
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM
from firth.packed import Rows, Tokens
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *(f"{c}{i}" for c in "abcdef" for i in range(6)), "##s"]
SIZES = GptConfig(vocab_size=len(PIECES), width=32, n_layers=3, n_heads=4, max_positions=40)
TEXTS = ["a1 b2", "c3", "d1 e1 f1 a1 b1 c1", "c3"]


def objective() -> TiedLM:
    torch.manual_seed(0)
    made = TiedLM(Gpt(SIZES), TiedLMConfig()).eval()
    for name, parameter in made.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm.weight" in name else 0.0, std=0.3)
    return made


def model() -> Model:
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    return Model(Loaded("gpt", PRETRAINING, objective(), tokenizer), torch.device("cpu"))


def log_probs(made: TiedLM, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of the token after all of ``ids``, computed without a cache."""
    top = made.encoder(Tokens(Rows.from_lengths([len(ids)]), torch.tensor(ids))).top
    return made.logits(top[-1:]).log_softmax(1)[0]


@torch.inference_mode()
def test_the_cache_gives_what_reading_all_again_gives() -> None:
    made = objective()
    writer = NextTokenModel(made, Tokenizer.from_vocab(PIECES, lowercase=True), [0, 1], torch.device("cpu"))
    rows = [[7, 8, 9], [10], [11, 12, 13, 14, 15, 16]]
    state, last = writer.begin(rows)
    texts = [list(row) for row in rows]
    for step in range(20):
        found, state = writer.advance(last, state)
        for row, text in zip(found, texts, strict=True):
            expected = log_probs(made, text)
            assert bool((row[:2] == -torch.inf).all())
            torch.testing.assert_close(row[2:], expected[2:], rtol=0, atol=1e-5)
        if step == 9:
            # Sequences change places; one is taken twice.
            chosen = torch.tensor([2, 0, 2])
            found, state, texts = found[chosen], state.select(chosen), [list(texts[i]) for i in chosen]
        last = found.argmax(1)
        for text, piece in zip(texts, last.tolist(), strict=True):
            text.append(piece)


@torch.inference_mode()
def test_greedy_and_beam_search_equal_searches_without_a_cache() -> None:
    used = model()
    made = used.loaded.objective
    special = torch.tensor(used.loaded.tokenizer.special_ids)

    class Anew:
        """All tokens so far, read from the start at each step."""

        def __init__(self, rows: list[list[int]]):
            self.rows = rows

        def select(self, chosen: torch.Tensor) -> "Anew":
            return Anew([self.rows[i] for i in chosen.tolist()])

    def advance(ids: torch.Tensor, state: Anew) -> tuple[torch.Tensor, Anew]:
        rows = [[*row, i] for row, i in zip(state.rows, ids.tolist(), strict=True)]
        found = torch.stack([log_probs(made, row) for row in rows])
        return found.index_fill(1, special, -torch.inf), Anew(rows)

    for text in TEXTS:
        ids = used.loaded.tokenizer.encode(text).ids
        for beam, asked in ((1, {"how": "greedy"}), (3, {"how": "beam", "beam": 3})):
            found = used.generate(text, **asked, max_new_tokens=12)  # type: ignore[arg-type]
            start, last = Anew([ids[:-1]]), torch.tensor(ids[-1:])
            ((best, *_),) = beam_search(advance, start, last, end_id=None, beam=beam, length_penalty=0.0, most=[12])
            assert found.tokens == [PIECES[i] for i in best.ids]
            assert found.log_prob == pytest.approx(best.log_prob, abs=1e-4)


@torch.inference_mode()
def test_the_log_probability_is_the_model_s() -> None:
    used = model()
    found = used.generate("a1 b2", max_new_tokens=8, seed=3, temperature=0.7, top_k=10)
    ids, total = used.loaded.tokenizer.encode("a1 b2").ids, 0.0
    for piece in found.tokens:
        number = PIECES.index(piece)
        total += float(log_probs(used.loaded.objective, ids)[number])
        ids.append(number)
    assert found.log_prob == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("how", ["sample", "greedy", "beam"])
@pytest.mark.parametrize("budget", [4096, 1])
def test_what_goes_through_the_model_together_does_not_matter(how: str, budget: int) -> None:
    used, seed = model(), 5 if how == "sample" else 0
    together = used.generate(TEXTS, how=how, max_new_tokens=9, seed=seed)
    parts = generate_stream(
        used.loaded,
        TEXTS,
        Writing(how=how, max_new_tokens=9, seed=seed),
        device=used.device,
        budget_tokens=budget,
        at_once=2,
    )
    for a, b in zip(together, parts, strict=True):
        assert (a.prompt, a.text, a.tokens) == (b.prompt, b.text, b.tokens)
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)
    assert (together[1].tokens == together[3].tokens) is (how != "sample"), "the same prompt twice: two draws"


def test_a_seed_is_a_text() -> None:
    used = model()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = used.generate("a1", seed=1, max_new_tokens=30)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert used.generate("a1", seed=1, max_new_tokens=30) == one
    assert used.generate("a1", seed=2, max_new_tokens=30) != one
    assert len(one.tokens) == 30


def test_text_is_what_is_new() -> None:
    used = model()
    found = used.generate("A1  b2", how="greedy", max_new_tokens=4)
    tokenizer = used.loaded.tokenizer
    ids = tokenizer.encode("A1  b2").ids + [PIECES.index(piece) for piece in found.tokens]
    assert tokenizer.decode(ids) == "a1 b2" + found.text
    assert found.prompt == "A1  b2" and len(found.tokens) == 4
    assert not set(found.tokens) & set(SPECIALS)


def test_a_blank_stands_behind_a_prompt_that_is_unknown() -> None:
    """The tokenizer does not report unknown words, so a new word follows the prompt as given."""
    used = model()
    for name in ("gpt", "lstm"):
        made = tiny_language_model(name)
        assert made.generate("zzz", max_new_tokens=3, how="greedy").text.startswith(" ")
    found = used.generate("zzz", max_new_tokens=4, seed=3)
    assert found.text.startswith(" ") and not found.text.startswith(" ##")


def test_lists_and_streams() -> None:
    used = model()
    assert used.generate([]) == []
    stream = used.generate_stream(iter(TEXTS), Writing(max_new_tokens=3))
    assert next(stream).prompt == TEXTS[0]
    assert [found.prompt for found in stream] == TEXTS[1:]


def test_a_text_that_would_be_too_long() -> None:
    used = model()
    assert len(used.generate("a1 b2", max_new_tokens=38).tokens) == 38
    with pytest.raises(LengthError, match="has 2 tokens; 39 more exceed the .* maximum of 40"):
        used.generate("a1 b2", max_new_tokens=39)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_text_without_pieces(text: str) -> None:
    with pytest.raises(InputError, match="has no tokens: generation needs a prompt"):
        model().generate(text)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"how": "loud"}, "how='loud': expected one of sample, greedy, beam"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"beam": 0}, "beam=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"how": "greedy", "temperature": 5.0}, "temperature=5.0 is for how='sample', and how='greedy': leave one out"),
        ({"how": "sample", "beam": 2}, "beam=2 is for how='beam', and how='sample'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model().generate("a1", **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("how", ["sample", "greedy", "beam"])
def test_a_model_with_damaged_weights_says_so(how: How) -> None:
    damaged = model()
    next(damaged.loaded.objective.encoder.parameters()).data[8] = torch.nan
    with pytest.raises(CheckpointError, match="not finite numbers: its weights are damaged"):
        damaged.generate(TEXTS[0], how=how, max_new_tokens=3)
    with pytest.raises(CheckpointError, match="not finite numbers: its weights are damaged"):
        damaged.next_tokens(TEXTS[0])


def test_models_that_do_not_go_on_with_a_text(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="a model of system bert for pretraining does not predict the next token"):
        load_model(tiny_run).generate("the old")


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_fewer_bits_write_too(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: True)
    used = model()
    write_model(tmp_path, "gpt", PRETRAINING, used.loaded.objective, used.loaded.tokenizer, {})
    if precision == "int8":
        from firth.inference.fast import make_fast

        used.loaded.objective.encoder, _ = make_fast(used.loaded.objective.encoder, "int8", used.device)
    else:
        used = load_model(tmp_path, device="cpu", precision="bfloat16")
    exact = load_model(tmp_path, device="cpu").generate("a1 b2", how="greedy", max_new_tokens=1)
    found = used.generate("a1 b2", how="greedy", max_new_tokens=5)
    assert len(found.tokens) == 5 and found.log_prob < 0
    assert used.generate("a1 b2", how="greedy", max_new_tokens=1).log_prob == pytest.approx(exact.log_prob, abs=0.3)


def test_a_folder_writes_as_the_model_in_memory(tmp_path: Path) -> None:
    used = model()
    write_model(tmp_path, "gpt", PRETRAINING, used.loaded.objective, used.loaded.tokenizer, {})
    found = load_model(tmp_path, device="cpu").generate(TEXTS, how="beam", max_new_tokens=10)
    for a, b in zip(found, used.generate(TEXTS, how="beam", max_new_tokens=10), strict=True):
        assert a.tokens == b.tokens and a.log_prob == pytest.approx(b.log_prob, abs=1e-4)
