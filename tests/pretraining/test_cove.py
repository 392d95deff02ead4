"""CoVe: from word vectors and parallel text to translations and features, and with other vocabularies."""

import errno
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firth.config import read_json
from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.errors import ConfigError, SaveError
from firth.export.convert import convert
from firth.folder import read_model
from firth.formats.table import open_model
from firth.inference.model import load_model
from firth.inference.translation_scores import evaluate_translation
from firth.inference.word_table import open_table
from firth.models.config import MtLstmConfig
from firth.models.mtlstm import MtLstm
from firth.pretraining.average import average
from firth.pretraining.run import pretrain, resolve, resume
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.vectors.fixed_words import fill_words
from firth.vectors.folder import convert_vectors

NAMES = ["red", "blue", "green", "one", "two", "cat", "dog", "house"]
WIDTH = 8
RECIPE: dict[str, Any] = {
    "model": "cove-small",
    "encoder": {"width": WIDTH, "hidden_width": 32, "dropout": 0.0},
    "objective": {"dropout": 0.0},
    "data": {"length": 24},
    "optim": {"learning_rate": 2e-2, "warmup_share": 0.1},
    "train": {
        "steps": 120,
        "batch_tokens": 480,
        "log_every": 40,
        "eval_every": 0,
        "save_every": 0,
        "precision": "float32",
    },
}


def lines_of(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.sample(NAMES, rng.randint(1, 3))) for _ in range(n)]


def vectors_file(path: Path, words: list[str], width: int = WIDTH) -> Path:
    rng = np.random.default_rng(0)
    rows = [" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=width))]) for word in words]
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corpus``, ``vectors.txt`` with all its words but "house", and ``run``, trained to copy lines."""
    made = tmp_path_factory.mktemp("cove")
    text = made / "text"
    text.write_text("\n".join(lines_of(800, 1)) + "\n", "utf-8")
    build_vocab([text], made / "vocab", size=len(NAMES) + 4, kind="words", lowercase=True, workers=1)
    prepare([text], made / "vocab", made / "corpus", second=[text], hold_out=0.0, workers=1)
    vectors_file(made / "vectors.txt", [name for name in NAMES if name != "house"] + ["river", "<unk>", "</s>", "<s>"])
    pretrain(recipe(made), made / "run", tell=lambda _: None)
    return made


def recipe(folder: Path, *settings: str) -> Any:
    given = [f"data.corpus={folder / 'corpus'}", f'vectors="{folder / "vectors.txt"}"', *settings]
    return resolve(RECIPE, given, "test")


def test_it_learns_to_translate_and_its_words_stay_as_they_were(folder: Path) -> None:
    model, lines = load_model(folder / "run"), lines_of(30, 2)
    for beam in (4, 1):
        right = [one == other for one, other in zip(model.translate(lines, beam=beam), lines, strict=True)]
        assert sum(right) >= 27
    assert model.translate(["", "RED blue"]) == ["", "red blue"]
    table, original = open_table(folder / "run"), open_table(converted(folder))
    for name in NAMES:
        row = table.rows[table.numbers[name]]
        assert not row.any() if name == "house" else torch.equal(row, original.rows[original.numbers[name]])
    assert not table.rows[: len(WORDS.specials)].any(), "special words are zeros, whatever the file has of them"


def converted(folder: Path) -> Path:
    out = folder / "vectors"
    if not out.exists():
        convert_vectors(folder / "vectors.txt", out)
    return out


def test_scores_and_the_mean_of_models(folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("\n".join(lines_of(20, 3)) + "\n", "utf-8")
    average([folder / "run", folder / "run"], tmp_path / "mean")
    assert evaluate_translation(tmp_path / "mean", str(lines), str(lines))["scores"]["chrf"] > 90


def test_features_of_words_and_layers(folder: Path) -> None:
    model = load_model(folder / "run")
    assert model.embed(["red blue"], layer=0).shape == (1, WIDTH)
    assert model.embed(["red blue"], layer=2).shape == (1, 64) == model.embed(["red blue"], pool="summary").shape
    # An unknown word is zeros; no special tokens surround the words.
    assert not model.embed(["spoon"], layer=0).any()
    text = model.embed(["", "red"])
    assert np.isfinite(text).all()


def test_a_folder_of_vectors_is_a_file_of_vectors(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "vocab")
    tables = []
    for source in (folder / "vectors.txt", converted(folder)):
        encoder = MtLstm(MtLstmConfig(vocab_size=tokenizer.size, width=WIDTH, hidden_width=4))
        said = fill_words(encoder, tokenizer, str(source))
        assert "vectors for 7 of the 8 words of the vocabulary; the others are zeros" in said
        tables.append(encoder.words)
    assert torch.equal(*tables)


def test_words_with_capitals_stand_for_those_in_lower_case(folder: Path, tmp_path: Path) -> None:
    """The first form with capitals counts, and only if the file has no lower-case form, before or after it."""
    tokenizer = Tokenizer.load(folder / "vocab")
    words = ["Red", "RED", "Blue", "blue", "cat", "Cat", "Spoon"]
    file = vectors_file(tmp_path / "v.txt", words)
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in file.read_text().splitlines()}
    encoder = MtLstm(MtLstmConfig(vocab_size=tokenizer.size, width=WIDTH, hidden_width=4))
    assert "vectors for 3 of the 8 words" in fill_words(encoder, tokenizer, str(file))
    for word, its in (("red", "Red"), ("blue", "blue"), ("cat", "cat")):
        assert encoder.words[tokenizer.pieces.index(word)].tolist() == pytest.approx(rows[its], abs=1e-6)


def test_fresh_words_are_asked_for(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--vectors PATH, or train them with --set encoder.fixed"):
        pretrain(recipe(folder, 'vectors=""'), tmp_path / "run", tell=lambda _: None)
    assert not (tmp_path / "run" / "recipe.toml").exists()
    learnt = recipe(folder, 'vectors=""', "encoder.fixed_words=false", "train.steps=2")
    assert pretrain(learnt, tmp_path / "learnt", tell=lambda _: None).finished
    assert read_model(tmp_path / "learnt").objective.encoder.words.requires_grad


@pytest.mark.parametrize(
    ("words", "width", "message"),
    [(NAMES, WIDTH + 1, "vectors of width 9, the encoder reads 8.*set encoder.width=9"), (["x"], WIDTH, "for none of")],
)
def test_vectors_that_do_not_suit(words: list[str], width: int, message: str, folder: Path, tmp_path: Path) -> None:
    file = vectors_file(tmp_path / "others.txt", words, width)
    with pytest.raises(ConfigError, match=message):
        pretrain(recipe(folder, f'vectors="{file}"'), tmp_path / "run", tell=lambda _: None)


def test_settings_that_do_not_belong(folder: Path, tiny_corpus: Path) -> None:
    with pytest.raises(ConfigError, match="bert takes no initial word vectors"):
        resolve({"model": "bert-tiny"}, [f"data.corpus={tiny_corpus}", 'vectors="x.txt"'], "test")
    with pytest.raises(ConfigError, match="objective.decoder=false"):
        recipe(folder, "objective.decoder=false")


def test_pieces_have_no_word_vectors(folder: Path, tiny_pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of whole words, the corpus has tokens of the kind WordPiece"):
        pretrain(recipe(folder, f"data.corpus={tiny_pairs}"), tmp_path / "run", tell=lambda _: None)


def test_going_on_keeps_words_and_new_ones_are_zeros(folder: Path, tmp_path: Path) -> None:
    """The text has another vocabulary. The vectors file is optional, and a resumed run does not need it."""
    text = tmp_path / "text"
    text.write_text("\n".join(f"{line} river" for line in lines_of(200, 4)) + "\n", "utf-8")
    build_vocab([text], tmp_path / "vocab", size=len(NAMES) + 5, kind="words", lowercase=True, workers=1)
    prepare([text], tmp_path / "vocab", tmp_path / "corpus", second=[text], hold_out=0.0, workers=1)
    heard: list[str] = []
    base = [f"model={folder / 'run'}", f"data.corpus={tmp_path / 'corpus'}", "train.steps=1"]
    data = {key: value for key, value in RECIPE.items() if key != "model"}
    pretrain(resolve(data, base, "test"), tmp_path / "run", heard.append)
    assert any("has 12 of the 13 words" in text for text in heard)
    old, new = open_table(folder / "run"), open_table(tmp_path / "run")
    for name in NAMES:
        assert torch.equal(new.rows[new.numbers[name]], old.rows[old.numbers[name]])
    assert not new.rows[new.numbers["river"]].any()
    pretrain(resolve(data, [*base, f'vectors="{folder / "vectors.txt"}"'], "test"), tmp_path / "given", heard.append)
    given = open_table(tmp_path / "given")
    assert given.rows[given.numbers["river"]].any()
    assert resume(tmp_path / "given", tell=lambda _: None).finished


def test_other_words_under_the_same_encoder(folder: Path, tmp_path: Path) -> None:
    file = vectors_file(tmp_path / "more.txt", [*NAMES, "spoon", "river", *WORDS.specials])
    done = convert(folder / "run", tmp_path / "wide", vectors=file)
    assert ("words", f"10 of {file}; any other is zeros") in [tuple(fact) for fact in done.facts]
    assert not open_table(tmp_path / "wide").rows[: len(WORDS.specials)].any()
    assert any(name == "left out" and "decoder" in value for name, value in done.facts)
    wide, old = load_model(tmp_path / "wide"), load_model(folder / "run")
    # Words in both files have equal vectors, so the same texts embed equally; other words are now known.
    known = vectors_file(tmp_path / "same.txt", NAMES)
    convert(folder / "run", tmp_path / "same", vectors=known)
    lines = ["red blue cat", "DOG", "two one"]
    same = load_model(tmp_path / "same").embed(lines)
    np.testing.assert_allclose(wide.embed(lines), same, atol=1e-6)
    assert wide.embed(["spoon"], layer=0).any() and not old.embed(["spoon"], layer=0).any()
    assert wide.loaded.tokenizer.lowercase
    with pytest.raises(ConfigError, match="only an encoder, does not translate"):
        wide.translate(["red"])
    about = read_json(tmp_path / "wide" / "firth.json")
    assert about["options"]["decoder"] is False and about["provenance"]["words"]["from"] == str(file)


def test_vectors_of_another_make_are_refused(folder: Path, tmp_path: Path) -> None:
    other = vectors_file(tmp_path / "other.txt", ["spoon", *NAMES])
    with pytest.raises(ConfigError, match=r"other.txt has another vector than the model for 7 of the 7 .*as '\w+'"):
        convert(folder / "run", tmp_path / "x", vectors=other)
    rounded = vectors_file(tmp_path / "few.txt", NAMES[:5])
    lines = [line.split() for line in rounded.read_text().splitlines()]
    rounded.write_text("".join(" ".join([w, *(f"{float(x):.3f}" for x in row)]) + "\n" for w, *row in lines))
    facts = dict(convert(folder / "run", tmp_path / "few", vectors=rounded).facts)
    assert facts["lacking"] == "2 of the 7 words that the model had vectors of: now zeros"


def test_training_goes_on_from_an_encoder_alone(folder: Path, tmp_path: Path) -> None:
    convert(folder / "run", tmp_path / "wide", vectors=folder / "vectors.txt")
    heard: list[str] = []
    data = {key: value for key, value in RECIPE.items() if key != "model"}
    base = [f"model={tmp_path / 'wide'}", f"data.corpus={folder / 'corpus'}", "train.steps=1"]
    pretrain(resolve(data, base, "test"), tmp_path / "run", heard.append)
    assert any("has no trained decoder." in text for text in heard)
    assert load_model(tmp_path / "run").translate([""]) == [""]


def test_the_released_file_over_vectors(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.LSTM(WIDTH, 6, 2, bidirectional=True)
    torch.save(module.state_dict(), tmp_path / "wmtlstm.pth")
    done = convert(tmp_path / "wmtlstm.pth", tmp_path / "cove", vectors=converted(folder))
    assert done.format == "cove"
    loaded = open_model(tmp_path / "cove")
    assert loaded.tokenizer.lowercase and loaded.objective.encoder.config.hidden_width == 6
    table = open_table(converted(folder))
    row = torch.stack([table.rows[table.numbers[name]] for name in ("red", "dog")])
    expected = module(row[:, None])[0][:, 0].mean(0).detach()
    np.testing.assert_allclose(load_model(tmp_path / "cove").embed("Red DOG"), expected, atol=1e-6)
    convert(tmp_path / "wmtlstm.pth", tmp_path / "cased", vectors=converted(folder), lowercase=False)
    assert not open_model(tmp_path / "cased").tokenizer.lowercase


def test_the_released_file_reads_words_between_blanks(folder: Path, tmp_path: Path) -> None:
    """Its vectors are for such words; a model trained by Firth keeps the tokenization rules of its own text."""
    torch.manual_seed(0)
    torch.save(nn.LSTM(WIDTH, 6, 2, bidirectional=True).state_dict(), tmp_path / "wmtlstm.pth")
    words = ["n't", "'s", "u.s.", "...", "is", "."]
    file = vectors_file(tmp_path / "glove.txt", [*NAMES, *words])
    done = convert(tmp_path / "wmtlstm.pth", tmp_path / "cove", vectors=file)
    assert ("text", "lower-cased, words as they stand between white space") in [tuple(fact) for fact in done.facts]
    tokenizer = open_model(tmp_path / "cove").tokenizer
    given = "Is n't U.S. 's ... ."
    assert [tokenizer.pieces[i] for i in tokenizer.encode(given).ids] == ["is", "n't", "u.s.", "'s", "...", "."]
    convert(folder / "run", tmp_path / "ours", vectors=file)
    ours = open_model(tmp_path / "ours").tokenizer
    assert [ours.pieces[i] for i in ours.encode("red.").ids] == ["red", "."]


def test_a_full_disk_is_that_of_the_new_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[Any]()

    def full(**options: Any) -> Any:
        places.append(options["dir"])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(SaveError, match=f"{tmp_path / 'new' / 'cove'} could not be written: the disk is full"):
        convert(folder / "run", tmp_path / "new" / "cove", vectors=folder / "vectors.txt")
    assert places == [tmp_path / "new"]


def test_vectors_are_not_for_a_model_with_its_own(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--vectors is for encoders that read word vectors as they are"):
        convert(converted(folder), tmp_path / "x", vectors=folder / "vectors.txt")
