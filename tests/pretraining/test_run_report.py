"""The report of a run: one file, made from the log."""

import shutil
from pathlib import Path

import pytest

from firth.data.shards import Corpus
from firth.export.convert import shortened
from firth.folder import PRETRAINING, read_model, write_model
from firth.pretraining import report as run_report
from firth.pretraining.report import short_sentence, write_run_report
from firth.pretraining.run import recipe_of
from firth.systems import SYSTEMS

pytestmark = pytest.mark.draws


def test_a_run_is_drawn_from_its_log(tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_bytes((tiny_run / "log.jsonl").read_bytes())
    page = write_run_report(tmp_path, recipe_of(tiny_run)).read_text()
    for part in ("masked LM: loss", "next sentence: accuracy", "Held-out text", "tokens/s", "learning_rate", "<svg"):
        assert part in page


def test_a_run_that_was_stopped_at_once_has_a_report_too(tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_text("")
    assert "Recipe" in write_run_report(tmp_path, recipe_of(tiny_run)).read_text()


def test_heads_are_drawn_over_a_held_out_sentence(tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_text("")
    corpus, recipe = Corpus(tiny_corpus), recipe_of(tiny_run)
    # Without a model there is no attention to show.
    assert "Attention of each head" not in write_run_report(tmp_path, recipe, corpus).read_text()
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    page = write_run_report(tmp_path, recipe, corpus).read_text()
    assert "Attention of each head on a held-out sentence" in page and "data:image/png;base64," in page
    # Nor does a model without heads have any.
    row, tokenizer = SYSTEMS["lstm"], corpus.tokenizer
    encoder = row.encoder(row.config(vocab_size=tokenizer.size, width=8, n_layers=1))
    lstm = row.objective(encoder, row.objective_config())
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", "lstm", PRETRAINING, lstm, tokenizer, {})
    assert "Attention of each head" not in write_run_report(tmp_path, recipe, corpus).read_text()


def test_a_model_of_few_positions_looks_at_a_shorter_sentence(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_text("")
    corpus, asked = Corpus(tiny_corpus), []
    monkeypatch.setattr(run_report, "short_sentence", lambda corpus, most: asked.append(most))
    short = shortened(read_model(tiny_run), 12).objective
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", "bert", PRETRAINING, short, corpus.tokenizer, {})
    write_run_report(tmp_path, recipe_of(tiny_run), corpus)
    assert asked == [12 - 2]


def test_the_sentence_is_one_of_the_corpus(tiny_corpus: Path) -> None:
    corpus = Corpus(tiny_corpus)
    found = short_sentence(corpus, 18)
    assert found is not None and 8 <= len(found) <= 18
    shard = corpus.open(corpus.shards("dev")[0])
    sentences = [shard.ids[a:b].tolist() for a, b in zip(shard.sentences, shard.sentences[1:], strict=False)]
    assert found == next(ids for ids in sentences if 8 <= len(ids) <= 18)
    assert short_sentence(corpus, 7) is None
