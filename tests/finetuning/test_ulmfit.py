"""ULMFiT's three stages as the commands run them, and what each of them relies on."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.config import read_toml
from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.data.batch import Objective
from firth.data.loader import Place
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.finetuning import runs as job
from firth.finetuning.base import gradually, make_model
from firth.finetuning.finetune import run_resolved
from firth.finetuning.recipe import with_defaults
from firth.finetuning.resolve import Resolved, resolve
from firth.finetuning.train import Run, split_of, tune
from firth.folder import PRETRAINING, Loaded, read_model
from firth.machine import find_machine
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.objectives.awd_lm import AwdLM
from firth.objectives.config import AwdLMConfig
from firth.pretraining.assembly import make_loader
from firth.pretraining.run import pretrain
from firth.pretraining.run import resolve as resolve_pretraining
from firth.pretraining.vocabulary_transfer import has_other_words, makes_same_words, weights_for_words
from firth.text.fastai_words import tokenizer_of_fastai
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.training import trainer
from firth.training.layer_rates import layer_scales
from firth.training.log import read_log

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731  # reports nothing
SIZES = ["encoder.width=16", "encoder.hidden_width=20", "encoder.n_layers=2"]
STEPS = [
    "train.steps=6",
    "train.batch_tokens=128",
    "train.eval_every=3",
    "train.save_every=3",
    "train.log_every=1",
    "train.precision=float32",
    "data.length=16",
]


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here; the report has tests of its own."""
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


def corpus(text: Path, size: int, out: Path) -> Path:
    """A corpus of words."""
    build_vocab([text], out / "vocab", size=size, kind="words", lowercase=True, workers=1)
    prepare([text], out / "vocab", out / "corpus", hold_out=0.1, workers=1)
    return out / "corpus"


@pytest.fixture(scope="module")
def general(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of general text: run, vocabulary and corpus side by side."""
    folder = tmp_path_factory.mktemp("general")
    recipe = resolve_pretraining(
        {"model": "awd-lstm-tiny"}, [*SIZES, *STEPS, f"data.corpus={corpus(tiny_text, 60, folder)}"], "t"
    )
    pretrain(recipe, folder / "run", tell=QUIET)
    return folder / "run"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled texts; one word determines the label."""
    rng, rows = random.Random(1), ["text\tlabel"]
    for i in range(48):
        label, words = (("river", "walked to the river"), ("winter", "wrote before winter"))[i % 2]
        rows.append(f"{rng.choice(['our teacher', 'the queen', 'the baker'])} {words}{'.' * (i // 2 % 3)}\t{label}")
    path = tmp_path_factory.mktemp("labelled") / "t.tsv"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def test_the_published_settings_are_the_default(general: Path) -> None:
    recipe = read_toml(general / "recipe.toml")
    assert recipe["data"]["instances"] == "streams" and recipe["optim"]["schedule"] == "slanted"
    assert (recipe["optim"]["beta1"], recipe["optim"]["beta2"], recipe["optim"]["learning_rate"]) == (0.7, 0.99, 4e-3)
    assert (recipe["objective"]["activation"], recipe["objective"]["change"]) == (2.0, 1.0)
    events = read_log(general / "log.jsonl")
    train = [event for event in events if event["event"] == "train"]
    assert train and all(event["activation_loss"] > 0 and event["change_loss"] > 0 for event in train)
    for event in train:
        total = event["lm_loss"] + 2 * event["activation_loss"] + event["change_loss"]
        assert event["loss"] == pytest.approx(total, rel=1e-6)
        assert "activation_accuracy" not in event
    dev = [event for event in events if event["event"] == "dev"]
    assert dev and all(event["loss"] == event["lm_loss"] and "change_loss" not in event for event in dev)


def test_the_three_stages(general: Path, labelled: Path, tiny_text: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text(tiny_text.read_text("utf-8").replace("farmer", "gardener").replace("wrote", "scribbled"), "utf-8")
    told: list[str] = []
    recipe = resolve_pretraining(
        {"model": str(general)},
        [
            *STEPS,
            "train.layer_decay=0.3846",
            "encoder.input_dropout=0.25",
            f"data.corpus={corpus(target, 70, tmp_path / 'target')}",
        ],
        "t",
    )
    assert recipe.encoder.vocab_size == 70 and recipe.encoder.width == 16 and recipe.encoder.input_dropout == 0.25
    pretrain(recipe, tmp_path / "lm", tell=told.append)
    assert any(
        "of the 70 words of the corpus's vocabulary; the others are initialised with the mean" in text for text in told
    )
    assert not any("split differently" in text for text in told)
    before, after = read_model(general), read_model(tmp_path / "lm")
    assert after.tokenizer.size == 70 and after.tokenizer.kind is WORDS
    # Six steps at most at 4e-3 / 2.6²: the rows have hardly moved.
    rows = {piece: i for i, piece in enumerate(before.tokenizer.pieces)}
    shared = [piece for piece in after.tokenizer.pieces if piece in rows]
    assert len(shared) > 40
    ours = after.objective.encoder.piece_embedding[[after.tokenizer.pieces.index(piece) for piece in shared]]
    theirs = before.objective.encoder.piece_embedding[[rows[piece] for piece in shared]]
    assert 0 < float((ours - theirs).detach().abs().max()) < 6 * 4e-3 / 2.6**2 * 4

    plain = {"task": "classify", "model": str(tmp_path / "lm"), "data": {"train": str(labelled)}}
    settings = ["train.precision=float32", "train.batch_examples=8", "train.epochs=4"]
    recipe, base, read = resolve(plain, settings, "t")
    assert recipe.adapt.unfreeze == "gradual" and recipe.adapt.layer_decay == pytest.approx(1 / 2.6)
    assert (recipe.optim.learning_rate, recipe.optim.schedule) == (0.01, "slanted")
    assert (recipe.head.network.dropout, recipe.head.network.hidden_width) == (0.4, 50)
    run_resolved(Resolved(recipe, base, read), tmp_path / "out", tell=QUIET)
    classifier = read_model(tmp_path / "out")
    assert classifier.objective.head.hidden.weight.shape == (50, 48)
    assert classifier.objective.head.output.weight.shape == (2, 50)
    # Statistics of several epochs, not the initial ones.
    assert not torch.allclose(classifier.objective.head.norm.running_var, torch.ones(48))


@pytest.mark.parametrize("width", [0, 50])
def test_a_frozen_language_model_is_read_once(general: Path, labelled: Path, tmp_path: Path, width: int) -> None:
    plain = {"task": "classify", "model": str(general), "data": {"train": str(labelled)}}
    settings = [
        "adapt.frozen_groups=-1",
        f"head.network.hidden_width={width}",
        "train.epochs=1",
        "train.precision=float32",
    ]
    run_resolved(resolve(plain, settings, "t"), tmp_path / "out", tell=QUIET)
    before, after = (read_model(path).objective.encoder.state_dict() for path in (general, tmp_path / "out"))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_backward_model_learns_the_word_before(general: Path, tmp_path: Path) -> None:
    folder = general.parent / "corpus"
    settings = [*SIZES, *STEPS, f"data.corpus={folder}"]
    there = resolve_pretraining({"model": "awd-lstm-tiny"}, settings, "t")
    back = resolve_pretraining({"model": "awd-lstm-tiny"}, [*settings, "encoder.backward=true"], "t")
    ahead, behind = (make_loader(recipe, Corpus(folder)).batch_at(Place()) for recipe in (there, back))
    tokenizer = Corpus(folder).tokenizer
    assert int(ahead.tokens.ids[0]) == tokenizer.start_id, "each document of a stream begins with the start piece"
    length = int(ahead.tokens.rows.lengths[0])
    ids, label = (x.view(-1, length) for x in (behind.tokens.ids, behind.targets["lm"].label))
    assert torch.equal(label[:, 1:], ids[:, :-1]), "in reading order, each predicts the one before"
    pretrain(back, tmp_path / "run", tell=QUIET)
    assert read_model(tmp_path / "run").objective.encoder.config.backward


def loaded(pieces: list[str]) -> Loaded:
    torch.manual_seed(len(pieces))
    encoder = AwdLstm(AwdLstmConfig(vocab_size=len(pieces), width=3, hidden_width=4, n_layers=1))
    objective = AwdLM(encoder, AwdLMConfig())
    torch.nn.init.normal_(objective.bias)
    return Loaded("awd-lstm", PRETRAINING, objective, Tokenizer.from_words(pieces, lowercase=False))


SPECIALS = list(WORDS.specials)


def test_words_keep_their_rows_and_new_ones_get_the_mean() -> None:
    old = loaded([*SPECIALS, "a", "b", "c"])
    tokenizer = Tokenizer.from_words([*SPECIALS, "c", "x", "a"], lowercase=False)
    assert has_other_words(old, tokenizer) and not has_other_words(old, old.tokenizer)
    state, n_new = weights_for_words(old, tokenizer)
    assert n_new == 1
    before = old.objective.state_dict()
    for name in ("encoder.embeddings.weight", "bias"):
        rows = before[name]
        assert torch.equal(state[name][:4], rows[:4]), "special pieces are words too"
        assert torch.equal(state[name][[4, 6]], rows[[6, 4]])
        torch.testing.assert_close(state[name][5], rows.mean(0))
    assert all(torch.equal(state[name], before[name]) for name in before if ".layers." in name)


def test_text_that_is_read_in_another_way_is_said(general: Path, tiny_text: Path, tmp_path: Path) -> None:
    """A released model has rules of its own (fastai's capital markers), which a new vocabulary does not have."""
    ours = read_model(general).tokenizer
    rules = tokenizer_of_fastai(["xxunk", "xxpad", "xxbos", "xxmaj", *ours.pieces[10:40]], "t")[0]
    assert makes_same_words(ours, ours) and not makes_same_words(ours, rules)
    rules.save(tmp_path / "vocab")
    prepare([tiny_text], tmp_path / "vocab", tmp_path / "corpus", hold_out=0.1, workers=1)
    settings = [*STEPS, f"data.corpus={tmp_path / 'corpus'}"]
    told: list[str] = []
    pretrain(resolve_pretraining({"model": str(general)}, settings, "t"), tmp_path / "lm", tell=told.append)
    assert any("split differently from the corpus" in text for text in told)


def test_another_vocabulary_of_pieces_is_still_refused(tiny_run: Path, general: Path, tmp_path: Path) -> None:
    folder = general.parent / "corpus"
    with pytest.raises(ConfigError, match="vocab"):
        recipe = resolve_pretraining({"model": str(tiny_run)}, [f"data.corpus={folder}", *STEPS], "t")
        pretrain(recipe, tmp_path / "x", tell=QUIET)


def test_rates_fall_from_the_top_group_down() -> None:
    objective = loaded([*SPECIALS, "a"]).objective
    groups = {"encoder.embeddings.weight": 1, "encoder.layers.0.weight_hh_l0": 0}
    scales = layer_scales(objective, 1 / 2.6, below=0)
    assert {name: scales[name] for name in groups} == {name: pytest.approx(2.6**-n) for name, n in groups.items()}
    assert "bias" not in scales
    scales = layer_scales(objective, 0.5, below=1)
    assert {name: scales[name] for name in groups} == {name: 0.5 ** (n + 1) for name, n in groups.items()}


def a_run(model: Path, labelled: Path, folder: Path, *settings: str) -> Run:
    plain = {"task": "classify", "model": str(model), "data": {"train": str(labelled)}}
    common = ["train.precision=float32", "train.batch_examples=8", "train.evaluations_per_epoch=1"]
    recipe, base, read = resolve(plain, [*common, *settings], "t")
    train, held = split_of(base, recipe, read.train).examples, split_of(base, recipe, read.held)
    return Run(base, recipe, 1, train, held, find_machine("float32"), folder / "features")


def groups_of(model: Objective) -> list[list[Tensor]]:
    return [[p.detach().clone() for p in group] for group in model.encoder.layer_groups()]


@pytest.mark.parametrize("kind", ["awd-lstm", "bert"])
def test_one_group_more_learns_in_each_epoch(
    kind: str, general: Path, tiny_run: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen groups are not even decayed, and the optimizer holds no state for them. The head learns in all steps,
    its norms too: gains, shifts and running statistics."""
    made = a_run(
        general if kind == "awd-lstm" else tiny_run,
        labelled,
        tmp_path,
        "adapt.unfreeze=gradual",
        "train.epochs=6",
        "optim.decay=0.1",
        "optim.warmup_share=0",
        "optim.schedule=constant",
    )
    moved: list[list[bool]] = []
    step = trainer.Trainer.train_step

    def watched(self: trainer.Trainer, batches: Any) -> dict[str, float]:
        before, head = groups_of(self.objective), copy.deepcopy(self.objective.head.state_dict())
        sums = step(self, batches)
        after = groups_of(self.objective)
        assert any("running_mean" in name for name in head) == (kind == "awd-lstm")
        for name, tensor in self.objective.head.state_dict().items():
            assert not torch.equal(tensor, head[name]), name
        moved.append([not all(map(torch.equal, *pair)) for pair in zip(before, after, strict=True)])
        held = {id(p) for p in self.optimizer.state}
        for group, ever in zip(self.objective.encoder.layer_groups(), map(any, zip(*moved, strict=True)), strict=True):
            assert ever or not held & {id(p) for p in group}
        return sums

    monkeypatch.setattr(trainer.Trainer, "train_step", watched)
    tune(made, tmp_path / "run", QUIET)
    n_groups = len(moved[0])
    for number, groups in enumerate(moved):
        epoch = number // made.per_epoch
        assert groups == [group >= n_groups - epoch for group in range(n_groups)], number


def test_gradual_unfreezing_goes_on_bit_for_bit(
    general: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle of unfreezing, a run continues as if it had not been stopped."""
    settings = ("train.epochs=5",)
    tune(a_run(general, labelled, tmp_path, *settings), tmp_path / "whole", QUIET)
    stop_at = 2 * a_run(general, labelled, tmp_path, *settings).per_epoch
    original = trainer.Trainer._done
    monkeypatch.setattr(trainer.Trainer, "_done", lambda self: original(self) or self.state.step == stop_at)
    with pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(trainer.Trainer, "fit", _stopping(trainer.Trainer.fit))
        tune(a_run(general, labelled, tmp_path, *settings), tmp_path / "parts", QUIET)
    monkeypatch.undo()
    assert not (tmp_path / "parts" / "result.json").exists()
    tune(a_run(general, labelled, tmp_path, *settings), tmp_path / "parts", QUIET)
    one, other = (read_log(tmp_path / name / "log.jsonl") for name in ("whole", "parts"))
    plain = [{k: v for k, v in e.items() if not k.endswith(("_s", "time"))} for e in (*one, *other)]
    assert plain[: len(one)] == plain[len(one) :]
    ours, theirs = (read_model(tmp_path / name / "model").objective.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def _stopping(fit: Callable[[trainer.Trainer], bool]) -> Callable[[trainer.Trainer], bool]:
    def stopped(self: trainer.Trainer) -> bool:
        fit(self)
        return False

    return stopped


def test_too_few_epochs_for_all_groups_are_told(general: Path, labelled: Path, tmp_path: Path) -> None:
    told: list[str] = []
    tune(a_run(general, labelled, tmp_path, "train.epochs=2"), tmp_path / "run", told.append)
    assert "adapt.unfreeze='gradual': 5 encoder tensors stay frozen in so few epochs" in told


def test_what_rests_in_which_step(general: Path, labelled: Path, tmp_path: Path) -> None:
    made = a_run(general, labelled, tmp_path)
    model = make_model(made.base, made.recipe, 1)
    resting = gradually(model, 3)
    assert [len(resting(step)) for step in (0, 2, 3, 6, 8, 9, 50)] == [9, 9, 5, 1, 1, 0, 0]
    assert resting(6) == {"encoder.embeddings.weight"}
    assert not any(name.startswith("head") for name in resting(0))


def test_a_frozen_encoder_is_not_thawed(general: Path, labelled: Path, tmp_path: Path) -> None:
    plain = {"head": {}, "adapt": {"frozen_groups": -1}, "optim": {}, "train": {}, "data": {}}
    assert with_defaults(plain, "awd-lstm", "classify", 16, n_train=5000, documents=False)["adapt"] == {
        "frozen_groups": -1
    }
    recipe = {"task": "classify", "model": str(general), "data": {"train": str(labelled)}}
    with pytest.raises(ConfigError, match=r"leave out adapt\.dropout, layer_decay and unfreeze"):
        resolved = resolve(recipe, ["adapt.frozen_groups=-1", "adapt.unfreeze=gradual"], "t")
        run_resolved(resolved, tmp_path / "out", QUIET)


def test_dropout_of_fine_tuning_is_in_proportion(general: Path, labelled: Path, tmp_path: Path) -> None:
    made = a_run(general, labelled, tmp_path, "adapt.dropout=0.2")
    config = make_model(made.base, made.recipe, 1).encoder.config
    assert (config.input_dropout, config.weight_dropout) == pytest.approx((0.2, 0.25))
    assert config.vocab_size == 60
