"""Group texts into blocks and sequences into batches for inference."""

from collections.abc import Iterable, Iterator, Sequence

from firth.machine import bound_growth
from firth.text.tokenizer import whole_text


def in_blocks(texts: Iterable[str], most_texts: int, most_characters: int) -> Iterator[list[str]]:
    """Yield texts in blocks that are complete with one of the two numbers: a line may be as long as a book."""
    block, n_characters = list[str](), 0
    for text in texts:
        block.append(text)
        n_characters += len(whole_text(text))
        if n_characters >= most_characters or len(block) >= most_texts:
            yield block
            block, n_characters = [], 0
    if block:
        yield block


def in_batches(lengths: Sequence[int], budget_tokens: int) -> Iterator[list[int]]:
    """Yield sequence indices in batches of at most ``budget_tokens`` tokens, longest first.

    Sequences of similar length share a batch; one longer than the budget gets a batch of its own. Batches are about
    equally large: full batches and a smaller last one would need kernels for every size of the last, and the heap
    memory that these take leaves gaps. Between batches freed memory is returned if the process has grown.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    n_full = sum(1 for _ in _cut(order, lengths, budget_tokens, 1))
    for batch in _cut(order, lengths, budget_tokens, n_full):
        yield batch
        bound_growth()


def _cut(order: Sequence[int], lengths: Sequence[int], budget: int, n_batches: int) -> Iterator[list[int]]:
    """Split ``order`` into about ``n_batches`` equal batches, or more if the budget requires it."""
    left = sum(lengths)
    batch, size = list[int](), 0
    for number in order:
        length = lengths[number]
        if batch and (size + length > budget or size + length / 2 > left / max(n_batches, 1)):
            yield batch
            left, n_batches = left - size, n_batches - 1
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch
