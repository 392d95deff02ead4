"""Common first mistakes: each gets one line that says what to type."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pretrain --corpus TEXT --model bert-tiny --out OUT", ["is a file", "firth prepare TEXT --tokenizer vocab"]),
        ("vectors nearest VECTORS king", ["is a file of word vectors: firth vectors convert VECTORS --out DIR"]),
        ("finetune --task ner --model RUN --train TEXT --out OUT", ["called ner elsewhere is --task tag"]),
        ("finetune --task nli --model RUN --train TEXT --out OUT", ["--task classify with two texts, --columns"]),
        ("finetune --task question_answering --model RUN --train TEXT --out OUT", ["--task answer"]),
        ("finetune --task xyzxyz --model RUN --train TEXT --out OUT", ["data sets: glue, "]),
        ("predict RUN words", ["firth finetune --task TASK --model MODEL --train FILE --out RUN"]),
        ("embed RUN TEXT", ["is a file here: --input TEXT"]),
        ("translate RUN TEXT", ["is a file here: --input TEXT"]),
        ("next-sentence RUN words TEXT", ["is a file here: --input TEXT"]),
        ("score-text RUN TEXT", ["is a file here: < TEXT"]),
        ("generate RUN TEXT", ["is a file here: < TEXT"]),
        ("fill-mask RUN TEXT", ["is a file here: < TEXT"]),
        ("search RUN TEXT", ["is a file here: < TEXT"]),
        ("embed RUN words --input TEXT", ["either TEXT or --input"]),
        ("fill-mask RUN -", ["takes no '-': stdin is read where no text"]),
        ("prepare - --tokenizer v --out c", ["takes no '-': give the name of a file or folder"]),
        ("prepare TEXT --tokenizer v --out s3://b/c", ["s3:/b/c: results are written to a local folder"]),
        ("vocab TEXT --out gs://b/v", ["gs:/b/v: results are written to a local folder"]),
        ("embed RUN --input -", ["takes no '-': stdin is read where no text"]),
    ],
)
def test_advice_names_what_to_type(firth, tiny_run: Path, tmp_path: Path, command: str, said: list[str]) -> None:
    places = {"TEXT": tmp_path / "text.txt", "VECTORS": tmp_path / "my.vec", "RUN": tiny_run, "OUT": tmp_path / "out"}
    places["TEXT"].write_text("the river\n", "utf-8")
    places["VECTORS"].write_text("king 0.1 0.2\nqueen 0.2 0.1\n", "utf-8")
    result = firth(*(places.get(word, word) for word in command.split()))
    assert result.code == 2 and not places["OUT"].exists()
    for part in said:
        expected = " ".join(str(places.get(word, word)) for word in part.split())
        assert expected in result.complaint or part in result.complaint, result.complaint


def test_texts_are_embedded_as_arguments_too(firth, tiny_run: Path) -> None:
    by_argument = firth("embed", tiny_run, "the river", "a hill")
    assert by_argument.code == 0
    assert by_argument.out == firth("embed", tiny_run, stdin=b"the river\na hill\n").out


def test_a_model_is_shown_in_a_line_and_a_missing_card_is_said(tiny_run: Path) -> None:
    import torch

    import firth
    from firth.errors import ConfigError

    model = firth.load(tiny_run, device="cpu")
    assert repr(model) == "<firth.Model: bert, pretraining, 0.0 M parameters, on cpu>"
    shipped = repr(firth.load("firth-mini-en", device="cpu"))
    assert shipped == "<firth.Model: bert, pretraining, 7.5 M parameters, on cpu>"
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device='cuda': PyTorch finds no GPU here"):
            firth.load(tiny_run, device="cuda")
