"""Labels that may be wrong."""

from firth.baseline.config import GramConfig, TfidfConfig
from firth.finetuning.label_check import label_suspects
from firth.text.records import Text

CONFIG = TfidfConfig(kind="classify", labels=("a", "b"), grams=GramConfig(words=1, longest=0), strength=3.0)


def records(common: int, rare: int) -> list[Text]:
    """Texts of a common and a rare label, which a word of each hints at."""
    ours = [Text(f"good w{n % 7} v{n % 11} n{n}", label="a", where=f"a{n}") for n in range(common)]
    return ours + [Text(f"bad w{n % 7} v{n % 11} m{n}", label="b", where=f"b{n}") for n in range(rare)]


def test_a_wrong_label_is_found_and_a_rare_one_is_not_doubted_for_being_rare() -> None:
    plain = records(90, 8)
    found = label_suspects([*plain, Text("good w1 v1 good", label="b", where="wrong")], CONFIG)
    assert found[0].where == "wrong" and found[0].predicted == "a" and found[0].probability < 0.5
    doubted = {suspect.where for suspect in found} & {record.where for record in plain if record.label == "b"}
    assert len(doubted) < 4, doubted


def test_a_label_without_examples_is_never_suggested() -> None:
    config = TfidfConfig(kind="classify", labels=("a", "b", "c"), grams=CONFIG.grams, strength=3.0)
    wrong = Text("good w1 v1 good", label="b", where="wrong")
    assert {suspect.predicted for suspect in label_suspects([*records(20, 20), wrong], config)} == {"a"}
