"""The table of tasks: each one's head, and how its records become sequences, outputs answers, and answers scores.

To add a task, write its modules in this folder and add a row; every contract test then runs over it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firth.packed import Encoder
from firth.tasks.answer import Answerer, answer_answers, answer_examples
from firth.tasks.breakdown import (
    Breakdown,
    break_down_answers,
    break_down_choices,
    break_down_label_sets,
    break_down_labels,
    break_down_tags,
    break_down_values,
)
from firth.tasks.choose import Chooser, choose_answers, choose_examples
from firth.tasks.classify import (
    Classifier,
    MultiLabelClassifier,
    Regressor,
    classify_answers,
    classify_decisions,
    classify_examples,
    multilabel_answers,
    multilabel_examples,
    regress_answers,
    regress_examples,
)
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, Outputs, RowMaker
from firth.tasks.scoring import (
    score_answers,
    score_choices,
    score_label_sets,
    score_labels,
    score_tags,
    score_values,
)
from firth.tasks.tag import Tagger, tag_answers, tag_examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One row of the table of tasks: what a model folder may hold besides a system's own objective.

    ``examples(records, maker, config)`` turns records into sequences and targets; ``answers(records, examples, outputs,
    config)`` turns the outputs of their sequences into predictions, and ``decide``, with the same arguments, into what
    scores read of them; ``score(records, answers, labels)`` compares them, and ``break_down``, with the same arguments,
    shows what one score hides.
    """

    config: type[Any]
    model: Callable[[Encoder, Any], TaskModel]
    examples: Callable[[Any, RowMaker, Any], list[Example]]
    answers: Callable[[Any, Sequence[Example], Sequence[Outputs], Any], list[Any]]
    decide: Callable[[Any, Sequence[Example], Sequence[Outputs], Any], list[Any]]
    score: Callable[[Any, Any, Sequence[str]], dict[str, float]]
    break_down: Callable[[Any, Any, Sequence[str]], Breakdown]


TASKS: dict[str, Task] = {
    "classify": Task(
        config=ClassifyConfig, model=Classifier,
        examples=classify_examples, answers=classify_answers, decide=classify_decisions, score=score_labels,
        break_down=break_down_labels,
    ),
    "multilabel": Task(
        config=MultiLabelConfig, model=MultiLabelClassifier,
        examples=multilabel_examples, answers=multilabel_answers, decide=multilabel_answers, score=score_label_sets,
        break_down=break_down_label_sets,
    ),
    "regress": Task(
        config=RegressConfig, model=Regressor,
        examples=regress_examples, answers=regress_answers, decide=regress_answers, score=score_values,
        break_down=break_down_values,
    ),
    "tag": Task(
        config=TagConfig, model=Tagger,
        examples=tag_examples, answers=tag_answers, decide=tag_answers, score=score_tags,
        break_down=break_down_tags,
    ),
    "answer": Task(
        config=AnswerConfig, model=Answerer,
        examples=answer_examples, answers=answer_answers, decide=answer_answers, score=score_answers,
        break_down=break_down_answers,
    ),
    "choose": Task(
        config=ChooseConfig, model=Chooser,
        examples=choose_examples, answers=choose_answers, decide=choose_answers, score=score_choices,
        break_down=break_down_choices,
    ),
}  # fmt: skip
