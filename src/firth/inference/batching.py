"""Group sequences into batches for inference."""

from collections.abc import Iterator, Sequence

from firth.machine import bound_growth


def in_batches(lengths: Sequence[int], budget_tokens: int) -> Iterator[list[int]]:
    """Yield sequence indices in batches of at most ``budget_tokens`` tokens, longest first.

    Sequences of similar length share a batch; one longer than the budget is alone in its batch. Between batches freed
    memory is given back where the process has grown.
    """
    batch, size = list[int](), 0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and size + lengths[number] > budget_tokens:
            yield batch
            bound_growth()
            batch, size = [], 0
        batch.append(number)
        size += lengths[number]
    if batch:
        yield batch
        bound_growth()
