"""``firth finetune``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from firth.cli.breakdown import print_breakdown
from firth.cli.labelled import NOT_GIVEN, OBJECTS, Keys, LabelledFlags, settings_of
from firth.cli.shared import (
    AtLeastOne,
    Flag,
    JsonFlag,
    OnFlag,
    ProcessesFlag,
    Whole,
    counted,
    print_json,
    print_next,
    print_table,
    shell,
)
from firth.config import read_toml, to_toml
from firth.errors import ConfigError
from firth.files import check_new
from firth.progress import say
from firth.workers import WORKERS_EACH, check_processors

if TYPE_CHECKING:
    from firth.finetuning.finetune import Finetuned
    from firth.pretraining.several import Processes


def finetune(
    recipe: Annotated[Path | None, Parameter(name="RECIPE")] = None,
    /,
    *,
    labelled: LabelledFlags = NOT_GIVEN,
    skip_bad: Flag = False,
    head_preset: str | None = None,
    tokenizer: str | None = None,
    from_scratch: Flag = False,
    out: Path | None = None,
    seeds: AtLeastOne = None,
    seed: Whole | None = None,
    grid: list[str] | None = None,
    epochs: float | None = None,
    adapt_text: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    show_recipe: Flag = False,
    as_json: JsonFlag = False,
    resume: Path | None = None,
    processes: ProcessesFlag = "auto",
    on: OnFlag = None,
) -> None:
    """Fine-tune a pre-trained model on labelled examples.

    Model selection uses a held-out part of the training data; the dev file is scored once.
    Ctrl-C saves a checkpoint; --resume continues.

    Example: firth finetune --task classify --model runs/a --train t.tsv --out b

    Parameters
    ----------
    recipe
        Recipe file (.toml); flags override it.
    skip_bad
        Skip malformed rows and list them; otherwise the first one stops the run.
    head_preset
        Published head preset: taglm, elmo or bilstm-crf for token classification, bcn for text
        classification, towers for pairs of texts.
    tokenizer
        Tokenizer folder, if --model is a size such as bert-mini (training without pre-training).
    from_scratch
        Random initialisation at the model's size, to measure what pre-training adds.
    out
        Output folder; must be new.
    seeds
        Number of runs with different seeds; scores are mean ± standard deviation. Default 1; small models and few
        labels: 3, whose weights are averaged to one model (--set train.average_seeds=true does so elsewhere).
    seed
        Seed of the first run.
    grid
        A recipe key and its values, such as optim.learning_rate=1e-4,3e-4; repeatable: every combination is tried.
    epochs
        Passes over the training examples.
    adapt_text
        Text files to continue pre-training on first; train: the texts of the training examples.
        At most 10 minutes by default (--set adapt.text_minutes=30).
    settings
        Any other recipe key, such as --set head.network.mix=scalar; repeatable.
    show_recipe
        Print the resolved recipe with a comment for each key, and exit.
    as_json
        Print results.json.
    resume
        Resume the fine-tuning in this folder.
    processes
        Processes that share the work on a CPU. auto: one per thread, if a run is long enough.
    on
        Share the runs of --seeds and --grid among the nodes of a Ray cluster: ray (RAY_ADDRESS, or this machine) or
        ray://HOST:10001. --processes is per run, by default one.
    """
    keys: Keys = {
        **labelled.keys(),
        "--skip-bad": ("data.skip_bad", skip_bad or None),
        "--head-preset": ("head_preset", head_preset),
        "--tokenizer": ("tokenizer", tokenizer),
        "--from-scratch": ("from_scratch", from_scratch or None),
        "--seeds": ("train.seeds", seeds),
        "--seed": ("train.seed", seed),
        "--grid": ("grid", grid),
        "--epochs": ("train.epochs", epochs),
        "--adapt-text": ("adapt.text", adapt_text),
    }
    others = {"RECIPE": recipe, "--out": out, "--set": settings, "--show-recipe": show_recipe or None}
    if resume is not None:
        given = [flag for flag, (_, value) in keys.items() if value is not None]
        given += [flag for flag, value in others.items() if value is not None]
        if given:
            raise ConfigError(f"--resume uses the recipe of the run: leave out {', '.join(given)}")
        _resume(resume, as_json, processes, on or "")
        return
    if processes != "auto" and on is None:
        check_processors("--processes", processes, WORKERS_EACH)
    if recipe is not None:
        _check_recipe(recipe)
    if not show_recipe and out is None:
        raise ConfigError("--out is missing: give a new folder for the fine-tuning, such as --out runs/b")
    labelled.check()
    given = settings_of(keys) + (settings or [])
    if recipe is None and not any(key.startswith("model=") for key in given):
        raise ConfigError("--model is missing, such as --model firth-mini-en; firth models lists the names")
    if out is not None and not show_recipe:  # early: reading data and model first would take seconds
        is_run = all((out / name).is_file() for name in ("identity.json", "recipe.toml"))
        resumed = f"firth finetune --resume {out}" if is_run else ""
        check_new(out, resume=resumed, but="identity.json")
    _start(recipe, given, None if show_recipe else out, as_json, processes, on or "")


def _check_recipe(recipe: Path) -> None:
    """Raise ConfigError for a recipe argument that was probably meant as another one."""
    if "=" in str(recipe) and not recipe.exists():
        raise ConfigError(
            f"{recipe}: recipe keys are given as --set {recipe}; a value with a space stands in quotation marks"
        )
    if recipe.is_file() and recipe.suffix != ".toml":
        raise ConfigError(f"{recipe}: expected a recipe file (.toml); a file of examples is given as --train {recipe}")


def _start(
    path: Path | None, overrides: list[str], out: Path | None, as_json: bool, processes: "Processes", on: str
) -> None:
    """Run a new fine-tuning in ``out``; without ``out``, only print its recipe on stdout."""
    data: dict[str, Any] = {} if path is None else read_toml(path)
    where = " and ".join([*([str(path)] if path else []), *(["flags"] if overrides or not path else [])])
    from firth.finetuning.baseline import names_baseline, resolve_baseline, run_baseline
    from firth.finetuning.finetune import run_resolved
    from firth.finetuning.resolve import resolve

    if names_baseline(data, overrides):
        baseline = resolve_baseline(data, overrides, where)
        if on:
            raise ConfigError(f"--on {on}: a baseline is fitted on this machine, in seconds; leave --on out")
        if processes != "auto":
            raise ConfigError(f"--processes {processes}: a baseline is fitted by one process; leave --processes out")
        if out is None:
            print(to_toml(baseline.recipe, comments=True), end="")
        else:
            _report(run_baseline(baseline, out), as_json)
        return
    resolved = resolve(data, overrides, where)
    if out is None:
        print(to_toml(resolved.recipe, comments=True), end="")
        return
    try:
        _report(run_resolved(resolved, out, processes=processes, on=on), as_json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(out)) from None


def _resume(out: Path, as_json: bool, processes: "Processes", on: str) -> None:
    from firth.finetuning.finetune import resume

    try:
        _report(resume(out, processes=processes, on=on), as_json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(out)) from None


def _how_to_go_on(out: Path) -> str:
    if not (out / "recipe.toml").is_file():
        return "nothing was written"
    return f"what is done is saved; to resume: {shell('firth', 'finetune', '--resume', out)}"


def _report(tuned: "Finetuned", as_json: bool) -> None:
    """Print the scores, where the model is and the next command."""
    from firth.finetuning.results import run_name, seed_name

    results, out = tuned.results, tuned.out
    if as_json:
        print_json(results)
        return
    examples = results["examples"]
    n_train = counted(examples["train"], "example")
    print(f"{out}: {results['task']} fine-tuned on {n_train}; the model is in {out}/model")
    # If the dev file was used for model selection, it is the held-out set.
    on_dev = results["chosen_on"] == "the dev file"
    # With few examples, a baseline is scored on all of them, each by a fit without that example.
    held_out = "cross-validation" if results["chosen_on"].startswith("cross-validation") else "held out"
    splits = results["dev"] if on_dev else {**results["dev"], held_out: results["held_out"]}
    sizes = {**examples, held_out: examples["held_out"]}
    first = [results["metric"], *results["metrics"]]
    print_table(
        [(f"{name}, {counted(sizes[name], 'example')}", _scores(scores, first)) for name, scores in splits.items()]
    )
    last = next(iter(results["dev"]), "held_out")
    if (found := results.get("breakdown", {}).get(last)) is not None:
        if found["labels"]:  # questions that all have answers have none
            # A baseline has no seed; a seed may be 0.
            of = "" if results["best_seed"] is None else f" ({seed_name(results['best_seed'])})"
            print(f"  {held_out if last == 'held_out' else last}, by label{of}")
        print_breakdown(found, results["dev"].get(last) or results["held_out"])
    if results["settings"] != [[]]:
        print(f"  chosen of {len(results['settings'])} settings: {', '.join(results['settings'][results['chosen']])}")
    if on_dev:
        print("  warning: the dev file was used for model selection, so its scores are optimistic")
    for run in results["runs"]:
        if run["collapsed"]:
            score = f"{results['metric']} {run['best']:.4f}"
            print(f"  warning: {run_name(run)} collapsed: {score}, far below the other seeds")
    if (out / "report.html").is_file():
        print(f"curves and numbers: {out / 'report.html'}")
    if results["dev"]:
        if results.get("pairs"):
            print_next("firth", "predict", out, "--input", "PAIRS.tsv")
        else:
            file = "questions.jsonl" if results["kind"] in OBJECTS else "lines.txt"
            print(f"next: {shell('firth', 'predict', out)} < {file}")
    else:
        print_next("firth", "evaluate", out, "--data", "FILE")


def _scores(scores: Mapping[str, Mapping[str, Any]], first: Iterable[str]) -> str:
    """``accuracy 0.9120 ± 0.0041, …`` over the seeds, the task's own scores first."""
    from firth.finetuning.results import format_score

    names = dict.fromkeys([*(name for name in first if name in scores), *scores])
    return ", ".join(f"{name} {format_score(scores[name])}" for name in names)


def say_notes(notes: Iterable[str]) -> None:
    """Print notes about the data that was read, on stderr."""
    for note in notes:
        say(note)
