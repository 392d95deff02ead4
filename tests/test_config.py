"""Dataclasses to TOML or JSON and back: strict, and helpful about unknown keys."""

import datetime
import math
import os
import re
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.config import (
    AMOUNT,
    COUNT,
    FRACTION,
    PART,
    POSITIVE,
    RATE,
    SHARE,
    Bounds,
    check_bounds,
    from_dict,
    option,
    override,
    parse_override,
    read_json,
    read_toml,
    required,
    to_dict,
    to_toml,
    unknown_key,
)
from firth.data.config import DataConfig, MaskingConfig
from firth.errors import ConfigError, InputError
from firth.files import write_json, write_text
from firth.finetuning.recipe import Finetune
from firth.models.config import BertConfig, GptConfig, LstmConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig, StreamingLMConfig
from firth.option_names import FOREIGN_FINETUNING_KEYS, FOREIGN_KEYS, RENAMED_KEYS
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.systems import SYSTEMS
from firth.tasks.config import NETWORKS, ClassifyConfig
from firth.tasks.table import TASKS
from firth.training.config import OptimConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = option(0.5, "of change", AMOUNT)
    kind: Literal["a", "b"] = option("a", "which")
    names: tuple[str, ...] = option((), "some")

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: int = required("how many")
    flag: bool = option(False, "whether")
    label: str | None = option(None, "a name")
    inner: Inner = option(Inner(), "the rest")


def outer(**data: Any) -> Outer:
    return from_dict(Outer, data, "x.toml")


def test_plain_data_to_dataclass() -> None:
    assert outer(size=3) == Outer(size=3)
    made = outer(size=3, flag=True, label="l", inner={"rate": 1, "names": ["p", "q"]})
    assert made == Outer(size=3, flag=True, label="l", inner=Inner(rate=1.0, names=("p", "q")))
    assert type(made.inner.rate) is float
    assert outer(size=3, inner=Inner(kind="b")).inner.kind == "b"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "x.toml: key 'size' is missing"),
        ({"size": "3"}, "x.toml: size = '3': expected int"),
        ({"size": 3.0}, "size = 3.0: expected int"),
        ({"size": True}, "size = True: expected int"),
        ({"size": None}, "size = None: expected int"),
        ({"size": 3, "flag": 1}, "flag = 1: expected bool"),
        ({"size": 3, "label": 4}, "label = 4: expected str"),
        ({"size": 3, "inner": 4}, "inner must be a table of keys, not 4"),
        ({"size": 3, "inner": {"rate": True}}, "inner.rate = True: expected float"),
        ({"size": 3, "inner": {"rate": "fast"}}, "inner.rate = 'fast': expected float"),
        ({"size": 3, "inner": {"rate": math.nan}}, "inner.rate = nan: expected a finite number"),
        ({"size": 3, "inner": {"rate": -math.inf}}, "inner.rate = -inf: expected a finite number"),
        ({"size": 3, "inner": {"kind": "c"}}, "inner.kind = 'c': expected one of 'a', 'b'"),
        ({"size": 3, "inner": {"kind": []}}, "inner.kind = []: expected one of 'a', 'b'"),
        ({"size": 3, "inner": {"names": "pq"}}, "inner.names = 'pq': expected tuple"),
        ({"size": 3, "inner": {"names": ["p", 2]}}, "inner.names[1] = 2: expected str"),
        ({"size": 3, "inner": {"rate": -1}}, "x.toml: rate=-1.0: expected 0 or more"),
        ({"size": datetime.date(2018, 10, 11)}, "expected int"),
    ],
)
def test_ill_typed_values_are_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        outer(**data)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", sorted(RENAMED_KEYS))
def test_a_former_key_is_an_error_that_says_its_name_now(key: str) -> None:
    error = str(unknown_key(key, ["optim.kind"], "x.toml"))
    assert error == f"x.toml: unknown key {key!r}: it is now called {RENAMED_KEYS[key]!r}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"siez": 3}, "x.toml: unknown key 'siez': did you mean 'size'?"),
        ({"size": 3, "inner": {"rat": 1}}, "unknown key 'inner.rat': did you mean 'inner.rate'?"),
        ({"size": 3, "zzzzz": 1}, "unknown key 'zzzzz'. Known keys: flag, inner, label, size"),
        (
            {"size": 3, "inner": {"learning_rate": 1}},
            "unknown key 'inner.learning_rate': here it is 'optim.learning_rate'",
        ),
    ],
)
def test_unknown_keys_name_the_nearest(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        outer(**data)
    assert message in str(caught.value)


def test_foreign_names_lead_to_keys_that_exist() -> None:
    tables = {
        "data": DataConfig,
        "masking": MaskingConfig,
        "optim": OptimConfig,
        "train": TrainConfig,
        "encoder": BertConfig,
    }
    for foreign, ours in FOREIGN_KEYS.items():
        if ours.startswith("--"):
            continue
        table, key = ours.split(".")
        known = {f.name for f in fields(tables[table])}
        if table == "encoder":
            known |= {f.name for f in fields(GptConfig)}
        assert key in known, foreign


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_foreign_names_lead_to_keys_of_every_fine_tuning(kind: str) -> None:
    for foreign, ours in FOREIGN_FINETUNING_KEYS.items():
        tables: list[Any] = [Finetune]
        for name in [] if ours.startswith("--") else ours.split("."):
            found = [table for table in tables if name in {f.name for f in fields(table)}]
            assert found, foreign
            kinds = [TASKS[kind].config] if name == "head" else [get_type_hints(table)[name] for table in found]
            # A table may be one of several; the table of a network may be one that another kind of task has.
            tables = [one for each in kinds for one in (get_args(each) or (each,)) if is_dataclass(one)]
            tables = [*NETWORKS] if name == "network" else tables


def test_a_key_that_a_system_does_not_have_is_not_named() -> None:
    message = "unknown key 'encoder.attn_pdrop': "
    with pytest.raises(ConfigError, match=f"{message}here it is 'encoder.attention_dropout'"):
        from_dict(BertConfig, {"attn_pdrop": 0.1}, "x", prefix="encoder.")
    with pytest.raises(ConfigError, match=f"{message}did you mean"):
        from_dict(LstmConfig, {"attn_pdrop": 0.1}, "x", prefix="encoder.")


def test_every_option_of_a_recipe_has_a_comment() -> None:
    for cls in (
        Pretrain,
        DataConfig,
        MaskingConfig,
        OptimConfig,
        TrainConfig,
        BertConfig,
        LstmConfig,
        MaskedLMConfig,
        ClassifyConfig,
    ):
        assert [f.name for f in fields(cls) if not f.metadata.get("comment")] == []


POSITIVES = st.floats(1e-6, 1e3)
SHARES = st.floats(0, 0.99)
DATA = st.builds(
    DataConfig,
    corpus=st.text(st.characters(codec="utf-8"), max_size=12),
    length=st.integers(8, 512),
    long_length=st.sampled_from([0, 512]),
    long_share=SHARES,
    short_share=SHARES,
    duplicates=st.integers(0, 9),
    workers=st.integers(0, 9),
)
MASKING = st.builds(
    MaskingConfig,
    share=st.floats(0.01, 1),
    max_predictions=st.integers(0, 99),
    mask=st.floats(0, 0.5),
    keep=st.floats(0, 0.5),
    whole_words=st.booleans(),
)
OPTIM = st.builds(
    OptimConfig,
    kind=st.sampled_from(["bert_adam", "adamw"]),
    learning_rate=POSITIVES,
    warmup_share=st.floats(0, 1),
    decay=SHARES,
    beta1=SHARES,
    beta2=SHARES,
    epsilon=POSITIVES,
    clip_norm=SHARES,
)
TRAIN = st.builds(
    TrainConfig,
    steps=st.integers(1, 10**7),
    batch_tokens=st.integers(1, 10**6),
    precision=st.sampled_from(["auto", "float32", "bfloat16"]),
    eval_every=st.integers(0, 10**4),
    seed=st.integers(0, 2**40),
    tensorboard=st.booleans(),
)
ENCODERS = {
    "bert": st.builds(
        BertConfig,
        vocab_size=st.integers(1, 10**6),
        width=st.just(768),
        n_heads=st.sampled_from([1, 12]),
        n_layers=st.integers(1, 48),
        max_positions=st.just(512),
        activation=st.sampled_from(["gelu", "gelu_tanh", "relu"]),
        dropout=SHARES,
        attention_dropout=SHARES,
        init_range=POSITIVES,
    ),
    "lstm": st.builds(LstmConfig, vocab_size=st.integers(1, 10**6), width=st.integers(1, 4096), dropout=SHARES),
}
RECIPES = st.one_of(
    st.builds(
        Pretrain,
        model=st.just("bert-tiny"),
        system=st.just("bert"),
        data=DATA,
        masking=MASKING,
        objective=st.builds(MaskedLMConfig),
        encoder=ENCODERS["bert"],
        optim=OPTIM,
        train=TRAIN,
    ),
    st.builds(
        Pretrain,
        model=st.just("lstm-small"),
        system=st.just("lstm"),
        data=st.builds(DataConfig, instances=st.just("streams"), length=st.integers(8, 99)),
        masking=MASKING,
        objective=st.builds(StreamingLMConfig),
        encoder=ENCODERS["lstm"],
        optim=OPTIM,
        train=TRAIN,
    ),
)


@settings(max_examples=60)
@given(recipe=RECIPES, comments=st.booleans())
def test_recipes_there_and_back(tmp_path_factory: pytest.TempPathFactory, recipe: Pretrain, comments: bool) -> None:
    """Written as TOML, with and without comments; read by the types themselves and by the recipe reader."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    write_text(path, to_toml(recipe, comments=comments))
    data = read_toml(path)
    row = SYSTEMS[recipe.system]
    kinds = {"encoder": row.config, "objective": row.objective_config}
    assert from_dict(Pretrain, data, "recipe", kinds=kinds) == recipe
    assert read_recipe(data, [], "recipe") == recipe


def settings_of(data: dict[str, Any], prefix: str = "") -> list[str]:
    """Every leaf as ``a.b=c``."""
    found = []
    for key, value in data.items():
        if isinstance(value, dict):
            found += settings_of(value, f"{prefix}{key}.")
        else:
            shown = str(value).lower() if isinstance(value, bool) else value
            found.append(f"{prefix}{key}={shown!r}" if isinstance(value, str) else f"{prefix}{key}={shown}")
    return found


@settings(max_examples=40)
@given(recipe=RECIPES)
def test_a_recipe_can_be_given_by_settings_alone(recipe: Pretrain) -> None:
    recipe = replace(recipe, data=replace(recipe.data, corpus="c"))
    assert read_recipe({}, settings_of(to_dict(recipe)), "--set") == recipe


@pytest.mark.parametrize(
    "config",
    [CausalLMConfig(), ClassifyConfig(labels=("a = b", '"[x]"', "한국어", "new\nline"), label_smoothing=0.25)],
)
def test_odd_values_there_and_back(tmp_path: Path, config: Any) -> None:
    for comments in (False, True):
        write_text(tmp_path / "x.toml", to_toml(config, comments=comments))
        assert from_dict(type(config), read_toml(tmp_path / "x.toml"), "x") == config


def test_none_is_left_out() -> None:
    assert to_dict(Outer(size=1)) == {
        "size": 1,
        "flag": False,
        "inner": {"rate": 0.5, "kind": "a", "names": []},
    }


def test_comments_stand_beside_their_keys() -> None:
    text = to_toml(Outer(size=1), comments=True)
    assert "size = 1  # how many\n" in text
    assert "rate = 0.5  # of change\n" in text
    assert "#" not in to_toml(Outer(size=1))


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train.steps=100", ["train", "steps"], 100),
        ("optim.learning_rate=1e-4", ["optim", "learning_rate"], 1e-4),
        ("a=true", ["a"], True),
        ("a=bert", ["a"], "bert"),
        ("a='1'", ["a"], "1"),
        ('a=["x", "y"]', ["a"], ["x", "y"]),
        ("a=x=y", ["a"], "x=y"),
        ("a=", ["a"], ""),
        ("a.b.c=/tmp/x y", ["a", "b", "c"], "/tmp/x y"),
    ],
)
def test_settings_are_typed(text: str, path: list[str], value: Any) -> None:
    found, got = parse_override(text)
    assert (found, got, type(got)) == (path, value, type(value))


@pytest.mark.parametrize("text", ["train.steps", "=3", "", "  =3"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_override(text)


def test_settings_lie_over_data_in_order_and_leave_it_alone() -> None:
    data = {"train": {"steps": 1, "seed": 2}}
    assert override(data, "train.steps=7") == override(data, ["train.steps=7"])
    assert override(data, ["train.steps=5", "new.deep.key=x", "train.steps=6"]) == {
        "train": {"steps": 6, "seed": 2},
        "new": {"deep": {"key": "x"}},
    }
    assert data == {"train": {"steps": 1, "seed": 2}}
    with pytest.raises(ConfigError, match="'steps' is a value, not a table"):
        override(data, ["train.steps.more=1"])


def test_a_date_in_a_recipe_is_an_error_like_others(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("model = 'bert-tiny'\n[train]\nsteps = 2018-10-11\n")
    with pytest.raises(ConfigError, match="train.steps = .*expected int"):
        read_recipe(read_toml(tmp_path / "r.toml"), ["train.seed=1"], "r.toml", vocab_size=10)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"a = \n", r"not valid TOML: .*line 1"), (b"\xff", "not valid TOML")],
)
def test_broken_toml_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "r.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_toml(tmp_path / "r.toml")


def test_a_byte_order_mark_before_toml_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbfsystem = 'bert'\n")
    assert read_toml(tmp_path / "r.toml") == {"system": "bert"}


def test_missing_recipes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such recipe file"):
        read_toml(tmp_path / "r.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_toml(tmp_path)


def test_json_there_and_back(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"이름": [1, None]})
    assert read_json(tmp_path / "x.json") == {"이름": [1, None]}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    for data, message in ((b"[1]", "expected a JSON object, found list"), (b"{", "cannot be read as JSON")):
        (tmp_path / "x.json").write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_json(tmp_path / "x.json")
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "y.json")
    os.mkfifo(tmp_path / "pipe.json")  # opening it would wait for a writer
    with pytest.raises(InputError, match=r"pipe\.json: cannot be read: not a regular file"):
        read_json(tmp_path / "pipe.json")


def test_a_recipe_may_come_from_another_command_but_from_no_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match=r"pipe\.toml: cannot be read: not a regular file"):
        read_toml(tmp_path / "pipe.toml")
    read, write = os.pipe()  # as <(command) in a shell makes one
    try:
        os.write(write, b"seed = 3\n")
        os.close(write)
        assert read_toml(Path(f"/dev/fd/{read}")) == {"seed": 3}
    finally:
        os.close(read)


def test_a_file_that_is_too_long_for_what_it_says_is_not_read(tmp_path: Path) -> None:
    """A sparse file takes no disk space, but reading it would fill the memory."""
    for name, read in (("x.json", read_json), ("x.toml", read_toml)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2**28 + 1)
        with pytest.raises((InputError, ConfigError), match="268,435,456"):
            read(tmp_path / name)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "x", "new \ud800")
    assert (tmp_path / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_defaults_must_be_immutable() -> None:
    with pytest.raises(TypeError, match="immutable"):
        option([], "x")


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (COUNT, (1, 7), (0, -1)),
        (AMOUNT, (0, 1e9), (-1, math.inf, math.nan)),
        (POSITIVE, (1e-9, 3), (0, -1, math.inf, math.nan)),
        (SHARE, (0, 1), (-0.1, 1.1, math.nan)),
        (PART, (0.1, 1), (0, 1.1, math.nan)),
        (FRACTION, (0.1, 0.9), (0, 1, math.nan)),
        (RATE, (0, 0.9), (1, -0.1, math.nan)),
    ],
)
def test_numbers_outside_their_bounds_are_named(
    bounds: Bounds, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    def checked(value: float | None) -> None:
        check_bounds(make_dataclass("Made", [("x", float, option(value, "a number", bounds))])(), "optim")

    for value in (*inside, None):
        checked(value)
    for value in outside:
        with pytest.raises(ConfigError, match=re.escape(f"optim.x={value}: expected {bounds.text}")):
            checked(value)


DIGITS = "9" * 5000
BRACKETS = "[" * 2000 + "]" * 2000


@pytest.mark.parametrize("text", [f"model = {BRACKETS}", f"seed = {DIGITS}", f"a = {'[' * 100}{']' * 100}"])
def test_nesting_and_digits_of_a_file_are_bounded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.toml: not valid TOML: (nested more than|Exceeds the limit)"):
        read_toml(path)


@pytest.mark.parametrize("text", [f"model={BRACKETS}", f"train.seed={DIGITS}"])
def test_nesting_and_digits_of_a_setting_are_bounded(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set (model|train\.seed): (nested more than|Exceeds the limit)"):
        parse_override(text)


@pytest.mark.parametrize("text", [f'{{"a": {BRACKETS}}}', f'{{"a": {DIGITS}}}', f'{{"a": {"[" * 100}{"]" * 100}}}'])
def test_nesting_and_digits_of_json_are_bounded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json: cannot be read as JSON"):
        read_json(path)


@pytest.mark.parametrize("key", ["width", "n_layers", "init_range", "norm_epsilon"])
@pytest.mark.parametrize("number", [9999999999999999999998, -(10**25)])
def test_numbers_that_no_machine_has_are_named(key: str, number: int) -> None:
    with pytest.raises(ConfigError, match=f"test: {key}: expected a whole number below 2"):
        from_dict(BertConfig, {"vocab_size": 10, key: number}, "test")


@pytest.mark.parametrize("setting", [{"width": 10**12}, {"n_layers": 99999999999}, {"feed_forward_width": 10**7}])
def test_sizes_are_bounded_so_that_the_memory_of_a_model_can_be_told(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected at least 1 and at most"):
        from_dict(BertConfig, {"vocab_size": 10, **setting}, "test")
