"""Predict a stream of records, in order and in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from firth.errors import ConfigError
from firth.folder import Loaded
from firth.inference.outputs import row_outputs
from firth.tasks.items import AT_ONCE, check_items, in_chunks
from firth.tasks.model import TaskModel
from firth.tasks.predictions import Prediction
from firth.tasks.rows import Example, Outputs, RowMaker, unreadable
from firth.tasks.table import TASKS
from firth.text.records import Record

# Runs a model, in PyTorch or another engine: returns the outputs of each example's sequences.
Engine = Callable[[Sequence[Example]], list[Outputs]]


def task_model(loaded: Loaded) -> TaskModel:
    """The task model of a folder; ConfigError if it is not fine-tuned."""
    if not isinstance(loaded.objective, TaskModel):
        raise ConfigError(
            "this model is not fine-tuned for a task: fine-tune it with firth finetune --task TASK --model MODEL "
            "--train FILE --out RUN"
        )
    return loaded.objective


def answer_records(
    loaded: Loaded, records: Sequence[Any], run: Engine | None = None
) -> tuple[list[Any], dict[str, int]]:
    """Predict some records, and count the texts too long for a sequence, by how they were handled.

    ``run``: the engine; None: PyTorch.
    """
    examples, outputs, noted = read_records(loaded, records, run)
    return TASKS[loaded.task].answers(records, examples, outputs, task_model(loaded).config), noted


def read_records(
    loaded: Loaded, records: Sequence[Any], run: Engine | None = None
) -> tuple[list[Example], list[Outputs], dict[str, int]]:
    """Return the sequences of some records and their outputs, ready for decoding; counts as in ``answer_records``."""
    examples, noted = examples_of(loaded, records)
    return examples, row_outputs(task_model(loaded), examples) if run is None else run(examples), noted


def examples_of(loaded: Loaded, records: Sequence[Any]) -> tuple[list[Example], dict[str, int]]:
    """Tokenise some records into sequences; also count long texts, by how they were handled, and unknown ones."""
    model, task = task_model(loaded), TASKS[loaded.task]
    check_items(loaded.task, records)
    layout, letters = loaded.system.layout(loaded.tokenizer), loaded.reads_letters
    maker = RowMaker(loaded.tokenizer, layout, model.config.windows, loaded.max_length, characters=letters)
    examples = task.examples(records, maker, model.config)
    if n_unreadable := unreadable(examples, loaded.tokenizer):
        maker.noted[f"nothing but {loaded.tokenizer.kind.unk}"] += n_unreadable
    return examples, dict(maker.noted)


def answer_stream(
    loaded: Loaded, records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
) -> Iterator[tuple[Record, Prediction]]:
    """Yield each record with its prediction, in order; ``noted`` counts texts too long for a sequence."""
    return in_chunks(partial(answer_records, loaded), records, at_once, noted)
