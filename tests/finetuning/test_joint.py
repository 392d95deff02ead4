"""A joint model: the weight follows the members' quality, and the folder answers as its members do together."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import firth
from firth.baseline.config import JointConfig, TfidfConfig
from firth.cli import main
from firth.errors import CheckpointError
from firth.finetuning.baseline import resolve_baseline, run_baseline
from firth.finetuning.evaluate import evaluate
from firth.finetuning.finetune import finetune
from firth.finetuning.joint import fit_joint, fit_weight, keep_joint
from firth.finetuning.labelled import read_labelled
from firth.finetuning.recipe import LabelledConfig
from firth.inference.joint import Joint, log_odds, mixed
from firth.text.records import Text
from firth.version import firth_version

LABELS = ("in", "out")
CONFIG = TfidfConfig(kind="classify", labels=LABELS)


def logits(shares: list[float]) -> np.ndarray:
    return np.log(np.array([[share, 1 - share] for share in shares]))


def test_the_weight_goes_to_the_member_that_knows() -> None:
    gold = ["in", "out"] * 200
    held = [Text("a", label=label, where="t:1") for label in gold]
    knows = logits([0.9 if label == "in" else 0.1 for label in gold])
    guesses = logits([0.9 if number % 4 < 2 else 0.1 for number in range(400)])
    for encoder, tfidf, weight in ((knows, guesses, 1.0), (guesses, knows, 0.0)):
        config, loss = fit_weight(CONFIG, held, encoder, tfidf)
        assert abs(config.weight - weight) <= 0.1 and loss < 0.11


def test_few_examples_leave_the_weight_in_the_middle() -> None:
    held = [Text("a", label=label, where="t:1") for label in ("in", "out", "in")]
    config, _ = fit_weight(CONFIG, held, logits([0.7, 0.4, 0.4]), logits([0.6, 0.6, 0.7]))
    assert config.weight == 0.5
    one, _ = fit_weight(CONFIG, held[:1], logits([0.9]), logits([0.2]))
    assert one.weight == 0.5


def test_values_are_weighted_by_square_errors() -> None:
    held = [Text("a", label=float(n), where="t:1") for n in range(50)]
    right = np.arange(50.0)[:, None]
    config = TfidfConfig(kind="regress", lowest=0.0, highest=49.0)
    joint, loss = fit_weight(config, held, right[::-1].copy(), right)
    assert joint.weight == 0.0 and loss == 0 and joint.highest == 49.0
    assert mixed(right, -right, 0.75)[2, 0] == 1.0


@pytest.fixture(scope="module")
def members(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, LabelledConfig]:
    folder = tmp_path_factory.mktemp("members")
    verbs = {"open": "in", "scan": "in", "send": "out", "post": "out"}
    things = ("file", "folder", "disk", "letter", "page", "table", "door", "river")
    lines = [f"{verb} the {thing}\t{label}" for verb, label in verbs.items() for thing in things]
    (folder / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    data = {"train": str(folder / "t.tsv"), "held_out": 0.3}
    plain = {"model": "tfidf", "task": "classify", "data": data}
    run_baseline(resolve_baseline(plain, {}, "test"), folder / "tfidf", tell=lambda text: None)
    finetune(
        plain | {"model": str(tiny_run)},
        folder / "tuned",
        lambda text: None,
        settings={"train.epochs": 1.0, "train.precision": "float32"},
    )
    return folder / "tfidf", folder / "tuned", LabelledConfig(train=data["train"], held_out=0.3)


@pytest.fixture(scope="module")
def joint(members: tuple[Path, Path, LabelledConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tfidf, tuned, data = members
    fitted = fit_joint(tfidf, [tuned], read_labelled("classify", data, {}))
    out = tmp_path_factory.mktemp("joint") / "model"
    keep_joint(out, fitted, tfidf, {"recipe": {"task": "classify"}})
    return out


def test_a_joint_folder_answers_as_the_weighted_mean_of_its_members(
    joint: Path, members: tuple[Path, Path, LabelledConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    model = firth.load(joint)
    assert isinstance(model, firth.Baseline) and isinstance(model.method, Joint)
    texts = ["open the river", "post the page"]
    found = model.predict(texts)
    config = model.method.config
    scores = [log_odds(firth.load(path).predict(texts), config.labels) for path in (members[1], members[0])]
    shares = np.exp(mixed(*scores, config.weight) / config.temperature)  # type: ignore[call-arg, arg-type]
    shares /= shares.sum(1, keepdims=True)
    assert [[a.probabilities[label] for label in config.labels] for a in found] == pytest.approx(shares)
    assert main(["predict", str(joint), *texts]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == [a.label for a in found]


def test_a_joint_folder_says_which_firth_made_it(joint: Path) -> None:
    provenance = json.loads((joint / "firth.json").read_text("utf-8"))["provenance"]
    assert provenance["firth"] == firth_version() and provenance["recipe"] == {"task": "classify"}
    assert f'"firth": "{firth_version()}"' in (joint / "README.md").read_text("utf-8")


def test_a_joint_model_says_how_a_text_was_read(
    joint: Path, members: tuple[Path, Path, LabelledConfig], tmp_path: Path
) -> None:
    model, encoder, texts = firth.load(joint), firth.load(members[1]), ["open the river", "open the door " * 100]
    read = [(a.windows, a.cut) for a in encoder.predict(texts)]  # type: ignore[call-arg]
    assert read[1][0] > 1
    assert [(a.windows, a.cut) for a in model.predict(texts)] == read  # type: ignore[call-arg]
    noted = Counter[str]()
    list(model.answer_stream(map(Text, texts), noted=noted))  # type: ignore[union-attr]
    assert noted == {"read in windows": 1}
    (tmp_path / "t.tsv").write_text(f"text\tlabel\nopen the river\tin\n{texts[1]}\tout\n", "utf-8")
    assert "read in windows: 1 examples" in evaluate(joint, tmp_path / "t.tsv")["notes"]


def test_a_joint_model_is_served(joint: Path) -> None:
    from firth.serving.hosted import load_hosted

    hosted = load_hosted("j", joint, "float32", 0.0)
    assert hosted.abilities == {"predict"}
    job = hosted.predict(["open the river"])
    prepared = job.prepare()
    ((_, answer),) = prepared.answers(job.forward.run([row.work for row in prepared.rows]))
    assert answer.label == firth.load(joint).predict("open the river").label


def test_a_damaged_joint_folder_is_refused(joint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(joint, tmp_path / "j")
    (tmp_path / "j" / "tfidf" / "vocabulary.json").write_text("{}", "utf-8")
    with pytest.raises(CheckpointError, match=r"tfidf/vocabulary\.json"):
        firth.load(tmp_path / "j")
    assert main(["predict", str(joint), "a", "--with", str(joint)]) == 2
    assert "answers alone" in capsys.readouterr().err
    assert main(["predict", str(joint), "a", "--precision", "int8"]) == 2
    assert "joint model" in capsys.readouterr().err


def test_options_of_a_joint_model_are_checked() -> None:
    with pytest.raises(firth.errors.ConfigError, match="weight"):
        JointConfig(weight=1.5)
