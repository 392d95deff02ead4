"""The two streams of a bidirectional language model, compared with a plain version of the published generator."""

import numpy as np
import pytest
import torch

from firth.data.both_ways import BothWaysBatches
from firth.data.shards import Shard
from firth.text.layouts import Layout

BEGIN, END = 1, 3
LAYOUT = Layout((BEGIN,), (END, BEGIN), (END,), has_segments=False)
SENTENCES = [[10, 11, 12], [13], [14, 15, 16, 17], [18, 19], [20, 21, 22, 23, 24]]
CHARS = np.arange(25 * 3, dtype=np.uint16).reshape(25, 3)


def shard(sentences: list[list[int]] = SENTENCES) -> Shard:
    ids = np.array([word for sentence in sentences for word in sentence], np.uint16)
    bounds = np.cumsum([0, *map(len, sentences)])
    return Shard("s", ids, bounds, np.array([0, len(sentences)]))


def batches(length: int = 4, budget_tokens: int = 8, slots: int = 1, seed: int | None = None) -> BothWaysBatches:
    return BothWaysBatches.cut(
        shard(), LAYOUT, length=length, budget_tokens=budget_tokens, slots=slots, chars=CHARS, seed=seed
    )


def published(backward: bool) -> tuple[list[int], list[int]]:
    """bilm-tf data.py, _get_batch, for one sequence: its inputs and targets."""
    seen, answers = [], []
    for sentence in SENTENCES:
        whole = [END, *reversed(sentence), BEGIN] if backward else [BEGIN, *sentence, END]
        seen += whole[:-1]
        answers += whole[1:]
    return seen, answers


def test_one_row_is_the_published_stream() -> None:
    made = batches()
    for side, term, backward in (("tokens", "forward", False), ("second", "backward", True)):
        seen = [i for number in range(len(made)) for i in getattr(made[number], side).ids.tolist()]
        answers = [i for number in range(len(made)) for i in made[number].targets[term].label.tolist()]
        assert (seen, answers) == published(backward)
    assert [made[n].tokens.rows.n_tokens for n in range(len(made))] == [4, 4, 4, 4, 4]


def test_every_token_has_an_answer_and_its_characters() -> None:
    batch = batches()[1]
    assert batch.second is not None
    for tokens, term in ((batch.tokens, "forward"), (batch.second, "backward")):
        assert batch.targets[term].index.tolist() == list(range(tokens.rows.n_tokens))
        assert tokens.chars is not None and tokens.chars.dtype == torch.int32
        assert torch.equal(tokens.chars, torch.from_numpy(CHARS.astype(np.int32))[tokens.ids])
    assert batch.counts() == {"forward": 4, "backward": 4}


@pytest.mark.parametrize(("slots", "budget"), [(1, 16), (2, 8), (2, 16), (3, 1000)])
def test_columns_go_on_from_batch_to_batch(slots: int, budget: int) -> None:
    made, (seen, _) = batches(4, budget, slots), published(False)
    n_rows = made[0].tokens.rows.n_rows
    size = len(seen) // (slots * n_rows)
    assert 2 * 4 * n_rows <= max(budget, 8)
    for slot in range(slots):
        mine = [made[number] for number in range(slot, len(made), slots)]
        assert [batch.starts_stream for batch in mine] == [True] + [False] * (len(mine) - 1)
        for row in range(n_rows):
            found = [i for batch in mine for i in batch.tokens.ids.unflatten(0, (n_rows, -1))[row].tolist()]
            begin = (slot * n_rows + row) * size
            assert found == seen[begin : begin + size]


def test_a_shard_without_text_has_no_batches() -> None:
    assert len(BothWaysBatches.cut(shard([]), LAYOUT, length=4, budget_tokens=8, slots=1, chars=CHARS, seed=None)) == 0


def test_a_seed_gives_the_sentences_another_order_in_both_streams() -> None:
    def sentences(side: str, seed: int | None) -> list[list[int]]:
        made = batches(seed=seed)
        ids = [i for number in range(len(made)) for i in getattr(made[number], side).ids.tolist()]
        found: list[list[int]] = []
        for i in ids:
            if i in (BEGIN, END):
                found.append([])
            else:
                found[-1].append(i)
        return found

    assert sentences("tokens", None) == SENTENCES
    orders = [sentences("tokens", seed) for seed in range(8)]
    assert all(sorted(order) == sorted(SENTENCES) for order in orders)
    assert len({str(order) for order in orders}) > 3 and orders[3] == sentences("tokens", 3)
    assert [order[::-1] for order in sentences("second", 3)] == orders[3]


def test_state_may_begin_anew_after_some_windows() -> None:
    made = BothWaysBatches.cut(
        shard(), LAYOUT, length=4, budget_tokens=8, slots=1, chars=CHARS, seed=None, restart_every=2
    )
    assert [made[number].starts_stream for number in range(len(made))] == [True, False, True, False, True]
