"""``firth probe``: its flags as a recipe, and what it prints."""

import json
from pathlib import Path
from typing import Any

import pytest

RESULT: dict[str, Any] = {
    "metric": "accuracy",
    "best": "layer 1",
    "settings": ["task=classify"],
    "readings": {
        name: {
            "held_out": {"mean": mean, "sd": 0.0, "values": [mean]},
            "dev": {"mean": 0.5, "sd": 0.0, "values": [0.5]},
            "features": {"layers": [number], "mix": "one"},
        }
        for number, (name, mean) in enumerate([("layer 0", 0.25), ("layer 1", 0.75)])
    },
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each call of the job, which returns ``RESULT``."""
    calls: list[tuple[Any, ...]] = []

    def job(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        return RESULT

    monkeypatch.setattr("firth.finetuning.probe.probe", job)
    return calls


def test_flags_are_laid_over_the_recipe_and_set_comes_last(
    firth, asked: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t.tsv", "d.tsv"):
        Path(name).touch()
    recipe = tmp_path / "r.toml"
    recipe.write_text('task = "regress"\n')
    result = firth(
        "probe",
        recipe,
        "--task",
        "classify",
        "--model",
        "m",
        "--train",
        "t.tsv",
        "--dev",
        "d.tsv",
        "--columns",
        "text=0,label=1",
        "--no-header",
        "--format",
        "tsv",
        "--seeds",
        2,
        "--limit",
        9,
        "--out",
        tmp_path / "p",
        "--set",
        "head.network.words=mean",
    )
    assert result.code == 0, result.err
    ((plain, settings, where, out),) = asked
    assert (plain, where, out) == ({"task": "regress"}, str(recipe), tmp_path / "p")
    assert sorted(settings[:-1]) == [
        'data.columns="text=0,label=1"',
        'data.dev="d.tsv"',
        'data.format="tsv"',
        'data.header="no"',
        "data.limit=9",
        'data.train="t.tsv"',
        'model="m"',
        'task="classify"',
        "train.seeds=2",
    ]
    assert settings[-1] == "head.network.words=mean"


def test_flags_that_are_not_given_say_nothing(firth, asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert firth("probe", "--data", "DIR", "--task", "ud-pos", "--out", tmp_path / "p").code == 0
    assert asked == [({}, ['task="ud-pos"', 'data.folder="DIR"'], "flags", tmp_path / "p")]


def test_the_best_reading_is_marked_and_its_settings_are_printed(
    firth, asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    result = firth("probe", "--out", tmp_path / "p")
    assert "  layer 0  0.2500  dev 0.5000\n  layer 1  0.7500 best  dev 0.5000\n" in result.out
    assert "--set 'head.network.layers=[1]' --set head.network.mix=one" in result.out
    assert json.loads(firth("probe", "--out", tmp_path / "p", "--json").out) == RESULT


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ([], "--out"),
        (["--out", "p", "--limit", "0"], "--limit"),
        (["--out", "p", "--skip-bad"], "--skip-bad"),
        (["r.toml", "--out", "p"], "r.toml: no such recipe file"),
    ],
)
def test_refusals_are_one_line(
    firth, asked: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("probe", *tokens)
    assert result.code == 2 and part in result.complaint
    assert not asked


def test_all_layers_for_several_tasks(firth, tiny_run: Path, tmp_path: Path) -> None:
    rows = "1\tThe\t_\tDET\t_\t_\t_\t_\t_\t_\n2\tfarmer\t_\tNOUN\t_\t_\t_\t_\t_\t_\n"
    (tmp_path / "train.conllu").write_text("\n".join([rows] * 40))
    (tmp_path / "dev.conllu").write_text("\n".join([rows] * 10))
    given = ("probe", "--all", "--model", tiny_run, "--tags", f"ud-pos={tmp_path}")
    result = firth(*given, "--out", tmp_path / "out")
    assert result.code == 0 and "  ud-pos     1.000  1.000  1.000  best 0" in result.out
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["models"][0]["layers"] == 2
    assert "expected a data set and its folder" in firth(*given[:4], "--tags", "x", "--out", tmp_path / "o").complaint
    assert "--model is missing" in firth("probe", "--all", "--out", tmp_path / "o").complaint
    twice = firth(*given, "--with", tiny_run, "--out", tmp_path / "o")
    assert twice.code == 2 and "is given twice" in twice.complaint
    assert "leave out --task" in firth(*given, "--task", "tag", "--out", tmp_path / "o").complaint
    assert "--tags, --with and --on are for --all" in firth("probe", "--tags", "a=b", "--out", tmp_path / "o").complaint
