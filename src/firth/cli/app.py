"""All commands as one application."""

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from firth.cli.attention import attention
from firth.cli.average import average
from firth.cli.bench import bench
from firth.cli.compare import compare
from firth.cli.convert import convert
from firth.cli.demo import demo
from firth.cli.embed import embed
from firth.cli.evaluate import evaluate
from firth.cli.explain import explain
from firth.cli.extend import extend
from firth.cli.fill_mask import fill_mask
from firth.cli.finetune import finetune
from firth.cli.generate import generate
from firth.cli.labelled import LabelledFlags
from firth.cli.models import models
from firth.cli.next_sentence import next_sentence
from firth.cli.plan import plan
from firth.cli.predict import predict
from firth.cli.prepare import prepare
from firth.cli.pretrain import pretrain
from firth.cli.probe import probe
from firth.cli.score import score
from firth.cli.score_text import score_text
from firth.cli.search import search
from firth.cli.serve import serve
from firth.cli.shared import NOTHING
from firth.cli.study import study
from firth.cli.translate import translate
from firth.cli.vectors import vectors
from firth.cli.vocab import vocab
from firth.errors import UsageError
from firth.option_names import RENAMED_FLAGS
from firth.version import firth_version

app = App(
    name="firth",
    help="BERT and its predecessors: pre-training on your own text, fine-tuning and inference, on CPU or GPU.",
    help_format="plaintext",
    version=firth_version,
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=""),
)
_COMMANDS: tuple[Callable[..., int | None] | App, ...] = (  # in the order of a pipeline
    demo,
    vocab,
    prepare,
    plan,
    pretrain,
    extend,
    probe,
    compare,
    finetune,
    evaluate,
    score,
    predict,
    fill_mask,
    score_text,
    next_sentence,
    generate,
    embed,
    search,
    attention,
    explain,
    translate,
    vectors,
    average,
    models,
    convert,
    serve,
    study,
    bench,
)


def _unwrapped(text: str | None) -> str | None:
    """Join the wrapped lines of a docstring's sentences: help wraps them to the terminal's width."""
    lines: list[str] = []
    for line in inspect.cleandoc(text or "").split("\n"):
        before = lines[-1] if lines else ""
        indent = len(line) - len(line.lstrip())
        same = before and line.strip() and indent == len(before) - len(before.lstrip())
        if same and not before.endswith((".", ":")) and "---" not in (before[:3], line[:3]):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines) or None


for _number, _command in enumerate(_COMMANDS):
    if isinstance(_command, App):  # has subcommands
        _command.sort_key = _number
        app.command(_command)
        _functions = [_command[name].default_command for name in _command]
    else:
        app.command(_command, sort_key=_number)
        _functions = [_command]
    for _function in _functions:
        if inspect.isfunction(_function):
            _function.__doc__ = _unwrapped(_function.__doc__)
LabelledFlags.__doc__ = _unwrapped(LabelledFlags.__doc__)


def run(tokens: Sequence[str]) -> int:
    """Run the command in ``tokens`` and return its exit code; UsageError for wrong usage."""
    for token in tokens:
        _check_utf8(token)
    with suppress(FileNotFoundError):  # the folder was deleted: the command reports what is missing
        _check_utf8(os.getcwd())
    try:
        if any(token.rpartition("=")[2].lower() in NOTHING for token in tokens):
            _refuse_none(tokens)
        return app(list(tokens)) or 0
    except CycloptsError as error:
        raise UsageError(_explained(error, tokens)) from None


def _check_utf8(token: str) -> None:
    """Raise UsageError for a name or text that is not UTF-8: recipes, manifests and model files cannot hold it."""
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{token}: not UTF-8; rename it, or convert the text to UTF-8") from None


def _refuse_none(tokens: Sequence[str]) -> None:
    """Raise UsageError for an option that was given as none: its default would silently replace it."""
    command, bound, _ = app.parse_args(list(tokens))
    if isinstance(command, App):
        return
    for name, value in bound.arguments.items():
        if value is None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} none: expected a value; leave {flag} out for its default. See: --help")


# Earlier flags that became another command or several flags: by command and flag, what replaces it.
_MOVED = {
    "firth evaluate": dict.fromkeys(
        ("--predictions", "--odds", "--na-prob-file"),
        "firth score --predictions FILE --gold FILE --task KIND [--na-prob-file FILE]",
    ),
    "firth convert": {
        "--to": "--out DIR",
        "--to-elmo": "--as elmo --out DIR",
        "--to-google": "--as google --out DIR",
        "--to-onnx": "--as onnx --out DIR",
        "--to-openai": "--as openai --out DIR",
        "--to-sentence-transformers": "--as st --out DIR",
    },
}

# Commands that read stdin.
_READ_STDIN = frozenset(
    f"firth {verb}"
    for verb in ("embed", "fill-mask", "generate", "next-sentence", "predict", "score-text", "search", "translate")
)
# The flag that takes a file, by command.
_FILE_FLAGS = {"firth evaluate": "--data", "firth compare": "--train", "firth finetune": "--train"}
# Flags of other tools that are recipe keys here, by command.
_BOTH = {
    "--learning-rate": "optim.learning_rate",
    "--lr": "optim.learning_rate",
    "--seed": "train.seed",
    "--weight-decay": "optim.decay",
    "--warmup": "optim.warmup_share",
}
_KEYS = {
    "firth finetune": {**_BOTH, "--batch-size": "train.batch_examples", "--max-length": "head.windows.length"},
    "firth pretrain": {**_BOTH, "--batch-size": "train.batch_tokens", "--max-length": "data.length"},
}


# Commands of other tools, and their equivalents here.
_ELSEWHERE = {
    "train": "firth finetune learns from labels, firth pretrain from text",
    "eval": "firth evaluate",
    "test": "firth evaluate",
    "tokenize": "firth vocab trains a tokenizer, firth explain shows a text's tokens",
    "tokenizer": "firth vocab",
    "help": "firth --help",
    "version": "firth --version",
}


def _explained(error: CycloptsError, tokens: Sequence[str]) -> str:
    verb = " ".join(("firth", *(error.command_chain or ())))
    # Checked first: such a command line may also lack a flag that is new.
    moved = _MOVED.get(verb, {})
    for flag in (token.partition("=")[0] for token in tokens):
        if flag in moved:
            return f"{verb} has no {flag}: use {moved[flag]}"
    if "-" in tokens and isinstance(error, UnknownOptionError | MissingArgumentError):
        reads = verb in _READ_STDIN
        instead = "stdin is read where no text and no file is given" if reads else "give the name of a file or folder"
        return f"{verb} takes no '-': {instead}. See: {verb} --help"
    if isinstance(error, UnknownCommandError) and verb == "firth" and tokens and tokens[0] in _ELSEWHERE:
        return f"there is no firth {tokens[0]}: {_ELSEWHERE[tokens[0]]}. See: firth --help"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        message = f"{verb} needs a value for {error.keyword or error.argument.name}."
    elif isinstance(error, UnusedCliTokensError):
        extra = error.unused_tokens or []
        message = f"{verb} does not take {' '.join(extra)}."
        if any("=" in token for token in extra):
            message += " Recipe keys are given as --set KEY=VALUE."
        elif verb in _FILE_FLAGS and (files := [token for token in extra if Path(token).exists()]):
            message += f" A file is given as {_FILE_FLAGS[verb]} {files[0]}."
    elif isinstance(error, UnknownOptionError) and (new := _new_name(error)):
        message = f"{_flag(error)} is now called {new}."
    elif isinstance(error, UnknownOptionError) and (key := _KEYS.get(verb, {}).get(_flag(error))):
        message = f"{_flag(error)} is a recipe key here: --set {key}=VALUE."
    else:
        message = str(error)
    return f"{message} See: {verb} --help"


def _flag(error: UnknownOptionError) -> str:
    return (error.token.keyword or error.token.value).split("=", 1)[0]


def _new_name(error: UnknownOptionError) -> str | None:
    """The command's current name for a flag that was renamed."""
    new = RENAMED_FLAGS.get(_flag(error))
    return new if any(new in argument.names for argument in error.argument_collection) else None
