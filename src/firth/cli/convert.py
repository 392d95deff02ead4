"""``firth convert``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from firth.cli.labelled import HEADERS, OBJECTS, Header
from firth.cli.shared import (
    AtLeastOne,
    Flag,
    JsonFlag,
    on_interrupt,
    print_fill_mask_next,
    print_json,
    print_next,
    print_table,
)
from firth.errors import ConfigError

if TYPE_CHECKING:
    from firth.export.convert import Converted


def convert(
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    target: Annotated[str, Parameter(name="--as")] = "firth",
    out: Path,
    vocab: Path | None = None,
    vectors: Path | None = None,
    cased: Annotated[bool | None, Parameter(name="--cased", negative="--uncased", show_default=False)] = None,
    gelu: Literal["erf", "tanh"] | None = None,
    max_positions: AtLeastOne = None,
    allow_unknown_hangul: Flag = False,
    dtype: Literal["float32", "bfloat16"] | None = None,
    int8: Flag = False,
    data: str | None = None,
    max_drop: float | None = None,
    task: str | None = None,
    split: str = "dev",
    columns: str | None = None,
    header: Header = None,
    form: Annotated[str, Parameter(name="--format")] = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Convert a model of another tool to a model folder, or any model to another tool's format.

    The input format is detected automatically. Every tensor is used or reported; the output is read back and compared.

    Example: firth convert uncased_L-12_H-768_A-12/ --out models/bert-base

    Parameters
    ----------
    source
        A folder of Hugging Face or sentence-transformers, a checkpoint of google-research/bert (its folder or
        bert_model.ckpt), the ten arrays of OpenAI's GPT (their folder), ELMo's options.json and weights.hdf5 (their
        folder, or either of them), fastai's language models (.h5 or .pth with itos beside it), CoVe's encoder (.pth,
        with --vectors), hub:org/name, or a run or model folder of Firth.
    target
        The output format: firth (a model folder; transformers can load BERT and GPT from it), hf, st
        (sentence-transformers), google (google-research/bert), openai (openai/finetune-transformer-lm), elmo
        (allenai/bilm-tf, AllenNLP), onnx (onnxruntime).
    out
        Output folder; must be new.
    vocab
        A vocab.txt or tokenizer.json, if SOURCE has none or a different one; for ELMo its list of words, or the
        tokenizer.json of firth vocab --kind words.
    vectors
        Word vectors for CoVe, a file or a model folder: the model then reads every word that has a vector.
    cased
        Whether text keeps its capital letters, if neither the files nor the tokens tell.
    gelu
        The form of gelu in a Google checkpoint, which does not record it; erf if not given.
    max_positions
        Keep only the first N position embeddings, for sequences of at most N tokens.
    allow_unknown_hangul
        Convert even if the tokenizer reads Korean words of its own vocabulary as unknown.
    dtype
        dtype of the stored weights, for --as firth, hf and st; bfloat16 halves the file. Default: float32 for hf and
        st, whose tools compute in it; as in SOURCE for firth.
    int8
        With --as onnx: also write model_int8.onnx, if it scores as well on --data.
    data
        With --int8: the file of labelled examples, or the folder of the data set that --task names.
    max_drop
        With --int8: largest allowed drop of the main score, in points; 0.5 if not given.
    task
        With --int8: a data set such as glue/sst2.
    split
        Split of the data set to use.
    columns
        Columns of --data by number or name, such as text=2,label=0.
    header
        Whether the first line of --data names the columns; detected automatically if not given.
    form
        Format of --data, such as tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream; by file name if not given.
    as_json
        Print what was found as one JSON object.
    """
    _check_int8(
        target,
        int8,
        {
            "--data": data,
            "--max-drop": max_drop,
            "--task": task,
            "--split": None if split == "dev" else split,
            "--columns": columns,
            "--header": header,
            "--format": None if form == "auto" else form,
        },
    )
    from firth.export.convert import convert as job
    from firth.export.onnx import Int8
    from firth.finetuning.recipe import LabelledConfig

    gate = None
    if int8:
        config = LabelledConfig(columns=columns or "", header=HEADERS[header], format=form)
        gate = Int8(data=str(data), config=config, task=task or "", split=split)
        gate = gate if max_drop is None else replace(gate, max_drop=max_drop)
    lowercase = None if cased is None else not cased
    with on_interrupt("nothing was written"):
        done = job(
            source,
            out,
            target,
            vocab=vocab,
            vectors=vectors,
            lowercase=lowercase,
            gelu=gelu,
            int8=gate,
            max_positions=max_positions,
            allow_unknown_hangul=allow_unknown_hangul,
            dtype=dtype,
        )
    if as_json:
        print_json({"source": done.source, "format": done.format, "found": done.facts, "out": done.out})
        return
    _print(done, target)


def _check_int8(target: str, int8: bool, given: Mapping[str, object]) -> None:
    """Raise ConfigError if int8 lacks an option that it needs, or if options of int8 are given without it."""
    if int8 and target != "onnx":
        raise ConfigError("--int8 is for --as onnx; other folders hold float32, and firth.load makes it int8")
    if int8 and given["--data"] is None:
        raise ConfigError("--int8 needs labelled examples to be scored on: give --data FILE")
    alone = [flag for flag, value in given.items() if value is not None and not int8]
    if alone:
        belong = "belongs" if len(alone) == 1 else "belong"
        raise ConfigError(f"{' and '.join(alone)} {belong} to --int8: leave out, or give --int8")


def _print(done: "Converted", target: str) -> None:
    from firth.formats.table import BY_KEY
    from firth.systems import SYSTEMS

    print(f"{done.source}: {BY_KEY[done.format].title}")
    print_table(done.facts)
    checked = "onnxruntime gives PyTorch's numbers" if target == "onnx" else "read again, every number is equal"
    print(f"{done.out}: {BY_KEY[target].made}; {checked}")
    if target in ("google", "openai", "elmo", "onnx"):
        return
    found = dict(done.facts)
    task, new = found["task"].partition(":")[0], " ".join(value for name, value in done.facts if name == "new")
    if task != "pretraining":
        print_next("firth", "predict", done.out, *(("--input", "FILE") if task in OBJECTS else ("TEXT",)))
    elif SYSTEMS[found["system"]].predict == "next" and found["system"] != "vectors" and not new:
        print_next("firth", "generate", done.out, "TEXT")
    elif found["system"] == "transformer":
        print_next("firth", "translate", done.out)
    elif found["system"] == "bert" and "masked-LM" not in new:
        print_fill_mask_next(done.out)
    else:
        print_next("firth", "finetune", "--task", "classify", "--model", done.out, "--train", "FILE", "--out", "runs/b")
