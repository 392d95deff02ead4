"""Recurrent state in checkpoints."""

import pytest
import torch

from firth.packed import Carry
from firth.training.carries import by_slot, carries_of_rank, plain_carries


def carry(value: int) -> Carry:
    return {"h": torch.tensor([value]), "c/0": torch.tensor([-value])}


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_any_number_of_processes_takes_up_what_two_wrote(size: int) -> None:
    # Slot s is micro-batch s // 2 of rank s % 2.
    written = [{number: carry(10 + 2 * number + rank) for number in range(3)} for rank in range(2)]
    tensors = by_slot(plain_carries(one) for one in written)
    for rank in range(size):
        for number, found in carries_of_rank(tensors, rank, size).items():
            expected = 10 + number * size + rank
            assert (found["h"].item(), found["c/0"].item()) == (expected, -expected)
    assert sum(len(carries_of_rank(tensors, rank, size)) for rank in range(size)) == 6


@pytest.mark.parametrize("key", ["h", "x/h", "-1/h"])
def test_a_tensor_of_no_slot_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="expected <micro-batch>/<name>"):
        carries_of_rank({key: torch.zeros(1)}, 0, 1)
