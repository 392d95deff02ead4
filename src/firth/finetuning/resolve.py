"""Resolve a recipe: read recipe, data and model once each, in this order, and check the complete recipe."""

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
    plain_recipe,
    preset_settings,
    varied,
    with_defaults,
)
from firth.finetuning.small import SMALL_TAGGER_LENGTH, compares_apart, is_small
from firth.finetuning.unknown import check_known
from firth.recipes import Settings
from firth.systems import SYSTEMS, resolve_model
from firth.tasks.config import AnyNetwork, BiLstmConfig
from firth.tasks.kinds import kind_of_task
from firth.tasks.learnt import reads_pairs
from firth.text.tokenizer import Tokenizer


class Resolved(NamedTuple):
    """A complete recipe with the data and model it names, already read."""

    recipe: Finetune
    base: Base
    labelled: LabelledData


def resolve(data: Mapping[str, Any], settings: Settings, where: str) -> Resolved:
    """Complete a recipe with everything that follows from the labelled data and the model."""
    plain = plain_recipe(data, settings, where)
    wanted = preset_settings(plain, kind_of_task(plain["task"])).get("head", {})
    labelled = read_labelled(plain["task"], data_config(plain, where), plain["head"], wanted.get("scheme", "BIO"))
    plain["model"] = resolve_model(plain["model"])
    base = read_base(plain["model"], str(plain.get("tokenizer", "")), bool(plain.get("from_scratch", False)))
    own = _own_letters(plain["head"]) or _own_letters(wanted)
    if not own and not SYSTEMS[base.system_name].reads_letters(base.config):
        labelled.notes.extend(filter(None, [check_known(labelled.train, base.tokenizer, plain["model"])]))
    if labelled.columns:  # found by content: the model's recipe records them for later files
        plain.setdefault("data", {})["columns"] = labelled.columns
    if is_small(base.config.width, base.has_summary) and labelled.has_pairs:
        if compares_apart(labelled.kind, plain):
            plain["head_preset"] = "towers"
        # A resolved recipe has the preset; note it all the same, so that a resumed run says the same as before.
        if plain.get("head_preset") == "towers":
            labelled.notes.append(
                "the two texts of a pair are read apart, as suits a small encoder that is frozen (head_preset=towers; "
                "--set head.network.kind=linear reads them in one sequence)"
            )
    _check_pairs(plain["head"], labelled)
    plain["head"] = labelled.options | plain["head"]
    plain = with_defaults(
        plain,
        base.system_name,
        labelled.kind,
        base.config.width,
        n_train=len(labelled.train),
        documents=labelled.has_documents,
        pairs=labelled.has_pairs,
        has_summary=base.has_summary,
        pretrained=base.weights is not None and {"pooler"}.issuperset(base.untrained),
        n_layers=getattr(base.config, "n_layers", 0),
    )
    plain = {"kind": labelled.kind, "metric": labelled.metrics[0]} | plain
    check_metric(labelled, plain["metric"], plain["head"].get("labels", ()))
    _read_as_trained(plain, base, labelled)
    if plain["train"].get("balance"):
        weights = balanced(labelled, plain["head"]["labels"]) if labelled.kind == "classify" else None
        # A resolved recipe already holds the class weights that train.balance computes.
        if weights is None or plain["head"].setdefault("class_weights", weights) != weights:
            raise ConfigError(f"{where}: train.balance requires --task classify, without head.class_weights")
    recipe = build(plain, where)
    if recipe.kind != labelled.kind:
        raise ConfigError(f"{where}: kind={recipe.kind!r}, but task {recipe.task!r} is of kind {labelled.kind!r}")
    if base.learnt_head(recipe):
        labelled.notes.append(
            f"training continues with the head of {recipe.model}: its task, labels and network are the same"
        )
    elif told := base.other_scale(recipe):
        labelled.notes.append(told)
    for settings in combinations(recipe.grid):
        check_own(varied(recipe, settings).head.network, base.system_name, base.tokenizer)
    return Resolved(recipe, base, labelled)


def _check_pairs(head: Mapping[str, Any], labelled: LabelledData) -> None:
    """Raise ConfigError for options of pairs where texts are single: they would do nothing."""
    if reads_pairs(labelled.train) is not False:
        return
    for name in ("mark_shared_words", "both_orders"):
        if head.get(name) is True:
            raise ConfigError(f"head.{name}=true is for pairs of texts, but these are single texts: leave it out")


def _read_as_trained(plain: dict[str, Any], base: Base, labelled: LabelledData) -> None:
    """Limit sequences to the length of pre-training unless a length is given: later positions are untrained.

    A small tagger reads documents in shorter sequences.
    """
    longest, why = base.trained_length, "as in pre-training"
    small = is_small(base.config.width, base.has_summary)
    if longest is not None and small and labelled.has_documents and longest > SMALL_TAGGER_LENGTH:
        longest, why = SMALL_TAGGER_LENGTH, "for more updates"
    windows = plain["head"].get("windows", {})
    if longest is None or not isinstance(windows, dict):
        return
    length = windows.get("length") or longest
    # A new table: the existing one may be a head preset's.
    plain["head"]["windows"] = windows | {"length": length}
    # A resolved recipe has the length; note it all the same, so that a resumed run says the same as before.
    if length == longest:
        labelled.notes.append(f"sequences of at most {longest} tokens, {why} (head.windows.length)")


def balanced(labelled: LabelledData, labels: Sequence[str]) -> list[float]:
    """Class weights that balance the K labels with examples: n / (K · n of the label), on average 1 per example."""
    counts = [sum(record.label == label for record in labelled.train) for label in labels]
    n_labels = sum(n > 0 for n in counts)
    return [len(labelled.train) / (n_labels * n) if n else 0.0 for n in counts]


def check_own(network: AnyNetwork, system_name: str, tokenizer: Tokenizer) -> None:
    """Check that the model's tokens provide what the head's own embeddings read; else ConfigError."""
    if not isinstance(network, BiLstmConfig):
        return
    if network.own_characters != "none" and not SYSTEMS[system_name].characters:
        known = ", ".join(name for name, row in SYSTEMS.items() if row.characters)
        raise ConfigError(
            f"head.network.own_characters={network.own_characters!r}: tokens of {system_name} have no "
            f"characters; set it to none, or use a model that reads whole words ({known})"
        )
    if network.own_words and tokenizer.size <= len(tokenizer.special_ids):
        raise ConfigError(
            f"head.network.own_words={network.own_words}: the model has no vocabulary, so all words would share one "
            "vector; add one with firth convert MODEL --vocab FILE --out DIR, or set it to 0"
        )


def _own_letters(head: Mapping[str, Any]) -> bool:
    """Whether a head reads the characters of words, whatever the encoder does."""
    network = head.get("network", {})
    return isinstance(network, Mapping) and network.get("own_characters", "none") != "none"
