"""Sharding of the weights across torchrun processes: as requested, or by the available memory."""

from pathlib import Path

import pytest
from test_length import recipe_with

from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.pretraining import several
from firth.pretraining.recipe import read_recipe
from firth.pretraining.several import Sharding, with_sharding
from firth.training.collectives import World
from firth.training.processes import Group


@pytest.mark.parametrize(
    ("free", "compiled", "sharded", "said"),
    [(1e12, False, False, ""), (1e6, False, True, "sharding full: all of it takes"), (1e6, True, False, "set it to")],
)
def test_auto_divides_what_one_process_cannot_hold(
    free: float, compiled: bool, sharded: bool, said: str, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "free_memory", lambda device: free)
    monkeypatch.setattr(several, "any_rank", lambda flag, world: flag)
    heard: list[str] = []
    found = with_sharding(recipe_with(tiny_corpus, compile=compiled), World(0, 2), "auto", heard.append)
    assert found.sharded is sharded and found.size == 2
    assert said in "".join(heard) and bool(said) == bool(heard)


@pytest.mark.parametrize(
    ("free", "given", "asked", "sharded", "recompute"),
    [
        # BERT-base takes 1.8 GB; with a micro-batch of 32,768 tokens 34 GB, or 17 GB if blocks are recomputed.
        (1e12, False, "auto", False, False),
        (2.4e10, False, "auto", True, True),
        (2.4e10, False, "full", True, True),
        (1e12, False, "full", True, False),
        (2.4e10, True, "auto", False, False),
        (2.4e10, False, "none", False, False),
    ],
)
def test_blocks_are_recomputed_where_shares_are_not_enough(
    free: float,
    given: bool,
    asked: Sharding,
    sharded: bool,
    recompute: bool,
    tiny_corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(several, "free_memory", lambda device: free)
    monkeypatch.setattr(several, "any_rank", lambda flag, world: flag)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    size = Corpus(tiny_corpus).tokenizer.size
    data = {"model": "bert-base", "data": {"corpus": str(tiny_corpus)}, "train": {"recompute": given}}
    settings = ("train.batch_tokens=32768", "train.micro_batches=2", "train.precision=float32")
    recipe = read_recipe(data, settings, "test", vocab_size=size)
    heard: list[str] = []
    found = with_sharding(recipe, World(0, 2), asked, heard.append)
    assert (found.sharded, found.recompute) == (sharded, recompute)
    assert any("blocks are recomputed" in text for text in heard) is recompute
    with_sharding(recipe, World(1, 2), asked, pytest.fail)  # only the leading process reports


def test_crops_are_not_divided_among_so_many_that_few_are_compared(tiny_corpus: Path) -> None:
    plain = {
        "model": "bert-tiny",
        "data": {"corpus": str(tiny_corpus), "instances": "crops", "length": 64},
        "train": {"batch_tokens": 8192},
    }
    recipe = several.for_processes(read_recipe(plain, (), "test", vocab_size=100), 32)
    assert (recipe.train.micro_batches, recipe.train.batch_tokens) == (2, 4096)


def test_full_is_refused_where_it_cannot_be(tiny_corpus: Path) -> None:
    recipe = recipe_with(tiny_corpus, compile=True)
    with pytest.raises(ConfigError, match="train.compile=true does not work"):
        with_sharding(recipe, World(0, 2), "full", lambda text: None)
    with pytest.raises(ConfigError, match="always share one copy"):
        with_sharding(recipe, World(0, 2, Group.__new__(Group)), "full", lambda text: None)
    assert not with_sharding(recipe, World(), "auto", lambda text: None).sharded
