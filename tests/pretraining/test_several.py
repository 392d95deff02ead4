"""Whether processes under torchrun divide the weights: as asked, or by the memory there is."""

from pathlib import Path

import pytest
from test_length import recipe_with

from firth.errors import ConfigError
from firth.pretraining import several
from firth.pretraining.several import with_sharding
from firth.training.distributed import World
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


def test_full_is_refused_where_it_cannot_be(tiny_corpus: Path) -> None:
    recipe = recipe_with(tiny_corpus, compile=True)
    with pytest.raises(ConfigError, match="train.compile=true does not work"):
        with_sharding(recipe, World(0, 2), "full", lambda text: None)
    with pytest.raises(ConfigError, match="always share one copy"):
        with_sharding(recipe, World(0, 2, Group.__new__(Group)), "full", lambda text: None)
    assert not with_sharding(recipe, World(), "auto", lambda text: None).sharded
