"""Contrastive learning on crops: the loss against plain PyTorch, the crops, and embeddings of a trained model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import firth
from firth.cli import main
from firth.data.batch import Batch, Target
from firth.data.instances import plan_crops
from firth.errors import ConfigError
from firth.folder import read_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.contrastive import Contrastive, bert_objective, contrast
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Rows, Tokens
from firth.pretraining.recipe import read_recipe

SIZES = BertConfig(vocab_size=29, width=8, n_layers=2, n_heads=2, feed_forward_width=16, max_positions=16)


def small_flags(settings: Sequence[str]) -> list[str]:
    return [text for setting in settings for text in ("--set", setting)]


CONFIG = MaskedLMConfig(next_sentence=False, contrastive=True, temperature=0.2)


def test_the_loss_is_that_of_plain_torch() -> None:
    torch.manual_seed(0)
    made = bert_objective(Bert(SIZES), CONFIG).eval()
    assert isinstance(made, Contrastive)
    rows = Rows.from_lengths([4, 6, 3, 5])
    tokens = Tokens(rows, torch.randint(29, (18,)), torch.zeros(18, dtype=torch.int64))
    partner = torch.tensor([2, 3, 0, 1])
    step = made(Batch(tokens, {"contrast": Target(torch.arange(4), partner)}))
    means = torch.stack([part.mean(0) for part in made.encoder(tokens).top.split([4, 6, 3, 5])])
    expected, right = torch.zeros(()), 0
    for i in range(4):
        others = [j for j in range(4) if j != i]
        scores = torch.stack([F.cosine_similarity(means[i], means[j], dim=0) for j in others]) / 0.2
        expected = expected - scores.log_softmax(0)[others.index(int(partner[i]))]
        right += others[int(scores.argmax())] == partner[i]
    torch.testing.assert_close(step.losses["contrast"], expected)
    assert int(step.correct["contrast"]) == right
    step.losses["contrast"].backward()
    assert all(p.grad is None for p in made.mlm.parameters())
    assert made.encoder.embeddings.pieces.weight.grad is not None


def test_equal_crops_among_orthogonal_ones_cost_next_to_nothing() -> None:
    vectors = torch.eye(3).repeat(2, 1) * 7
    loss, correct = contrast(vectors, torch.tensor([3, 4, 5, 0, 1, 2]), 0.05)
    assert float(loss) < 1e-6 and int(correct) == 6


def test_crops_lie_in_their_text_and_differ_by_epoch() -> None:
    bounds = np.cumsum([0, 9, 40, 300])
    crops = plan_crops(bounds, 30, seed=1, epoch=0)
    owners = [np.searchsorted(bounds, side[:, 0], "right") for side in (crops.a, crops.b)]
    assert (owners[0] == owners[1]).all() and 1 not in owners[0]  # nine tokens are too few
    for side, owner in zip((crops.a, crops.b), owners, strict=True):
        sizes = side[:, 1] - side[:, 0]
        assert (side[:, 1] <= bounds[owner]).all() and (sizes >= 2).all() and (sizes <= 30).all()
    assert (crops.a != crops.b).any()
    again = plan_crops(bounds, 30, seed=1, epoch=0)
    assert (again.a == crops.a).all() and (again.b == crops.b).all()
    other = plan_crops(bounds, 30, seed=1, epoch=1)
    assert other.a.shape != crops.a.shape or (other.a != crops.a).any()


def test_a_model_continues_with_crops_and_embeds_by_them(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", tiny_run, "--corpus", tiny_corpus, "--out", tmp_path / "c", "--objective", "contrastive"]
    small = ("train.batch_tokens=256", "data.length=32", "train.precision=float32", "train.eval_every=2")
    assert main(["pretrain", *map(str, flags), "--steps", "4", *small_flags(small)]) == 0
    capsys.readouterr()
    model = firth.load(tmp_path / "c")
    assert isinstance(model, firth.Model) and isinstance(model.loaded.objective, MaskedLM)
    vectors = model.embed(["the queen walked to the river", "before winter"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
    # The sentence-transformers export normalises too.
    assert main(["convert", str(tmp_path / "c"), "--as", "st", "--out", str(tmp_path / "st")]) == 0
    assert "Normalize" in (tmp_path / "st" / "modules.json").read_text("utf-8")


def test_a_head_that_was_never_trained_is_not_asked(
    tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "c"
    flags = ["--model", "bert-tiny", "--corpus", tiny_corpus, "--out", run, "--objective", "contrastive", "--steps", 2]
    small = ("train.batch_tokens=256", "data.length=32", "train.precision=float32", "train.eval_every=1")
    assert main(["pretrain", *map(str, flags), *small_flags(small)]) == 0
    assert read_model(run).untrained == ("mlm",)
    capsys.readouterr()
    assert main(["fill-mask", str(run), "a [MASK] b"]) == 2
    assert "masked" in capsys.readouterr().err
    # A further stage leaves the head as it is.
    flags = ["--model", run, "--corpus", tiny_corpus, "--out", tmp_path / "d", *flags[6:]]
    assert main(["pretrain", *map(str, flags), *small_flags(small)]) == 0
    assert read_model(tmp_path / "d").untrained == ("mlm",)


def test_options_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    plain = {"model": "bert-tiny", "data": {"corpus": str(tmp_path)}}
    with pytest.raises(ConfigError, match="belong together"):
        read_recipe(plain, ["objective.contrastive=true", "data.instances=documents"], "flags", vocab_size=100)
    with pytest.raises(ConfigError, match="belong together"):
        read_recipe(plain, ["objective.contrastive=false", "data.instances=crops"], "flags", vocab_size=100)
    with pytest.raises(ConfigError, match="replaces next-sentence"):
        MaskedLMConfig(contrastive=True)
    with pytest.raises(ConfigError, match="does not suit gpt"):
        read_recipe(plain | {"model": "gpt-tiny"}, ["data.instances=crops"], "flags", vocab_size=100)
