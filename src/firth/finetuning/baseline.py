"""``firth finetune --model tfidf`` and ``commonest-tag``: fit a baseline to labelled examples, as a model folder.

A pre-trained model has to beat the baseline, so it is tuned as carefully: n-grams and regularisation are chosen on
held-out training examples, then it is fitted to all of them; the dev file is scored once.

out/
├── recipe.toml      resolved
├── model/           for firth.load and firth predict, without torch
├── results.json     same format as any fine-tuning
└── report.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from firth.baseline.config import CommonestTagConfig, GramConfig
from firth.baseline.fit import GRAMS, STRENGTHS, FittedTfidf, Tried, fit_tfidf, targets_of, weightiest
from firth.baseline.folder import WEIGHTS, write_baseline
from firth.baseline.model import BASELINES, Baseline, Method
from firth.baseline.tags import fit_commonest_tag
from firth.baseline.tfidf import Tfidf, answers_of
from firth.config import from_dict, option, override, required, to_dict, to_toml
from firth.errors import ConfigError, FirthError
from firth.files import make_folder, new_folder, write_json, write_text
from firth.finetuning.baseline_report import write_baseline_report
from firth.finetuning.calibrate import tempered
from firth.finetuning.finetune import Finetuned
from firth.finetuning.labelled import LabelledData, check_metric, read_labelled
from firth.finetuning.recipe import NEEDED, LabelledConfig, data_config
from firth.finetuning.results import RESULTS, summary
from firth.inference.score import Scored, score_outputs, score_records
from firth.manifest import file_sha256
from firth.option_names import FOREIGN_FINETUNING_KEYS
from firth.pretraining.run import RECIPE
from firth.progress import say
from firth.recipes import Settings, check_recipe
from firth.tasks.kinds import kind_of_task
from firth.tasks.learnt import reads_pairs

_KINDS: dict[str, tuple[str, ...]] = {"tfidf": ("classify", "multilabel", "regress"), "commonest-tag": ("tag",)}
# n-grams shown per label in the report.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class FitBaseline:
    """The options of a baseline."""

    model: Literal["tfidf", "commonest-tag"] = required("tfidf (classify, multilabel, regress) or commonest-tag (tag)")
    task: str = required("a kind (classify, multilabel, regress, tag) or a data set (glue/sst2)")
    kind: str = required("the kind of task; follows from the task")
    metric: str = required("metric for model selection; follows from the task")
    data: LabelledConfig = option(LabelledConfig(), "labelled examples")
    strengths: tuple[float, ...] = option(
        (),
        "tfidf: values to try for C of the logistic regression, or 1/alpha of the ridge regression; empty: defaults "
        "of the kind of task",
    )

    def __post_init__(self) -> None:
        if any(not 0 < strength < float("inf") for strength in self.strengths):
            raise ConfigError(f"strengths={list(self.strengths)}: expected numbers above 0")


class ResolvedBaseline(NamedTuple):
    """A complete recipe and the labelled data it names."""

    recipe: FitBaseline
    labelled: LabelledData


def names_baseline(data: Mapping[str, Any], settings: Settings) -> bool:
    """Whether a recipe's model is a baseline, not an encoder."""
    return str(override(dict(data), settings).get("model")) in BASELINES


def resolve_baseline(data: Mapping[str, Any], settings: Settings, where: str) -> ResolvedBaseline:
    """Complete a recipe with everything that follows from the labelled data."""
    plain = override(dict(data), settings)
    name = plain["model"]
    neural = sorted(
        plain.keys() & {"head", "adapt", "optim", "train", "grid", "head_preset", "tokenizer", "from_scratch"}
    )
    if neural:
        train = plain["train"] if neural == ["train"] and isinstance(plain["train"], Mapping) else {}
        named = ", ".join([f"train.{key}" for key in train] or neural)
        raise ConfigError(f"{where}: a baseline is not trained in steps: leave out {named}, or give another --model")
    plain = check_recipe(
        FitBaseline, plain, {}, where, tables=("data",), needed=NEEDED, foreign=FOREIGN_FINETUNING_KEYS
    )
    kind = kind_of_task(plain["task"])
    if kind not in _KINDS[name]:
        others = [other for other, kinds in _KINDS.items() if kind in kinds]
        advice = f"give --model {others[0]}" if others else "there is no baseline for it"
        raise ConfigError(f"--model {name} is for {', '.join(_KINDS[name])}; task {plain['task']} is {kind}: {advice}")
    config = data_config(plain, where)
    if config.choose_on == "dev":
        raise ConfigError("data.choose_on=dev: a baseline is tuned on training examples only: leave it out")
    labelled = read_labelled(plain["task"], config, {})
    if labelled.columns:  # found by content: the model's recipe records them for later files
        plain["data"]["columns"] = labelled.columns
    plain = {"kind": kind, "metric": labelled.metrics[0]} | plain
    recipe = from_dict(FitBaseline, plain, where, foreign=FOREIGN_FINETUNING_KEYS)
    check_metric(labelled, recipe.metric, labelled.options.get("labels", ()))
    return ResolvedBaseline(recipe, labelled)


def run_baseline(resolved: ResolvedBaseline, out: str | Path, tell: Callable[[str], None] = say) -> Finetuned:
    """Fit a baseline into the new folder ``out``, which appears once it is complete."""
    recipe, labelled = resolved
    out = Path(out)
    with new_folder(out) as folder:
        for note in labelled.notes:
            tell(note)
        splits = ", ".join(f"{len(records):,} {name}" for name, records in labelled.dev.items()) or "no dev file"
        examples = {"train": len(labelled.train), "held_out": len(labelled.held)}
        tell(f"{recipe.task}: {len(labelled.train) + len(labelled.held):,} training examples, {splits}")
        fitted = fit_baseline(recipe, labelled, tell)
        baseline = Baseline(fitted.method, {"recipe": to_dict(recipe), "examples": examples})
        make_folder(folder / "model", lambda new: write_baseline(new, baseline))
        results = _results(recipe, labelled, fitted) | {"model": file_sha256(folder / "model" / WEIGHTS)}
        write_json(folder / RESULTS, results)
        write_text(folder / RECIPE, to_toml(recipe, comments=True))
        try:
            write_baseline_report(folder, recipe, results, name=out.name)
        except FirthError as error:
            tell(f"no report.html: {error}")
    return Finetuned(out, results)


class Fitted(NamedTuple):
    """A method fitted to all training examples.

    ``held_out``: its scores on ``n_held`` examples before it was fitted to them. ``tried``, ``chosen``: the settings
    tried and selected, none for commonest-tag.
    """

    method: Method
    by: str
    n_held: int
    held_out: Scored
    calibration: dict[str, Any]
    tried: tuple[Tried, ...] = ()
    chosen: Tried | None = None


def fit_baseline(recipe: FitBaseline, labelled: LabelledData, tell: Callable[[str], None] = say) -> Fitted:
    """Select settings, score held-out examples, and fit to all."""
    labels = tuple(labelled.options.get("labels", ()))
    if recipe.model == "commonest-tag":
        return _fit_tags(recipe, labelled)
    found = fit_tfidf(
        labelled.kind,  # type: ignore[arg-type]  # one of the three
        labels,
        labelled.train,
        labelled.held,
        lambda records, answers: score_outputs(recipe.task, records, answers, labels, {}).scores[recipe.metric],
        grams=GRAMS,
        strengths=recipe.strengths or STRENGTHS[labelled.kind],
    )
    best = found.chosen
    tell(f"chosen by {found.by}: {grams_in_words(best.grams)}, C {best.strength:g}: {recipe.metric} {best.score:.4f}")
    answers = answers_of(found.outputs, found.model.config)
    scored = score_outputs(recipe.task, found.records, answers, labels, {})
    return Fitted(found.model, found.by, len(found.records), scored, _figures(found), found.tried, best)


def _figures(found: FittedTfidf) -> dict[str, Any]:
    """Calibration figures on examples that the model was not fitted to."""
    config = found.model.config
    if config.kind != "classify":
        return {"threshold": config.threshold} if config.kind == "multilabel" else {}
    _, figures = tempered(config, found.outputs, targets_of(config, found.records).argmax(1))
    return figures


def _fit_tags(recipe: FitBaseline, labelled: LabelledData) -> Fitted:
    options = labelled.options
    config = CommonestTagConfig(labels=tuple(options["labels"]), scheme=options["scheme"], unit=options["unit"])
    unseen = fit_commonest_tag(labelled.train, config)
    scored = score_outputs(recipe.task, labelled.held, unseen.answers(labelled.held), config.labels, {})
    method = fit_commonest_tag([*labelled.train, *labelled.held], config)
    return Fitted(method, "held-out training examples", len(labelled.held), scored, {})


def grams_in_words(grams: GramConfig) -> str:
    """Describe n-grams: ``words 1-2, characters 2-5``."""
    parts = [f"words 1-{grams.words}"] if grams.words else []
    if grams.longest:
        parts.append(f"characters {grams.shortest}-{grams.longest}{' across words' if grams.across else ''}")
    return ", ".join(parts)


def _results(recipe: FitBaseline, labelled: LabelledData, fitted: Fitted) -> dict[str, Any]:
    """Contents of ``results.json``, in the format of a fine-tuning with one run."""
    dev: dict[str, Any] = {}
    breakdown = {"held_out": fitted.held_out.breakdown.to_dict()}
    for name, records in labelled.dev.items():
        scored = score_baseline(recipe.task, Baseline(fitted.method), records, f"scoring {name}")
        dev[name] = {metric: summary(metric, [value]) for metric, value in scored.scores.items()}
        breakdown[name] = scored.breakdown.to_dict()
    settings = [[grams_in_words(t.grams), f"C {t.strength:g}"] for t in fitted.tried] or [[]]
    return {
        "task": recipe.task,
        "kind": recipe.kind,
        "pairs": reads_pairs(labelled.train),
        "metric": recipe.metric,
        "metrics": list(labelled.metrics),
        "chosen_on": fitted.by,
        "examples": {
            "train": len(labelled.train) + len(labelled.held),
            "held_out": fitted.n_held,
            **{name: len(records) for name, records in labelled.dev.items()},
        },
        "settings": settings,
        "chosen": fitted.tried.index(fitted.chosen) if fitted.chosen is not None else 0,
        "tried": [tried.score for tried in fitted.tried],
        "held_out": {metric: summary(metric, [value]) for metric, value in fitted.held_out.scores.items()},
        "dev": dev,
        "breakdown": breakdown,
        "best_seed": None,
        "calibration": fitted.calibration,
        "weightiest": weightiest(fitted.method, _SHOWN) if isinstance(fitted.method, Tfidf) else {},
        "runs": [],
        "scored": [],
        "notes": labelled.notes,
    }


def score_baseline(task: str, baseline: Baseline, records: Sequence[Any], what: str) -> Scored:
    """Score a baseline on labelled records by every metric."""
    return score_records(task, records, baseline.labels, baseline.answer_records, what)
