"""Names of tasks: a kind of task, or a data set of that kind by name."""

import difflib

from firth.errors import ConfigError
from firth.tasks.datasets import DATASETS
from firth.tasks.scoring import METRICS

_PAIRS = "--task classify with two texts, --columns text=0,second=1,label=2"
# Names of tasks in other tools, and how to give the task here.
_TASKS_ELSEWHERE = {
    "ner": "--task tag",
    "named-entity-recognition": "--task tag",
    "pos": "--task tag",
    "token-classification": "--task tag",
    "tagging": "--task tag",
    "sentiment": "--task classify",
    "sentiment-analysis": "--task classify",
    "classification": "--task classify",
    "text-classification": "--task classify",
    "sequence-classification": "--task classify",
    "multi-label": "--task multilabel",
    "regression": "--task regress",
    "sts": "--task regress with two texts, --columns text=0,second=1,label=2",
    "nli": _PAIRS,
    "entailment": _PAIRS,
    "paraphrase": _PAIRS,
    "qa": "--task answer",
    "question-answering": "--task answer",
    "squad": "--task squad1 or squad2, or answer for files of your own",
    "multiple-choice": "--task choose",
}


# Tasks with a familiar name that are another kind with a head preset: (kind, preset).
SHORT_TASKS: dict[str, tuple[str, str]] = {"similarity": ("regress", "towers")}


def kind_of_task(task: str) -> str:
    """The kind of task that a kind, a short name or a data set stands for; ConfigError names the nearest one."""
    if task in SHORT_TASKS:
        return SHORT_TASKS[task][0]
    if task in METRICS:
        return task
    if task in DATASETS:
        return DATASETS[task].kind
    kinds = f"task {task!r} is not known: kinds are {', '.join(METRICS)}"
    if (known := _TASKS_ELSEWHERE.get(task.lower().replace("_", "-"))) is not None:
        raise ConfigError(f"{kinds}; what is called {task} elsewhere is {known}")
    near = difflib.get_close_matches(task, [*METRICS, *DATASETS], n=1)
    # One name for each family of data sets: xnli, not xnli/ar to xnli/zh.
    families = dict.fromkeys(name.partition("/")[0] for name in DATASETS)
    hint = f"did you mean {near[0]!r}?" if near else f"data sets: {', '.join(families)}"
    raise ConfigError(f"{kinds}; {hint}")


def metrics_of(task: str) -> tuple[str, ...]:
    """The metrics of a task; the first one selects models."""
    return DATASETS[task].metrics if task in DATASETS else METRICS[kind_of_task(task)]
