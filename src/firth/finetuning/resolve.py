"""The recipe, then the data, then the model: each is read once, in this order, and the complete recipe is checked."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from firth.errors import ConfigError
from firth.finetuning.base import Base, read_base
from firth.finetuning.labelled import LabelledData, check_metric, read_labelled
from firth.finetuning.recipe import (
    Finetune,
    build,
    combinations,
    data_config,
    design_settings,
    plain_recipe,
    varied,
    with_defaults,
)
from firth.finetuning.unknown import check_known
from firth.recipes import Settings
from firth.systems import SYSTEMS, kind_of_task, resolve_model
from firth.tasks.config import AnyNetwork, BiLstmConfig
from firth.text.tokenizer import Tokenizer


class Resolved(NamedTuple):
    """A complete recipe, and what it names: read once, and passed on."""

    recipe: Finetune
    base: Base
    labelled: LabelledData


def resolve(data: Mapping[str, Any], settings: Settings, where: str) -> Resolved:
    """A recipe with all that follows from the labelled data and the model filled in."""
    plain = plain_recipe(data, settings, where)
    wanted = design_settings(plain, kind_of_task(plain["task"])).get("head", {})
    labelled = read_labelled(plain["task"], data_config(plain, where), plain["head"], wanted.get("scheme", "BIO"))
    plain["model"] = resolve_model(plain["model"])
    base = read_base(plain["model"], str(plain.get("tokenizer", "")), bool(plain.get("from_scratch", False)))
    if not SYSTEMS[base.system_name].characters:
        labelled.notes.extend(filter(None, [check_known(labelled.train, base.tokenizer, plain["model"])]))
    if labelled.columns:  # found by content: the model's recipe has them for later files
        plain.setdefault("data", {})["columns"] = labelled.columns
    documents = labelled.kind == "tag" and any(record.group for record in labelled.train)
    plain["head"] = labelled.options | plain["head"]
    plain = with_defaults(
        plain, base.system_name, labelled.kind, base.config.width, documents=documents, has_summary=base.has_summary
    )
    plain = {"kind": labelled.kind, "metric": labelled.metrics[0]} | plain
    check_metric(labelled, plain["metric"], plain["head"].get("labels", ()))
    _read_as_trained(plain["head"], base, labelled.notes)
    if plain["train"].get("balance"):
        weights = balanced(labelled, plain["head"]["labels"]) if labelled.kind == "classify" else None
        # A resolved recipe has the weights that balance its labels.
        if weights is None or plain["head"].setdefault("class_weights", weights) != weights:
            raise ConfigError(f"{where}: train.balance is for --task classify, without other head.class_weights")
    recipe = build(plain, where)
    if recipe.kind != labelled.kind:
        raise ConfigError(f"{where}: kind={recipe.kind!r}, but task {recipe.task!r} is of kind {labelled.kind!r}")
    for settings in combinations(recipe.grid):
        check_own(varied(recipe, settings).head.network, base.system_name, base.tokenizer)
    return Resolved(recipe, base, labelled)


def _read_as_trained(head: dict[str, Any], base: Base, notes: list[str]) -> None:
    """Rows no longer than those of pre-training, unless a length is given: positions beyond them know nothing."""
    longest = base.trained_length
    windows = head.setdefault("windows", {})
    if longest is None or not isinstance(windows, dict):
        return
    windows["length"] = windows.get("length") or longest
    # Said of a resolved recipe too, which has it: a run that goes on says what it said before.
    if windows["length"] == longest:
        notes.append(f"rows of at most {longest} tokens, as in pre-training (head.windows.length)")


def balanced(labelled: LabelledData, labels: Sequence[str]) -> list[float]:
    """Weights that make all labels count alike: n / (K · n of the label)."""
    counts = [sum(record.label == label for record in labelled.train) for label in labels]
    return [len(labelled.train) / (len(labels) * n) if n else 0.0 for n in counts]


def check_own(network: AnyNetwork, system_name: str, tokenizer: Tokenizer) -> None:
    """ConfigError for words or characters of the head's own that the model's tokens do not come with."""
    if not isinstance(network, BiLstmConfig):
        return
    if network.own_characters != "none" and not SYSTEMS[system_name].characters:
        known = ", ".join(name for name, row in SYSTEMS.items() if row.characters)
        raise ConfigError(
            f"head.network.own_characters={network.own_characters!r}: tokens of {system_name} come without "
            f"characters; set it to none, or take a model that reads whole words ({known})"
        )
    if network.own_words and tokenizer.size <= len(tokenizer.special_ids):
        raise ConfigError(
            f"head.network.own_words={network.own_words}: the model has no vocabulary, so that all words would be "
            "one; give it one with firth convert MODEL --vocab FILE --out DIR, or set it to 0"
        )
