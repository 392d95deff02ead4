"""Sequence layouts: where special tokens go for one text or a pair."""

from collections.abc import Sequence
from dataclasses import dataclass

from firth.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Layout:
    """``first A last`` for one text, ``first A between B last`` for a pair; segments 0 … 0 1 … 1.

    The second segment starts after ``between``. ``has_segments``: whether the system reads them.
    """

    first: tuple[int, ...]
    between: tuple[int, ...]
    last: tuple[int, ...]
    has_segments: bool

    @property
    def n_special(self) -> int:
        """Number of special tokens around one text."""
        return len(self.first) + len(self.last)

    @property
    def n_special_pair(self) -> int:
        """Number of special tokens around a pair."""
        return self.n_special + len(self.between)

    def single(self, ids: Sequence[int]) -> list[int]:
        """The sequence of one text."""
        return [*self.first, *ids, *self.last]

    def pair(self, a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[int]]:
        """The sequence of a pair, and its segments."""
        front = [*self.first, *a, *self.between]
        return [*front, *b, *self.last], [0] * len(front) + [1] * (len(b) + len(self.last))

    def begin_of_second(self, n_first: int) -> int:
        """The index of the second text's first token when the first text has ``n_first`` tokens."""
        return len(self.first) + n_first + len(self.between)


def bert_layout(tokenizer: Tokenizer) -> Layout:
    """``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]`` (Devlin et al. 2018, §3)."""
    return Layout((tokenizer.start_id,), (tokenizer.between_id,), (tokenizer.end_id,), has_segments=True)


def gpt_layout(tokenizer: Tokenizer) -> Layout:
    """``start A end`` and ``start A between B end``, without segments (Radford et al. 2018, §3.3)."""
    return Layout((tokenizer.start_id,), (tokenizer.between_id,), (tokenizer.end_id,), has_segments=False)


def source_layout(tokenizer: Tokenizer) -> Layout:
    """``A end`` and ``A between B end``: input of the Transformer's encoder, and documents of a stream."""
    return Layout((), (tokenizer.between_id,), (tokenizer.end_id,), has_segments=False)


def target_layout(tokenizer: Tokenizer) -> Layout:
    """``start B``: input of the Transformer's decoder, which predicts ``B end``."""
    return Layout((tokenizer.start_id,), (), (), has_segments=False)


def begun_layout(tokenizer: Tokenizer) -> Layout:
    """``start A`` and ``start A between B``: input of AWD-LSTM, for texts and streams (specification §4)."""
    return Layout((tokenizer.start_id,), (tokenizer.between_id,), (), has_segments=False)


def sentence_layout(tokenizer: Tokenizer) -> Layout:
    """``start A end`` and ``start A end start B end``: input of ELMo, each sentence between its marks."""
    start, end = tokenizer.start_id, tokenizer.end_id
    return Layout((start,), (end, start), (end,), has_segments=False)


def bare_layout(tokenizer: Tokenizer) -> Layout:
    """``A``, and ``A B``: no special tokens (GPT's pre-training, Radford et al. 2018, §4.1)."""
    return Layout((), (), (), has_segments=False)
