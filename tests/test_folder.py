"""Model folders of every system: what was written is read back, and every mismatch is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from network_options import network_of
from tiny_language_models import tiny_language_model
from torch import nn

from firth import folder as folder_module
from firth.errors import CheckpointError, ConfigError, TokenizerError
from firth.files import write_folder
from firth.folder import PRETRAINING, find_model, read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    WindowConfig,
)
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS
from firth.training.checkpoint import load_tensors, save_tensors

PIECES = [*SPECIALS, "the", "cat", "##s", "고양이"]
BERT_SIZES = {"width": 8, "n_layers": 2, "n_heads": 2, "feed_forward_width": 12, "max_positions": 16}


def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(PIECES, lowercase=True)


def pretraining(system_name: str, **options: Any) -> nn.Module:
    system = SYSTEMS[system_name]
    sizes = BERT_SIZES if system_name.startswith("bert") else {"width": 8, "n_layers": 2}
    if system_name == "gpt":
        sizes = {"width": 8, "n_layers": 2, "n_heads": 2, "max_positions": 16, "embedding_dropout": 0.3}
    torch.manual_seed(0)
    config = system.config(vocab_size=len(PIECES), **sizes, **system.fixed)
    return system.objective(system.encoder(config), system.objective_config(**options)).eval()


def classifier() -> Classifier:
    torch.manual_seed(0)
    config = ClassifyConfig(labels=("나쁨", "good"), network=network_of(dropout=0.25))
    return Classifier(Bert(BertConfig(vocab_size=len(PIECES), **BERT_SIZES)), config).eval()


# Options that differ from the defaults wherever a task has such options.
_FEATURES = network_of(layers=(-1, 0), mix="scalar", lstm_layers=1, lstm_width=4)
_WINDOWS = WindowConfig(length=12, stride=3, long="cut", merge="max")
TASK_OPTIONS: dict[str, Any] = {
    "classify": ClassifyConfig(
        labels=("나쁨", "good"),
        label_smoothing=0.1,
        class_weights=(1.0, 2.5),
        temperature=1.5,
        network=replace(_FEATURES, pool="mean"),
    ),
    "multilabel": MultiLabelConfig(labels=("a",), threshold=0.35, windows=_WINDOWS),
    "regress": RegressConfig(lowest=-1.5, highest=5.0, windows=_WINDOWS),
    "tag": TagConfig(
        labels=("O", "B-X", "I-X", "E-X", "S-X"),
        scheme="BIOES",
        unit="character",
        crf=True,
        network=replace(_FEATURES, words="last"),
    ),
    "answer": AnswerConfig(
        can_refuse=True,
        mark_shared_words=True,
        threshold=-2.25,
        n_best=5,
        windows=WindowConfig(length=12, stride=3),
        network=_FEATURES,
    ),
    "choose": ChooseConfig(temperature=0.5, network=network_of(dropout=0.3)),
}


def fine_tuned(task: str, options: Any) -> nn.Module:
    torch.manual_seed(0)
    return TASKS[task].model(Bert(BertConfig(vocab_size=len(PIECES), **BERT_SIZES)), options).eval()


def written(folder: Path, system: str = "bert", objective: nn.Module | None = None, task: str = PRETRAINING) -> Path:
    folder.mkdir(parents=True)
    made = objective if objective is not None else pretraining(system)
    write_model(folder, system, task, made, tokenizer(), {"seed": 5, "이름": "값"})
    return folder


@pytest.mark.parametrize(
    ("system", "make", "task"),
    [
        ("bert", lambda: pretraining("bert"), PRETRAINING),
        ("bert", lambda: pretraining("bert", next_sentence=False), PRETRAINING),
        ("bert-ltr", lambda: pretraining("bert-ltr"), PRETRAINING),
        ("gpt", lambda: pretraining("gpt"), PRETRAINING),
        ("lstm", lambda: pretraining("lstm"), PRETRAINING),
        ("bert", classifier, "classify"),
    ],
)
def test_what_was_written_is_read(tmp_path: Path, system: str, make: Callable[[], nn.Module], task: str) -> None:
    objective = make()
    loaded = read_model(written(tmp_path / "m", system, objective, task))
    assert (loaded.system_name, loaded.task) == (system, task)
    assert type(loaded.objective) is type(objective) and not loaded.objective.training
    assert loaded.objective.config == objective.config
    assert loaded.objective.encoder.config == objective.encoder.config
    found, expected = loaded.objective.state_dict(), objective.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert loaded.tokenizer.fingerprint == tokenizer().fingerprint
    assert (loaded.provenance["seed"], loaded.provenance["이름"]) == (5, "값")
    assert {"firth", "torch", "python"} <= set(loaded.provenance)
    assert loaded.max_length == (None if system == "lstm" else 16)


@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_is_read_with_all_its_options(tmp_path: Path, task: str) -> None:
    objective = fine_tuned(task, TASK_OPTIONS[task])
    loaded = read_model(written(tmp_path / "m", "bert", objective, task))
    assert loaded.task == task and type(loaded.objective) is type(objective)
    assert loaded.objective.config == TASK_OPTIONS[task]
    found, expected = loaded.objective.state_dict(), objective.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("task", "options", "architecture"),
    [
        ("classify", ClassifyConfig(labels=("n", "y")), "BertForSequenceClassification"),
        ("tag", TagConfig(labels=("O", "B-X")), "BertForTokenClassification"),
        ("answer", AnswerConfig(), "BertForQuestionAnswering"),
        ("choose", ChooseConfig(windows=_WINDOWS), "BertForMultipleChoice"),
        # What no other tool computes is stored under our own names, so that no tool misreads it.
        ("tag", TagConfig(labels=("O", "B-X"), crf=True), None),
        ("tag", TagConfig(labels=("O", "B-X"), network=network_of(mix="scalar")), None),
        ("tag", TagConfig(labels=("O", "B-X"), network=network_of(words="mean")), None),
        ("answer", AnswerConfig(network=network_of(layers=(-2,))), None),
        ("answer", AnswerConfig(mark_shared_words=True), None),
        ("classify", ClassifyConfig(labels=("n", "y"), network=network_of(pool="mean")), None),
    ],
)
def test_only_published_heads_have_the_names_of_other_tools(
    tmp_path: Path, task: str, options: Any, architecture: str | None
) -> None:
    folder = written(tmp_path / "m", "bert", fine_tuned(task, options), task)
    config = json.loads((folder / "config.json").read_text())
    names = set(load_tensors(folder / "model.safetensors"))
    if architecture is None:
        assert config["model_type"] == "firth-bert" and "architectures" not in config
        assert "head.weight" in names and not [n for n in names if n.startswith("bert.")]
    else:
        assert (config["model_type"], config["architectures"]) == ("bert", [architecture])
        assert "bert.pooler.dense.weight" in names and "head.weight" not in names
        # Their question-answering head has no dropout.
        assert config.get("classifier_dropout") == (None if task == "answer" else 0.1)
    assert read_model(folder).objective.config == options


def test_a_gpt_speaks_the_words_of_other_tools_until_it_is_fine_tuned(tmp_path: Path) -> None:
    folder = written(tmp_path / "m", "gpt")
    config, names = json.loads((folder / "config.json").read_text()), load_tensors(folder / "model.safetensors")
    assert (config["model_type"], config["architectures"]) == ("openai-gpt", ["OpenAIGPTLMHeadModel"])
    assert (config["n_embd"], config["n_head"], config["afn"], config["embd_pdrop"]) == (8, 2, "gelu", 0.3)
    assert all(name.startswith("transformer.") for name in names) and len(names) == 2 + 12 * 2
    assert "AutoModel" in (folder / "README.md").read_text()
    encoder = pretraining("gpt").encoder
    tuned = written(tmp_path / "c", "gpt", Classifier(encoder, ClassifyConfig(labels=("n", "y"))), "classify")
    assert json.loads((tuned / "config.json").read_text())["model_type"] == "firth-gpt"
    assert "encoder.embeddings.pieces.weight" in load_tensors(tuned / "model.safetensors")
    assert read_model(tuned).objective.encoder.config == encoder.config


def test_files_of_a_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "m", objective=classifier(), task="classify")
    expected = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "firth.json",
        "README.md",
    }
    assert {p.name for p in folder.iterdir()} == expected
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "나쁨", "1": "good"}
    assert config["classifier_dropout"] == 0.25
    assert config["label2id"] == {"나쁨": 0, "good": 1}
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 16
    assert "bert" in (folder / "README.md").read_text()


def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    names = set(load_tensors(written(tmp_path / "m") / "model.safetensors"))
    assert "bert.embeddings.word_embeddings.weight" in names
    assert not [name for name in names if "decoder" in name]


def test_reading_draws_no_weights(tmp_path: Path) -> None:
    written(tmp_path / "m")
    before = torch.get_rng_state()
    made = read_model(tmp_path / "m").objective
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(parameter.is_meta or not parameter.requires_grad for parameter in made.parameters())


def test_weights_that_are_shared_stay_shared(tmp_path: Path) -> None:
    model = pretraining("bert")
    written(tmp_path / "m", objective=model)
    shared = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    read = read_model(tmp_path / "m").objective
    assert [name for name, _ in read.named_parameters(remove_duplicate=False)] == shared
    assert len(list(read.parameters())) == len(list(model.parameters()))


def test_a_run_folder_means_its_model(tmp_path: Path) -> None:
    written(tmp_path / "run" / "model")
    assert find_model(tmp_path / "run") == tmp_path / "run" / "model"
    assert find_model(str(tmp_path / "run" / "model")) == tmp_path / "run" / "model"


def test_a_folder_that_a_kill_left_aside_is_read_where_it_is(tmp_path: Path) -> None:
    written(tmp_path / "run" / ".model.old")
    assert find_model(tmp_path / "run") == tmp_path / "run" / ".model.old"


def test_a_folder_written_whole_reads_with_its_manifest(tmp_path: Path) -> None:
    write_folder(
        tmp_path / "m",
        lambda folder: write_model(folder, "bert", PRETRAINING, pretraining("bert"), tokenizer(), {}),
    )
    assert read_model(tmp_path / "m").system_name == "bert"


def test_a_tokenizer_of_another_model_is_refused_though_its_size_fits(tmp_path: Path) -> None:
    write_folder(
        tmp_path / "m",
        lambda folder: write_model(folder, "bert", PRETRAINING, pretraining("bert"), tokenizer(), {}),
    )
    path = tmp_path / "m" / "tokenizer.json"
    other = json.loads(path.read_text("utf-8"))
    *_, last, first = other["model"]["vocab"]
    pieces = other["model"]["vocab"]
    pieces[last], pieces[first] = pieces[first], pieces[last]
    path.write_text(json.dumps(other), "utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_model(tmp_path / "m")


def whole_model(folder: Path) -> None:
    write_folder(
        folder,
        lambda new: write_model(new, "bert", "classify", classifier(), tokenizer(), {}),
    )


@pytest.mark.parametrize("name", ["firth.json", "vocab.txt", "tokenizer_config.json", "config.json"])
def test_every_file_that_changes_an_answer_is_covered(tmp_path: Path, name: str) -> None:
    whole_model(tmp_path / "m")
    path = tmp_path / "m" / name
    path.write_bytes(path.read_bytes().replace("나쁨".encode(), b"good") + b" ")
    with pytest.raises(CheckpointError, match=rf"{name} does not match its checksum: it is damaged or was edited"):
        read_model(tmp_path / "m")


@pytest.mark.parametrize("temperature", [1.0, 1.625])
def test_the_card_says_that_other_tools_do_not_know_the_temperature(tmp_path: Path, temperature: float) -> None:
    model = classifier()
    model.config = replace(model.config, temperature=temperature)
    write_folder(tmp_path / "m", lambda folder: write_model(folder, "bert", "classify", model, tokenizer(), {}))
    card = (tmp_path / "m" / "README.md").read_text("utf-8")
    assert ("divided by the temperature 1.625" in card) == (temperature != 1.0)
    assert ("`firth convert folder --as hf`" in card) == (temperature != 1.0)


def test_a_model_card_may_be_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_model(tmp_path / "m")
    (tmp_path / "m" / "README.md").write_text("For reviews of films.")
    assert read_model(tmp_path / "m").task == "classify"
    assert capsys.readouterr().err == ""


def test_what_an_older_manifest_leaves_open_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_model(tmp_path / "m")
    manifest = tmp_path / "m" / "manifest.json"
    files = json.loads(manifest.read_text())
    del files["firth.json"], files["vocab.txt"]
    manifest.write_text(json.dumps(files))
    assert read_model(tmp_path / "m").task == "classify"
    assert "manifest.json does not cover firth.json, vocab.txt" in capsys.readouterr().err
    manifest.unlink()
    assert read_model(tmp_path / "m").task == "classify"
    said = capsys.readouterr().err
    assert "does not cover model.safetensors" in said and said.count("\n") == 1


@pytest.mark.parametrize("moment", ["tokenizer.json", "model.safetensors", "firth.json"])
def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Neither half of the older model nor a mixture of both is returned."""
    run = tmp_path / "run"
    models = [classifier(), classifier()]
    for p in models[1].parameters():
        p.data.add_(1.0)

    def replace_model(new: nn.Module) -> None:
        write_folder(run / "model", lambda folder: write_model(folder, "bert", "classify", new, tokenizer(), {}))

    replace_model(models[0])
    check, n_checks = folder_module.check_folder, 0

    def replaced(folder: Path, skip: str = "") -> None:
        nonlocal n_checks
        check(folder, skip)
        n_checks += 1
        if n_checks == 1:
            replace_model(models[1])
            if moment != "firth.json":  # as when the older folder is being deleted
                shutil.copytree(folder, folder.with_name(".model.old"))
                (folder.with_name(".model.old") / moment).unlink()

    monkeypatch.setattr(folder_module, "check_folder", replaced)
    found = read_model(run).objective.state_dict()
    assert n_checks == 2
    assert all(torch.equal(found[name], tensor) for name, tensor in models[1].state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 10**12}, "at most 1,000,000"),
        ({"num_hidden_layers": 99999999999}, "at most 1,000"),
        ({"hidden_size": 100_000, "num_attention_heads": 1}, r"config\.json implies [\d,]+ numbers"),
        ({"vocab_size": 2_000_000_000}, "vocab_size|tokens"),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_made(
    tmp_path: Path, change: dict[str, int], message: str
) -> None:
    folder = written(tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        read_model(folder)


def test_a_model_beyond_the_free_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "m")
    monkeypatch.setattr(folder_module, "free_memory", lambda device: 100.0)
    with pytest.raises(CheckpointError, match="needs 0.0 GB of memory, and 0.0 GB are free"):
        read_model(folder)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such model folder"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"is not a model folder: it has no config\.json"):
        read_model(tmp_path)
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(CheckpointError, match="without a model yet: let it train, or firth pretrain --resume"):
        read_model(tmp_path)
    (tmp_path / "identity.json").touch()
    with pytest.raises(CheckpointError, match="without a model yet: let it train, or firth finetune --resume"):
        read_model(tmp_path)


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("firth.json", {"version": 99}, "version 99, this Firth reads 'firth-model' version 1"),
        ("firth.json", {"format": "x"}, "has layout 'x'"),
        ("firth.json", {"system": "word2vec"}, "system 'word2vec', task 'pretraining' are not known"),
        ("firth.json", {"system": None}, "not known"),
        ("firth.json", {"task": "dance"}, "not known"),
        ("firth.json", {"options": {"surprise": 1}}, "unknown key 'surprise'"),
        ("firth.json", {"options": {"next_sentence": "yes"}}, "expected bool"),
        ("firth.json", {"options": [1]}, "cannot be read as a model"),
        ("config.json", {"hidden_size": 10}, r"has shape .*, expected"),
        ("config.json", {"hidden_size": 9}, "width=9 is not a multiple of n_heads=2"),
        ("config.json", {"hidden_size": "8"}, "cannot be read as a model"),
        ("config.json", {"num_hidden_layers": 3}, r"lacks .*layer\.2"),
        ("config.json", {"num_hidden_layers": 1}, r"unknown .*layer\.1"),
        ("config.json", {"vocab_size": 10}, "the tokenizer has 9 tokens, the model 10"),
        ("config.json", {"hidden_act": "swish"}, "hidden_act 'swish'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, file: str, changes: dict[str, Any], message: str) -> None:
    folder = written(tmp_path / "m")
    edit(folder, file, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_model(folder)


@pytest.mark.parametrize("file", ["firth.json", "config.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_broken_page_is_named(tmp_path: Path, file: str, data: bytes) -> None:
    folder = written(tmp_path / "m")
    (folder / file).write_bytes(data)
    with pytest.raises(CheckpointError, match=file):
        read_model(folder)


@pytest.mark.parametrize("file", ["firth.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    folder = written(tmp_path / "m")
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        read_model(folder)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "m")
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink()
    with pytest.raises(TokenizerError, match="neither"):
        read_model(folder)


def test_weights_are_read_strictly(tmp_path: Path) -> None:
    folder = written(tmp_path / "m")
    path = folder / "model.safetensors"
    state = load_tensors(path)
    for change, message in (
        ({"extra": torch.zeros(1)}, "unknown extra"),
        ({"bert.pooler.dense.weight": torch.zeros(2, 2)}, r"bert\.pooler\.dense\.weight has shape \(2, 2\)"),
    ):
        save_tensors(path, state | change)
        with pytest.raises(CheckpointError, match=message):
            read_model(folder)
    without = {name: tensor for name, tensor in state.items() if name != "cls.predictions.bias"}
    save_tensors(path, without)
    with pytest.raises(CheckpointError, match=r"lacks cls\.predictions\.bias"):
        read_model(folder)


def test_the_lstm_folder_is_strict_too(tmp_path: Path) -> None:
    folder = written(tmp_path / "m", "lstm")
    edit(folder, "config.json", n_layers=1)
    with pytest.raises(CheckpointError, match=r"unknown encoder\.layers\.1"):
        read_model(folder)
    edit(folder, "config.json", n_layers=2, depth=3)
    with pytest.raises(CheckpointError, match="unknown key 'depth'"):
        read_model(folder)


def test_a_copy_elsewhere_is_the_same_model(tmp_path: Path) -> None:
    folder = written(tmp_path / "m")
    copy = tmp_path / "다른 곳" / "m"
    shutil.copytree(folder, copy)
    one, other = read_model(folder).objective.state_dict(), read_model(copy).objective.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_parts_with_random_weights_are_named() -> None:
    """Parts missing from the published folder, and a pooler that pre-training does not train."""
    without, with_pairs = ({"recipe": {"objective.next_sentence": pairs}} for pairs in (False, True))
    loaded = tiny_language_model("bert").loaded
    assert replace(loaded, provenance=with_pairs).never_learnt == ()
    assert replace(loaded, provenance=with_pairs, untrained=("mlm",)).never_learnt == ("mlm",)
    assert replace(loaded, provenance=without, untrained=("mlm",)).never_learnt == ("mlm", "encoder.pooler")
    assert replace(loaded, provenance=without, untrained=("encoder.pooler",)).never_learnt == ("encoder.pooler",)
    assert tiny_language_model("gpt").loaded.never_learnt == ()
    # Fine-tuning has trained the head, whatever the head reads.
    assert replace(loaded, provenance=without, task="classify").never_learnt == ()
