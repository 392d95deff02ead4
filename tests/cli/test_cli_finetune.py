"""``firth finetune`` and ``firth evaluate``: flags, refusals, bad data, stopping, the final messages."""

import contextlib
import io
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.cli import main
from firth.cli.finetune import _report
from firth.config import to_dict
from firth.finetuning.finetune import Finetuned
from firth.finetuning.identity import identity
from firth.finetuning.resolve import resolve
from firth.tasks.breakdown import Breakdown
from firth.training import trainer

FAST = ["--set", "train.precision=float32", "--set", "train.batch_examples=8"]


def table(rows: list[tuple[str, str]], header: str = "text\tlabel\n") -> str:
    return header + "".join(f"{text}\t{label}\n" for text, label in rows)


ROWS = [(f"{text} {i}", label) for i in range(10) for text, label in (("the river", "a"), ("winter", "b"))]
CONLL = "\n".join(f"Ann B-PER\nLee I-PER\nwalked{i} O\n" for i in range(20))


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    write(folder / "t.tsv", table(ROWS))
    write(folder / "d.tsv", table([("the river", "a"), ("cold winter", "b"), ("winter", "b")]))
    write(folder / "t.conll", CONLL)
    return folder


@pytest.fixture(scope="module")
def tuned(tiny_run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A fine-tuning run with two seeds, and its output; earlier messages do not repeat the final ones.

    The number of updates announced is the number made.
    """
    out = tmp_path_factory.mktemp("tuned") / "a run"
    tokens = ["finetune", "--task", "classify", "--model", tiny_run, "--train", data / "t.tsv", "--dev", data / "d.tsv"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*map(str, tokens), "--out", str(out), "--seeds", "2", "--epochs", "1", *FAST]) == 0
    assert "curves and numbers" not in said.getvalue()
    steps = json.loads((out / "results.json").read_text())["runs"][0]["steps"]
    assert f"only {steps} weight update{'' if steps == 1 else 's'} in total" in said.getvalue()
    return out, printed.getvalue()


@pytest.fixture(scope="module")
def tagger(tiny_run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tagger") / "run"
    tokens = ["finetune", "--task", "tag", "--model", tiny_run, "--train", data / "t.conll", "--out", out, "--json"]
    assert main([*map(str, tokens), "--epochs", "1", *FAST]) == 0
    return out


# -- what it says --------------------------------------------------------------------------------------------


def test_the_end_says_scores_where_things_are_and_what_is_next(tuned: tuple[Path, str]) -> None:
    out, printed = tuned
    results = json.loads((out / "results.json").read_text())
    first, dev, held, *rest = printed.splitlines()
    assert first == f"{out}: classify fine-tuned on 18 examples; the model is in {out}/model"
    names = list(results["dev"]["dev"])
    assert sorted(names) == ["accuracy", "f1", "macro_f1", "mcc"]
    score = results["dev"]["dev"]["accuracy"]
    assert dev.split("  ")[1] == "dev, 3 examples"
    assert f"  accuracy {score['mean']:.4f} ± {score['sd']:.4f}, macro_f1 " in dev
    assert "held out, 2 examples  accuracy " in held
    assert rest[0] == f"  dev, by label (seed {results['best_seed']})"
    assert [line.split()[0] for line in rest[1:6]] == ["label", "a", "b", "f1", "majority"]
    assert rest[-2:] == [f"curves and numbers: {out}/report.html", f"next: firth predict '{out}' < lines.txt"]
    assert (out / "report.html").is_file()


def test_json_prints_the_results(firth, tiny_run: Path, data: Path, tmp_path: Path) -> None:
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        tiny_run,
        "--train",
        data / "t.tsv",
        "--out",
        tmp_path / "run",
        "--epochs",
        0.5,
        "--json",
        *FAST,
    )
    assert result.code == 0 and json.loads(result.out) == json.loads((tmp_path / "run" / "results.json").read_text())


def results_of(**more: Any) -> dict[str, Any]:
    score = {"mean": 0.5, "sd": 0.25, "interval": None, "best": 0.5, "values": [0.5]}
    run = {"seed": 1, "settings": [], "best": 0.9, "collapsed": False}
    return {
        "task": "squad2",
        "kind": "answer",
        "metric": "squad_f1",
        "metrics": ["squad_f1", "exact_match"],
        "examples": {"train": 1200, "held_out": 1},
        "dev": {},
        "settings": [[]],
        "chosen": 0,
        "runs": [run],
        "chosen_on": "held-out training examples",
        "held_out": {"exact_match": score, "char_f1": score, "squad_f1": score},
    } | more


def test_the_scores_of_the_task_come_first_and_one_seed_has_no_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(Finetuned(tmp_path, results_of()), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}: squad2 fine-tuned on 1,200 examples; the model is in {tmp_path}/model",
        "  held out, 1 example  squad_f1 0.5000, exact_match 0.5000, char_f1 0.5000",
        f"next: firth evaluate {tmp_path} --data FILE",
    ]


def test_questions_that_all_have_answers_have_no_labels_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_down = Breakdown(unit="questions", labels={}, always="Ann").to_dict()
    found = results_of(breakdown={"held_out": broken_down}, best_seed=1)
    _report(Finetuned(tmp_path, found), as_json=False)
    printed = capsys.readouterr().out
    assert "by label" not in printed and "the model gives the same answer to every example: Ann" in printed


def test_collapsed_runs_and_the_chosen_settings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [["optim.learning_rate=1e-4"], ["optim.learning_rate=3e-4"]]
    runs = [
        {"seed": seed, "settings": settings[1], "best": best, "collapsed": best < 0.5}
        for seed, best in ((1, 0.9), (2, 0.4), (3, 0.8))
    ]
    dev = {"dev": results_of()["held_out"]}
    found = results_of(settings=settings, chosen=1, runs=runs, dev=dev, examples={"train": 9, "held_out": 1, "dev": 2})
    _report(Finetuned(tmp_path, found), as_json=False)
    printed = capsys.readouterr().out
    assert "  chosen of 2 settings: optim.learning_rate=3e-4\n" in printed
    warning = "optim.learning_rate=3e-4, seed 2 collapsed: squad_f1 0.4000, far below the other seeds"
    assert f"  warning: {warning}\n" in printed and printed.count("warning: ") == 1
    assert printed.endswith(f"next: firth predict {tmp_path} < questions.jsonl\n")


# -- flags ---------------------------------------------------------------------------------------------------


def test_flags_are_laid_over_the_recipe_file_and_nothing_is_written(
    firth, tiny_run: Path, data: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "r.toml", 'task = "tag"\nmodel = "./x"\n[train]\nepochs = 9\nseed = 4\n')
    result = firth(
        "finetune",
        file,
        "--task",
        "classify",
        "--model",
        tiny_run,
        "--from-scratch",
        "--train",
        data / "t.tsv",
        "--dev",
        data / "d.tsv",
        "--columns",
        "text=0,label=1",
        "--header",
        "--format",
        "tsv",
        "--seeds",
        3,
        "--grid",
        "optim.learning_rate=1e-4,3e-4",
        "--grid",
        "head.network.pool=mean,max",
        "--epochs",
        1.5,
        "--limit",
        7,
        "--skip-bad",
        "--set",
        "train.patience=2",
        "--show-recipe",
    )
    assert result.code == 0, result.err
    recipe = tomllib.loads(result.out)
    assert (recipe["task"], recipe["model"], recipe["from_scratch"]) == ("classify", str(tiny_run), True)
    wanted = {
        "folder": "",
        "train": str(data / "t.tsv"),
        "dev": str(data / "d.tsv"),
        "columns": "text=0,label=1",
        "header": "yes",
        "format": "tsv",
        "limit": 7,
        "skip_bad": True,
    }
    assert {key: recipe["data"][key] for key in wanted} == wanted
    assert recipe["grid"] == ["optim.learning_rate=1e-4,3e-4", "head.network.pool=mean,max"]
    train = recipe["train"]
    assert (train["epochs"], train["seed"], train["seeds"], train["patience"]) == (1.5, 4, 3, 2)
    assert recipe["head"]["labels"] == ["a", "b"]
    assert "epochs = 1.5  # passes over the training examples" in result.out
    assert list(tmp_path.iterdir()) == [file]
    # The output is itself a recipe.
    write(file, result.out)
    assert firth("finetune", file, "--show-recipe").out == result.out


def test_a_size_without_pre_training(firth, tiny_vocab: Path, data: Path, tmp_path: Path) -> None:
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        "bert-tiny",
        "--tokenizer",
        tiny_vocab,
        "--train",
        data / "t.tsv",
        "--out",
        tmp_path / "run",
        "--epochs",
        0.1,
        *FAST,
    )
    assert result.code == 0 and "random initialisation" in result.err


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["--task", "clasify"], ["'clasify'", "did you mean 'classify'"]),
        (["--task", "glue/sst"], ["did you mean 'glue/sst2'"]),
        (["--task", "glue/sst2"], ["--task glue/sst2 is a data set", "--data"]),
        (["--data", "folder"], ["--data is for published data sets", "--train"]),
        (["--model", "bert-maxi"], ["'bert-maxi'", "bert-mini"]),
        (["--model", "bert-tiny"], ["--model bert-tiny is only a size", "--tokenizer"]),
        (["--tokenizer", "vocab"], ["--tokenizer vocab", "leave it out"]),
        (["--model", "./nowhere"], ["nowhere", "no such model folder"]),
        (["--train", "nowhere.tsv"], ["nowhere.tsv: no such file"]),
        (["--columns", "text=sentence,label=label"], ["t.tsv:1", "no column 'sentence'", "text | label"]),
        (["--columns", "txt=text"], ["unknown part 'txt'", "label"]),
        (["--columns", "text=0,label=2", "--no-header"], ["2 columns", "number 2", "from 0"]),
        (["--format", "conll"], ["--format conll", "tsv, csv, jsonl"]),
        (["--set", "train.epocs=2"], ["'train.epocs'", "'train.epochs'"]),
        (["--set", "head.netwerk.mix=sum"], ["'head.netwerk'", "'head.network'"]),
        (["--set", "head.features.mix=sum"], ["'head.features'", "'head.network'"]),
        (["--set", "head.network.cell=gru"], ["head.network.cell is for head.network.kind='bilstm', not 'linear'"]),
        (["--set", "head.network=pooled"], ["head.network must be a table", "head.network.kind"]),
        (["--set", "head.crf=true"], ["'head.crf'"]),
        (["--set", "optim.peak_rate=2"], ["'optim.peak_rate'", "is now called 'optim.learning_rate'"]),
        (["--set", "fresh=true"], ["'fresh'", "is now called 'from_scratch'"]),
        (["--set", "learning_rate=2"], ["'learning_rate'", "'optim.learning_rate'"]),
        (["--set", "adapt.frozen_groups=9"], ["adapt.frozen_groups=9", "-1"]),
        (["--epochs", "0"], ["train.epochs", "more than 0"]),
        (["--seeds", "0"], ["--seeds", ">= 1"]),
        (["--limit", "0"], ["--limit", ">= 1"]),
        (["--grid", "data.limit=3,4"], ["--grid 'data.limit=3,4'", "head, adapt, optim, train"]),
        (["--grid", "train.seeds=1,2"], ["train.seeds is the same for all settings"]),
        (["--grid", "optim.learning_rate=1e-4,many"], ["optim.learning_rate", "'many'", "float"]),
        (["--grid", "optim.peak_rat=1e-4"], ["'optim.peak_rat'", "'optim.learning_rate'"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    firth,
    tiny_run: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--task": "classify", "--model": str(tiny_run), "--train": str(data / "t.tsv"), "--out": "run"}
    given = {flag: value for flag, value in given.items() if flag != tokens[0]}
    if tokens in (["--task", "glue/sst2"], ["--data", "folder"]):
        del given["--train"]
    result = firth("finetune", *(token for pair in given.items() for token in pair), *tokens)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == [], result.complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ([], "--out"),
        (["--out", "run"], "--model"),
        (["--out", "run", "--model", "./m"], "--task"),
        (["--out", "run", "--model", "./m", "--task", "classify"], "--train is missing"),
        (["absent.toml", "--out", "run"], "absent.toml: no such recipe file"),
        (["firth-mini-en", "--out", "run"], "no such recipe file; a model is given as --model firth-mini-en"),
        ([".", "--out", "run"], ". is a folder, expected a recipe file (.toml); a model is given as --model ."),
        (["--resume", "run"], "run: no such folder; give the folder of a fine-tuning"),
        (["--resume", "."], ". is not a fine-tuning"),
        (
            ["--resume", "run", "--seeds", "5", "--from-scratch", "--set", "a.b=c"],
            "leave out --from-scratch, --seeds, --set",
        ),
        (["r.toml", "--resume", "run"], "leave out RECIPE"),
    ],
)
def test_what_is_missing_or_too_much(
    firth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("finetune", *tokens)
    assert result.code == 2 and part in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_a_fine_tuning_in_the_way_names_the_command_that_goes_on(
    firth, tuned: tuple[Path, str], tiny_run: Path, data: Path
) -> None:
    command = ["finetune", "--task", "classify", "--model", tiny_run, "--train", data / "t.tsv", "--out", tuned[0]]
    result = firth(*command)
    assert result.code == 2 and "firth finetune --resume" in result.complaint and str(tuned[0]) in result.complaint


# -- bad data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "train", "dev", "parts"),
    [
        ("classify", "", None, ["t.tsv: the file is empty"]),
        ("classify", "text\tlabel\n", None, ["t.tsv: no usable example"]),
        ("classify", None, "", ["d.tsv: the file is empty"]),
        ("classify", None, "text\tlabel\nx\tz\n", ["d.tsv:2", "'z'", "a, b"]),
        ("classify", table([(text, "a") for text, _ in ROWS]), None, ["t.tsv:2", "all 20 examples have the label 'a'"]),
        ("classify", table(ROWS) + "no label\n", None, ["t.tsv:22", "1 column, expected 2"]),
        ("classify", table(ROWS).encode() + b"\xff\tb\n", None, ["t.tsv:22", "0xff", "UTF-8"]),
        ("classify", "id\ttext\tlabel\n1\tx\ta\n1\ty\tb\n", None, ["t.tsv:3", "the id '1' again", "t.tsv:2"]),
        ("regress", table([("x", "1"), ("y", "nan")], "text\tscore\n"), None, ["t.tsv:3", "'nan'", "finite number"]),
        ("regress", table([("x", "1"), ("y", "good")], "text\tscore\n"), None, ["t.tsv:3", "'good'"]),
        ("tag", "Ann O\nsang O\n\nnow O\n", None, ["every word has the tag O"]),
        ("tag", "Ann B-PER\n\nsang\n", None, ["t.tsv:3", "1 column, expected 2"]),
    ],
)
def test_bad_data_is_named_by_file_and_line(
    firth, tiny_run: Path, tmp_path: Path, task: str, train: str | bytes | None, dev: str | None, parts: list[str]
) -> None:
    files = ["--train", write(tmp_path / "t.tsv", table(ROWS) if train is None else train)]
    if dev is not None:
        files += ["--dev", write(tmp_path / "d.tsv", dev)]
    result = firth("finetune", "--task", task, "--model", tiny_run, *files, "--out", tmp_path / "run")
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == [], result.complaint
    assert not (tmp_path / "run").exists()


def test_bad_rows_are_left_out_and_listed_on_demand(firth, tiny_run: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table(ROWS) + "one column\nthe river\ta\textra\n")
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        tiny_run,
        "--train",
        train,
        "--out",
        tmp_path / "run",
        "--epochs",
        0.1,
        "--skip-bad",
        *FAST,
    )
    assert result.code == 0 and "fine-tuned on 18 examples" in result.out
    assert "malformed rows skipped: 2; the first 2:" in result.err
    assert "t.tsv:22: found 1 column" in result.err and "t.tsv:23: found 3 columns" in result.err
    notes = json.loads((tmp_path / "run" / "results.json").read_text())["notes"]
    assert "malformed rows skipped: 2; the first 2:" in notes
    assert "t.tsv:23" in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (table(ROWS, header=""), ["--columns", "text=0,label=1", "--no-header"]),
        (table(ROWS, header="").replace("\n", "\r\n"), ["--columns", "text=0,label=1"]),
        ("\ufeff" + table(ROWS).replace("\n", "\r\n"), []),
        (table(ROWS, header="a\tb\n"), ["--columns", "text=0,label=1", "--header"]),
        (table(ROWS, header="a\tb\n"), ["--columns", "text=a,label=b"]),
    ],
    ids=["no header", "crlf", "bom", "strange header", "named"],
)
def test_the_same_examples_however_the_file_is_written(
    firth, tiny_run: Path, data: Path, tmp_path: Path, text: str, flags: list[str]
) -> None:
    train = write(tmp_path / "t.tsv", text)
    tokens = ["--task", "classify", "--model", tiny_run, "--train", train, "--out", tmp_path / "run"]
    result = firth("finetune", *tokens, *flags, "--epochs", 0.1, *FAST)
    assert result.code == 0, result.err
    plain = {"task": "classify", "model": str(tiny_run), "data": {"train": str(data / "t.tsv")}}
    recipe, base, labelled = resolve(plain, [], "test")
    same = identity(to_dict(recipe), base, labelled)
    found = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert {key: found[key] for key in same if key != "the recipe"} == {
        key: same[key] for key in same if key != "the recipe"
    }


def test_a_lone_quotation_mark_is_text(firth, tiny_run: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", table([*ROWS, ('a "river', "a"), ("winter", "b")]))
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        tiny_run,
        "--train",
        train,
        "--out",
        tmp_path / "run",
        "--epochs",
        0.1,
        *FAST,
        "--json",
    )
    examples = json.loads(result.out)["examples"]
    assert examples["train"] + examples["held_out"] == 22


# -- stopping ------------------------------------------------------------------------------------------------


class Stop:
    """Requests a stop after the first step."""

    asked = True

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def test_an_interruption_says_how_to_go_on_and_leads_to_the_same_results(
    firth, tuned: tuple[Path, str], tiny_run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a run"
    tokens = ["--task", "classify", "--model", tiny_run, "--train", data / "t.tsv", "--dev", data / "d.tsv"]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "StopRequest", Stop)
        result = firth("finetune", *tokens, "--out", out, "--seeds", 2, "--epochs", 1, *FAST)
    assert result.code == 130
    message, _, command = result.complaint.rpartition("; to resume: ")
    assert message == "interrupted: what is done is saved" and shlex.split(command)[-1] == str(out)
    again = firth(*shlex.split(command)[1:])
    assert again.code == 0 and again.out == tuned[1].replace(str(tuned[0]), str(out))
    assert timeless(out) == timeless(tuned[0])


def timeless(out: Path) -> Any:
    def drop(pairs: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in pairs.items() if key != "elapsed_s"}

    return json.loads((out / "results.json").read_text(), object_hook=drop)


def test_an_interruption_before_anything_is_written(
    firth, tiny_run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("firth.finetuning.runs.split_of", interrupt)
    tokens = ["--task", "classify", "--model", tiny_run, "--train", data / "t.tsv", "--out", tmp_path / "run"]
    result = firth("finetune", *tokens)
    assert result.code == 130 and result.complaint == "interrupted: nothing was written"
    assert not (tmp_path / "run").exists()


def test_changed_data_are_refused_when_going_on(firth, tiny_run: Path, data: Path, tmp_path: Path) -> None:
    train = Path(shutil.copy(data / "t.tsv", tmp_path))
    tokens = ["--task", "classify", "--model", tiny_run, "--train", train, "--out", tmp_path / "run", "--epochs", 0.1]
    assert firth("finetune", *tokens, *FAST).code == 0
    write(train, train.read_text().replace("river 3", "river 33"))
    result = firth("finetune", "--resume", tmp_path / "run")
    assert result.code == 2 and "the labelled data changed since the run began" in result.complaint


# -- evaluate ------------------------------------------------------------------------------------------------


def test_a_baseline_is_not_fitted_on_a_cluster(firth, data: Path, tmp_path: Path) -> None:
    command = ("finetune", "--task", "classify", "--model", "tfidf", "--train", data / "t.tsv")
    refused = firth(*command, "--on", "ray", "--out", tmp_path / "b")
    assert refused.code == 2 and "leave --on out" in refused.complaint
    refused = firth(*command, "--processes", 2, "--out", tmp_path / "b")
    assert refused.code == 2 and "leave --processes out" in refused.complaint
    assert not (tmp_path / "b").exists()


def test_a_baseline_has_no_seed_and_is_scored_as_its_table_says(firth, data: Path, tmp_path: Path) -> None:
    command = ("finetune", "--task", "classify", "--model", "tfidf", "--train", data / "t.tsv")
    lines = firth(*command, "--out", tmp_path / "b").out.splitlines()
    assert lines[1].startswith("  cross-validation, ") and lines[2] == "  cross-validation, by label"
    assert json.loads((tmp_path / "b" / "results.json").read_text())["best_seed"] is None


def test_scores_of_a_model_are_a_table_or_json(firth, tuned: tuple[Path, str], data: Path) -> None:
    plain = firth("evaluate", tuned[0], "--data", data / "d.tsv")
    found = json.loads(firth("evaluate", tuned[0], "--data", data / "d.tsv", "--json").out)
    assert plain.code == 0 and plain.out.splitlines()[:5] == [
        f"{data / 'd.tsv'}: classify, 3 examples",
        *(f"  {name:8}  {found['scores'][name]:.4f}" for name in ("accuracy", "macro_f1", "mcc", "f1")),
    ]
    assert "first line is a header" in plain.err
    # The best run's score on the dev file, once more.
    results = json.loads((tuned[0] / "results.json").read_text())
    best = next(run for run in results["scored"] if run["seed"] == results["best_seed"])
    assert found["scores"] == pytest.approx(best["dev"]["dev"])


def test_an_evaluation_shows_its_labels_baseline_and_constant_answers(firth, data: Path, tmp_path: Path) -> None:
    write(tmp_path / "p", "b\nb\nb\n")
    tokens = ["score", "--task", "classify", "--gold", str(data / "d.tsv"), "--predictions", str(tmp_path / "p")]
    found = json.loads(firth(*tokens, "--json").out)["breakdown"]
    assert found["labels"]["a"] == {"examples": 1, "predicted": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert found["confusion"] == [[0, 1], [0, 2]]
    printed = firth(*tokens).out
    assert re.search(r"^  b +2 +3 +0.6667 +1.0000 +0.8000$", printed, re.M)
    assert "  f1 is that of the second label, b\n  majority baseline: always b: accuracy 0.6667" in printed
    assert "warning: the model gives the same answer to every example: b" in printed
    write(tmp_path / "p", "b\na\na\n")
    assert "warning: the model does worse than the majority baseline" in firth(*tokens).out
    write(tmp_path / "d.tsv", "text\tlabel\na\t1\nb\t2\nc\t3\n")
    for predicted, is_warned in (("3\n2\n1\n", True), ("1\n2.5\n3\n", False)):
        write(tmp_path / "p", predicted)
        told = firth("score", "--task", "regress", "--gold", str(tmp_path / "d.tsv"), *tokens[5:]).out
        assert ("warning: the model does worse than the majority baseline" in told) is is_warned


def test_a_sentence_of_600_words_and_words_without_letters(firth, tagger: Path, tmp_path: Path) -> None:
    words = "".join(f"word{i} O\n" for i in range(599)) + "Ann B-PER\n"
    result = firth("evaluate", tagger, "--data", write(tmp_path / "t.conll", words))
    assert result.code == 0 and "tag, 1 example\n" in result.out and "document read in windows: 1" in result.err
    result = firth("evaluate", tagger, "--data", write(tmp_path / "u.conll", "\u200b O\nAnn B-PER\n\u2060 O\n"))
    assert result.code == 0 and "entity_f1" in result.out


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        ([], ["firth evaluate runs/b --data test.tsv", "firth score"]),
        (["MODEL"], ["--data is missing"]),
        (["MODEL", "--data", "EMPTY"], ["e.conll: the file is empty"]),
        (["RUN", "--data", "FILE"], ["is not fine-tuned for a task", "firth finetune --model"]),
        (["nowhere", "--data", "FILE"], ["nowhere: no such model folder"]),
        (["MODEL", "--data", "FILE", "--gold", "x"], ["does not translate, which --gold requires", "firth score"]),
        (["MODEL", "--data", "FILE", "--task", "glue/sst2"], ["is a model for tag", "kind classify"]),
        (["MODEL", "--data", "FILE", "--task", "glu/sst2"], ["did you mean 'glue/sst2'"]),
        (["MODEL", "--data", "FOLDER", "--task", "conll2003"], ["found no file of conll2003, dev", "eng.testa"]),
        (["MODEL", "--data", "FOLDER", "--task", "conll2003", "--split", "nope"], ["--split nope", "train, dev, test"]),
        (["MODEL", "--data", "FILE", "--split", "test"], ["--split is for the folder of a data set, and", "is a file"]),
        (["--predictions", "x", "--gold", "y", "--task", "tag"], ["has no --predictions: use firth score --predict"]),
        (["MODEL", "--data", "FILE", "--na-prob-file", "y"], ["has no --na-prob-file: use firth score"]),
        (["MODEL", "--data", "FILE", "--with", "RUN"], ["is a model for pretraining", "models of one task"]),
        (
            ["MODEL", "--data", "FILE", "--with", "MODEL", "--precision", "int8"],
            ["evaluate one model: leave out --with"],
        ),
    ],
)
def test_evaluate_refuses_in_one_line(
    firth,
    tagger: Path,
    tiny_run: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = write(tmp_path / "e.conll", "")
    places = {"MODEL": tagger, "RUN": tiny_run, "FILE": data / "t.conll", "FOLDER": tmp_path, "EMPTY": empty}
    result = firth("evaluate", *(places.get(token, token) for token in tokens))
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == [], result.complaint


def test_scores_of_predictions(firth, data: Path, tmp_path: Path) -> None:
    said = write(tmp_path / "p.txt", "a\nb\na\n")
    result = firth("score", "--predictions", said, "--gold", data / "d.tsv", "--task", "classify")
    assert result.code == 0 and "  accuracy  0.6667\n" in result.out
    write(said, "a\nb\n")
    result = firth("score", "--predictions", said, "--gold", data / "d.tsv", "--task", "classify")
    assert result.code == 2 and "2 predictions for 3 examples" in result.complaint


def test_bad_rows_are_listed_by_evaluate(firth, tuned: tuple[Path, str], tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", table([("x", "a"), ("y", "z")]))
    result = firth("evaluate", tuned[0], "--data", gold)
    assert result.code == 2 and "g.tsv:3" in result.complaint
    result = firth("evaluate", tuned[0], "--data", gold, "--skip-bad")
    assert result.code == 0 and "1 example\n" in result.out and "malformed rows skipped: 1" in result.err


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (["--predictions", "x", "--task", "tag"], "--gold"),
        (["--predictions", "x", "--gold", "y"], "--task"),
        (["--predictions", "x", "--gold", "y", "--task", "nope"], "'nope' is not known"),
        (["--predictions", "x", "--gold", "y", "--task", "tag", "--na-prob-thresh", "1"], "are for question answering"),
        (["MODEL", "--predictions", "x", "--gold", "y", "--task", "tag"], "does not take MODEL"),
        (
            ["--predictions", "x", "--gold", "y", "--task", "translate", "--split", "test", "--skip-bad"],
            "--split and --skip-bad: only for labelled examples",
        ),
        (
            ["--predictions", "x", "--gold", __file__, "--task", "classify", "--split", "test"],
            "--split is for the folder of a data set",
        ),
    ],
)
def test_score_refuses_in_one_line(firth, tokens: list[str], part: str) -> None:
    result = firth("score", *tokens)
    assert result.code == 2 and part in result.complaint, result.complaint


@pytest.mark.parametrize("verb", ["finetune", "evaluate", "score", "predict"])
def test_help_has_an_example_and_a_line_for_each_flag(firth: Callable[..., Any], verb: str) -> None:
    result = firth(verb, "--help")
    assert result.code == 0 and f"Example: firth {verb} " in result.out
    flags = [line.strip("│* ") for line in result.out.splitlines() if line.strip("│* ").startswith("--")]
    assert flags and all(len([word for word in flag.split("  ") if word.strip()]) > 1 for flag in flags)
    assert 'default: ""' not in result.out
