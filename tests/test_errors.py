"""Messages that quote untrusted files are short and safe for a terminal."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from published_folders import encoder_alone, masked, publish, weights

from firth.errors import CheckpointError, ConfigError, FirthError, InputError, printable
from firth.formats.table import open_model
from firth.progress import say

EVIL = "a\x1b[2J\x07\x9b\u202eb"
SAFE = "a\\x1b[2J\\x07\\x9b\\u202eb"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable(EVIL) == SAFE
    assert printable("tab\tend\r\n") == "tab\\tend\\r\n"
    assert printable("\udc80") == "\\udc80"
    assert printable("한국어 é 😀 \u200b") == "한국어 é 😀 \u200b"
    assert str(ConfigError(EVIL)) == SAFE
    # An error nested in another is escaped once.
    assert str(InputError(f"x: {ConfigError(EVIL)}")) == f"x: {SAFE}"
    assert str(pickle.loads(pickle.dumps(ConfigError(EVIL)))) == SAFE


@pytest.mark.parametrize("field", ["x" * 250_000, repr("x y " * 60_000), "x y " * 60_000])
def test_a_field_of_any_length_leaves_a_short_message(field: str) -> None:
    found = str(FirthError(f"file.json: {field}: expected a number"))
    assert len(found) < 2_100 and found.startswith("file.json: ") and found.endswith(": expected a number")
    assert " … (2" in found and " characters) … " in found
    if not field.endswith(" "):
        assert len(found) < 400


def test_a_long_message_of_short_fields_stays_whole() -> None:
    text = "expected one of " + ", ".join(f"'label-{i}'" for i in range(100))
    assert str(FirthError(text)) == text


def test_say(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    assert capsys.readouterr().err == SAFE + "\n"


def test_names_in_published_folders(tmp_path: Path) -> None:
    """Tensor names, parts, types and labels of a hostile folder."""
    strange = publish(tmp_path / "a", weights(masked()) | {EVIL: torch.zeros(1), "y" * 10_000: torch.zeros(1)})
    modules = publish(tmp_path / "b", encoder_alone(masked()))
    (modules / "modules.json").write_text(json.dumps([{"type": EVIL, "path": ""}]))
    typed = publish(tmp_path / "c", weights(masked()), model_type=EVIL * 1000)
    for folder in (strange, modules, typed):
        with pytest.raises(CheckpointError) as caught:
            open_model(folder)
        assert str(caught.value).isprintable() and "x1b" in str(caught.value) and len(str(caught.value)) < 1_500
