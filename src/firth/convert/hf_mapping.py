"""How each system maps to transformers: one description per system that transformers has.

Findings are facts that the user should know about a model that was read, each a name and a text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from firth.convert.renames import Rename
from firth.data.batch import Objective
from firth.text.tokenizer import Tokenizer

Findings = list[tuple[str, str]]
StateDict = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class HuggingFace:
    """One of their model types, and how a system is written and read as it.

    For our folders: ``names`` of the pre-trained model's tensors; ``task_names``, the same for fine-tuned models, by
    task, if they have such a head. ``config_to(config, architecture, tokenizer)``, ``task_to(task, options)``: the
    contents of ``config.json``; ``config_from(theirs, where)``: the inverse. ``architecture(task, objective,
    untrained)``: the class that reads all trained parts of the folder.

    For folders published by others: ``todays_names(state, where)`` converts weights of any version to the names of the
    tables and says what was left out; ``check_sizes(config, state, where)`` compares them with ``config.json``;
    ``find_kind(theirs, state, where)``: system, task and options; ``absent_parts(names, ours)``: the optional parts of
    ours that the model lacks.
    """

    model_type: str
    names: tuple[Rename, ...]
    task_names: Mapping[str, tuple[Rename, ...]] = field(default_factory=dict)
    config_to: Callable[[Any, str, Tokenizer], dict[str, Any]]
    task_to: Callable[[str, Any], dict[str, Any]]
    config_from: Callable[[Mapping[str, Any], str], Any]
    architecture: Callable[[str, Objective, Sequence[str]], str]
    todays_names: Callable[[StateDict, str], tuple[dict[str, Tensor], Findings]]
    check_sizes: Callable[[Any, StateDict, str], None]
    find_kind: Callable[[Mapping[str, Any], StateDict, str], tuple[str, str, Any]]
    absent_parts: Callable[[Collection[str], Collection[str]], tuple[str, ...]]
