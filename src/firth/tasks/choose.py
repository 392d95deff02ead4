"""Multiple choice: each choice is a sequence with one score; a softmax over the choices.

Source: Devlin et al. 2018, §4.4 (specification of tasks §5).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.batch import Batch, Step
from firth.errors import InputError
from firth.layers.mixing import log_totals
from firth.metrics.calibration import softmax
from firth.packed import Carry, Encoder, Hidden
from firth.tasks.config import ChooseConfig
from firth.tasks.model import TaskModel, merge_rows
from firth.tasks.predictions import Chosen
from firth.tasks.rows import Example, Outputs, PairText, Row, RowMaker, merge_outputs, target
from firth.text.open_words import in_blocks
from firth.text.records import Choice


class Chooser(TaskModel):
    """Softmax over the scores of each question's choices, however many it has; term ``choice``."""

    unit = "row"

    def __init__(self, encoder: Encoder, config: ChooseConfig):
        super().__init__()
        self.build(encoder, config, 1, {"choice": 1.0})

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, target = self.read(batch.tokens), batch.targets["choice"]
        if self.config.shared_dropout:
            scores = self.logits_of_one_mask(hidden, batch)
        else:
            scores = self.logits(hidden, batch.tokens)
        if batch.rows_per_example is not None:
            scores = merge_rows(scores, batch.rows_per_example, self.config.windows.merge)
        loss, right = choice_loss(scores[:, 0], target.index, target.label)
        return self.step({"choice": loss}, {"choice": right}, hidden, batch)

    def logits_of_one_mask(self, hidden: Hidden, batch: Batch) -> Float[Tensor, "B 1"]:
        """``logits`` with one dropout mask shared by all sequences of a question.

        Source: openai/finetune-transformer-lm train.py, clf: one noise vector for all endings.
        """
        x, begins, windows = self.features(hidden, batch.tokens), batch.targets["choice"].index, batch.rows_per_example
        question = owners(begins, x.shape[0] if windows is None else windows.numel())
        if windows is not None:
            question = question.repeat_interleave(windows.to(x.device), output_size=x.shape[0])
        kept = self.features.dropout(x.new_ones(begins.numel(), x.shape[1]))
        return self.head(x * kept.index_select(0, question)).float()


def owners(begins: Int[Tensor, " E"], n: int) -> Int[Tensor, " C"]:
    """The index of the question that each of ``n`` choices belongs to."""
    ends = torch.cat([begins[1:], begins.new_tensor([n])])
    return torch.arange(begins.numel(), device=begins.device).repeat_interleave(ends - begins, output_size=n)


def choice_loss(
    scores: Float[Tensor, " C"], begins: Int[Tensor, " E"], right: Int[Tensor, " E"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Summed cross-entropy over each question's choices, and how many questions are answered correctly.

    ``begins``: index of each question's first choice among all C; ``right``: the number of the correct one.
    """
    log_total, highest = log_totals(scores, owners(begins, scores.shape[0]), begins.numel())
    chosen = scores.index_select(0, begins + right)
    return (log_total - chosen).sum(), (chosen >= highest).sum()


def choose_examples(records: Sequence[Choice], maker: RowMaker, config: ChooseConfig) -> list[Example]:
    """Build the sequences of each choice: (text, question + choice), or (question, choice) without a text."""
    return [
        example
        for block in in_blocks(records, _n_characters)
        for example in _examples(block, maker, mark=config.mark_shared_words)
    ]


def _n_characters(record: Choice) -> int:
    return len(record.text) + sum(len(record.question) + len(choice) for choice in record.choices)


def _examples(records: Sequence[Choice], maker: RowMaker, *, mark: bool) -> list[Example]:
    owners_of = [record for record in records for _ in record.choices]
    pairs = [_pair(record, choice) for record in records for choice in record.choices]
    texts = maker.pair_texts(pairs, mark=mark)
    made = (_rows(record, a, b, maker) for record, (a, b) in zip(owners_of, texts, strict=True))
    found = []
    for record in records:
        if len(record.choices) < 2:
            place = f"{record.where}: " if record.where else ""  # none for a call in Python
            raise InputError(f"{place}expected at least two choices, found {len(record.choices)}")
        if record.label is not None and not 0 <= record.label < len(record.choices):
            raise InputError(f"{record.where}: label {record.label}: expected 0 to {len(record.choices) - 1}")
        rows = [next(made) for _ in record.choices]
        targets = {} if record.label is None else {"choice": target([0], [np.int64(record.label)])}
        found.append(Example(tuple(chain.from_iterable(rows)), tuple(map(len, rows)), targets))
    return found


def _pair(record: Choice, choice: str) -> tuple[str, str]:
    if not record.text:
        return record.question, choice
    return record.text, f"{record.question} {choice}".strip()


def _rows(record: Choice, a: PairText, b: PairText, maker: RowMaker) -> list[Row]:
    if not len(a):
        return maker.single(b.ids)
    room = maker.length - maker.layout.n_special_pair
    most = max(room // 2, room - len(a))
    cut = bool(record.text) and len(b) > most
    if cut:
        # From the question's beginning: without their ends, the choices of a long question would all be equal.
        maker.noted["one text of a pair cut"] += 1
        b = b.part(len(b) - most, len(b))
    rows = maker.pair(a, b, window_first=True)
    return [replace(row, cut=True) for row in rows] if cut else rows


def choose_scores(example: Example, outputs: Outputs, merge: str) -> Float[np.ndarray, " C"]:
    """A score for each choice, merged over its windows."""
    scores = [row["logits"][0] for row in outputs]
    ends = list(accumulate(example.candidates))
    return np.concatenate([merge_outputs(scores[a:b], merge) for a, b in zip([0, *ends], ends, strict=False)])


def choose_answers(
    records: Sequence[Choice], examples: Sequence[Example], outputs: Sequence[Outputs], config: ChooseConfig
) -> list[Chosen]:
    """Pick the choice with the highest score for each question."""
    found = []
    for record, example, rows in zip(records, examples, outputs, strict=True):
        shares = softmax(choose_scores(example, rows, config.windows.merge)[None] / config.temperature)[0]
        best = int(shares.argmax())
        found.append(Chosen(best, record.choices[best], tuple(shares.tolist()), example.windows, example.cut))
    return found
