"""``firth probe``."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.labelled import NOT_GIVEN, LabelledFlags, settings_of
from firth.cli.shared import (
    AtLeastOne,
    JsonFlag,
    OnFlag,
    Others,
    load_and_say,
    on_interrupt,
    print_json,
    print_table,
    shell,
)
from firth.config import read_toml
from firth.errors import UsageError


def probe(
    recipe: Annotated[Path | None, Parameter(name="RECIPE")] = None,
    /,
    *,
    labelled: LabelledFlags = NOT_GIVEN,
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    tags: Annotated[list[str] | None, Parameter(name="--tags", show_default=False)] = None,
    others: Others = None,
    out: Path,
    seeds: AtLeastOne = None,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    on: OnFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the layer of a frozen encoder, or the scalar mix of layers, that suits a task best.

    Trains a linear head on each while the encoder stays frozen. Writes a table and a plot.

    With --all one picture shows which layer carries what: tags, entities, sentence length and word content.

    Example: firth probe --task ud-pos --data ud-english-ewt/ --model runs/a --out runs/probe

    Parameters
    ----------
    recipe
        Fine-tuning recipe file (.toml); flags override it.
    every
        Probe each layer for several tasks, with control tasks (random labels per word).
    tags
        With --all: a data set of tags and its folder, such as ud-pos=ud-english-ewt/ or conll2003=DIR; repeatable.
    others
        With --all: further models, such as ELMo, in the same picture; repeatable.
    out
        Output folder for table and report; must be new.
    seeds
        Number of heads with different seeds; scores are means.
    settings
        Any other recipe key, such as --set head.network.words=mean; repeatable.
    on
        With --all: a Ray cluster whose nodes take a model each: ray, or ray://HOST:10001 (needs the cluster extra).
    as_json
        Print probe.json.
    """
    if every or tags or others or on:
        if not every:
            raise UsageError("--tags, --with and --on are for --all: give --all too, or --task and --data for one task")
        if recipe is not None or seeds is not None:
            raise UsageError("--all takes --model, --with, --tags and --out: leave out RECIPE and --seeds")
        _probe_all(labelled, others or [], tags or [], settings or [], out, on or "", as_json)
        return
    labelled.check()
    laid_over = settings_of({**labelled.keys(), "--seeds": ("train.seeds", seeds)})
    plain = {} if recipe is None else read_toml(recipe)
    from firth.finetuning.probe import probe as job
    from firth.finetuning.results import format_score

    with on_interrupt("nothing was written; run the same command again"):
        result = job(plain, [*laid_over, *(settings or [])], str(recipe or "flags"), out)
    if as_json:
        print_json(result)
        return
    print(f"{out}: {result['metric']} of a linear head per layer, on held-out training examples")
    rows = []
    for name, row in result["readings"].items():
        dev = [f"{split} {format_score(row[split])}" for split in row if split not in ("features", "mix", "held_out")]
        best = " best" * (name == result["best"])
        rows.append((name, "  ".join([format_score(row["held_out"]) + best, *dev])))
    print_table(rows)
    features = result["readings"][result["best"]]["features"]
    layers = f"head.network.layers={json.dumps(features['layers'])}"
    settings = [*result["settings"], layers, f"head.network.mix={features['mix']}"]
    print("in a fine-tuning:", shell(*(part for setting in settings for part in ("--set", setting))))
    if (out / "report.html").is_file():
        print(f"table and plot: {out / 'report.html'}")


def _probe_all(
    labelled: LabelledFlags, others: list[Path], tags: list[str], settings: list[str], out: Path, on: str, as_json: bool
) -> None:
    given = {flag: value for flag, (_, value) in labelled.keys().items() if value is not None and flag != "--model"}
    if given:
        raise UsageError(f"--all takes --model, --with, --tags and --out: leave out {', '.join(given)}")
    if labelled.model is None:
        raise UsageError("--model is missing: the model to probe")
    data = list[tuple[str, Path]]()
    for one in tags:
        task, mark, folder = one.partition("=")
        if not mark or not folder:
            raise UsageError(f"--tags {one}: expected a data set and its folder, such as ud-pos=ud-english-ewt/")
        data.append((task, Path(folder)))
    from firth.config import from_dict, override
    from firth.finetuning.layer_probes import LayerProbing, probe_layers

    options = from_dict(LayerProbing, override({}, settings), "--set")
    models = [(str(path), load_and_say(path, "float32")) for path in (Path(labelled.model), *others)]
    with on_interrupt("nothing was written; run the same command again"):
        result = probe_layers(models, data, out, options, on=on)
    if as_json:
        print_json(result)
        return
    print(f"{out}: accuracy by layer, 0 is the embedding output")
    for one in result["models"]:
        print(one["model"])
        rows = []
        for task in one["tasks"]:
            rows.append((task["task"], "  ".join(f"{a:.3f}" for a in task["accuracy"]) + f"  best {task['best']}"))
            if task["control"] is not None:
                rows.append(("  control", "  ".join(f"{a:.3f}" for a in task["control"])))
        print_table(rows)
    if (out / "report.html").is_file():
        print(f"table and plot: {out / 'report.html'}")
