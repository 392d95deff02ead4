"""Help, usage errors, exit codes: what all commands have in common."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import firth.cli.app
from firth.cli import main
from firth.cli.shared import importing, lines_from, print_table
from firth.errors import CheckpointError, ConfigError, InputError, SaveError, TrainingError

VERBS = [
    "demo",
    "vocab",
    "prepare",
    "pretrain",
    "extend",
    "probe",
    "finetune",
    "evaluate",
    "predict",
    "fill-mask",
    "embed",
    "attention",
    "translate",
    "average",
    "convert",
    "study",
]


def run(*command: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False, **options})


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def verb(tokens: object) -> int:
        raise error

    monkeypatch.setattr(firth.cli.app, "run", verb)
    return main([])


def test_help_lists_the_commands_in_the_order_of_a_pipeline(firth) -> None:
    text = firth("--help").out
    places = [text.index(f" {verb} ") for verb in VERBS]
    assert places == sorted(places)
    assert firth().out == text


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example_and_a_line_per_flag(firth, verb: str) -> None:
    result = firth(verb, "--help")
    assert result.code == 0
    assert f"Example: firth {verb} " in result.out
    flags = [line.strip("│* ") for line in result.out.splitlines() if line.strip("│* ").startswith("--")]
    assert flags
    for flag in flags:
        words = flag.split("  ")
        assert len([word for word in words if word.strip()]) > 1, f"{flag} says nothing"


def test_version(firth) -> None:
    assert firth("--version").out.strip().count(".") == 2


@pytest.mark.parametrize("tokens", [["--help"], ["vocab", "--help"], ["pretrain", "--help"]], ids=" ".join)
def test_help_loads_nothing_that_takes_long(tokens: list[str]) -> None:
    """Imports are what makes help slow: these take from 0.1 s (NumPy) to seconds (PyTorch)."""
    program = (
        "import sys; from firth.cli import main; code = main(sys.argv[1:])\n"
        "slow = {'torch', 'numpy', 'scipy', 'sklearn', 'tokenizers', 'safetensors', 'matplotlib', 'transformers'}\n"
        "sys.exit(code or ' '.join(slow & set(sys.modules)) or 0)"
    )
    result = run(sys.executable, "-c", program, *tokens)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["vocba"], ['"vocba"', '"vocab"', "firth --help"]),
        (["train", "--task", "classify"], ["no firth train: firth finetune learns from labels, firth pretrain from"]),
        (["version"], ["firth --version"]),
        (["finetune", "optim.learning_rate=1"], ["recipe keys are given as --set optim.learning_rate=1"]),
        (["finetune", __file__], ["expected a recipe file (.toml)", f"--train {__file__}"]),
        (["vocab", "a.txt", "--out", "v", "--sise", "9"], ["--sise", "--size?", "firth vocab --help"]),
        (["vocab", "a.txt"], ["--out", "firth vocab --help"]),
        (["vocab", "--out", "v"], ["TEXT", "firth vocab --help"]),
        (["vocab", "a.txt", "--out", "v", "--size", "many"], ["--size", "many"]),
        (["vocab", "a.txt", "--out", "v", "--score", "likelyhood"], ["--score", "likelyhood", '"likelihood"']),
        (["vocab", "a.txt", "--out", "v", "--workers", "0"], ["--workers", "0", ">= 1"]),
        (["evaluate", "runs/b", __file__], ["does not take", f"--data {__file__}", "firth evaluate --help"]),
        (["finetune", "--batch-size", "8"], ["--batch-size is a recipe key here: --set train.batch_examples=VALUE"]),
        (["pretrain", "--lr", "1"], ["--lr is a recipe key here: --set optim.learning_rate=VALUE"]),
        (["bench", "x", "y=1"], ["does not take x y=1", "--set KEY=VALUE", "firth bench --help"]),
        (["generate", "m", "x", "--length", "5"], ["--length is now called --max-new-tokens"]),
        (["embed", "m", "--text=x"], ["--text is now called --input"]),
        (["vectors", "train", "t", "--out", "m", "--least", "5"], ["--least is now called --min-count"]),
        (["predict", "m", "--length", "5"], ["Unknown option: --length"]),
        (["prepare", "a.txt", "--tokenizer", "v", "--out", "c", "--workers", "-3"], ["--workers", "-3"]),
        (["prepare", "a", "--tokenizer", "v", "--out", "c", "--dev", "d", "--hold-out", "0.1"], ["give one of them"]),
        (["prepare", "a", "--tokenizer", "v", "--out", "c", "--second", "b", "--lines", "book"], ["leave it out"]),
        (["embed", "runs/a", "a text", "--input", "lines.txt"], ["either TEXT or --input"]),
        (["embed", "runs/a", "--pool", "median"], ["--pool", "median", "summary"]),
        (["embed", "runs/a", "--layer", "top"], ["--layer", "top"]),
        (["embed", "runs/a", "--pool", "none"], ["--pool none", "leave --pool out"]),
        (["pretrain", "r.toml", "--seed=null"], ["--seed none", "leave --seed out"]),
        (["fill-mask"], ["MODEL"]),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_flag(
    firth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth(*tokens)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("a is wrong\nuse b"), 2, "firth: a is wrong use b\n"),
        (CheckpointError("damaged"), 2, "firth: damaged\n"),
        (SaveError("full"), 1, "firth: full\n"),
        (TrainingError("nan"), 1, "firth: nan\n"),
        (KeyboardInterrupt(), 130, "firth: interrupted\n"),
        (KeyboardInterrupt("go on so"), 130, "firth: interrupted: go on so\n"),
        (PermissionError(13, "Permission denied", "x/y"), 2, "firth: x/y: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "firth: stdout: the disk is full\n"),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(error, monkeypatch) == code
    assert capfd.readouterr().err == message


def test_a_mistake_of_ours_shows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)


MAIN = [sys.executable, "-c", "import sys; from firth.cli import main; sys.exit(main())"]


def test_a_reader_that_leaves_is_nothing_to_talk_about() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = run(*MAIN, "--help", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_closed_streams_are_one_line() -> None:
    closed = run("sh", "-c", 'exec "$@" >&-', "sh", *MAIN, "models")
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "standard output is closed: give it a place, such as >/dev/null" in closed.stderr
    silent = run("sh", "-c", 'exec "$@" <&- 2>&-', "sh", *MAIN, "models")
    assert silent.returncode == 0 and silent.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = run(*MAIN, "--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (1, "firth: stdout: the disk is full\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE 3000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "7"}, "PASSIVE 7"),
    ],
)
def test_threads_hardly_spin_unless_told_otherwise(given: dict[str, str], expected: str) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = "import os; from firth.cli import main; main(['--version']); "
    code += f"print(*[os.environ.get(name) for name in {names}])"
    environment = {k: v for k, v in os.environ.items() if k not in names} | given
    assert run(sys.executable, "-c", code, env=environment).stdout.splitlines()[-1] == expected


def test_a_second_interrupt_while_the_process_ends_is_not_heard() -> None:
    program = """
import atexit, os, signal, sys
import firth.cli.app
from firth.cli import main

def run(tokens):
    raise KeyboardInterrupt("all is saved")

signal.signal(signal.SIGINT, signal.default_int_handler)
firth.cli.app.run = run
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "firth: interrupted: all is saved\n")


def test_what_files_say_does_not_reach_the_terminal_raw(firth, tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_text(f"a\x1b[2J\x9b\u202eb\t{'z' * 50_000}\nx\ty\n", "utf-8")
    result = firth(
        "finetune",
        "--task",
        "classify",
        "--model",
        "bert-tiny",
        "--train",
        table,
        "--columns",
        "text=0,label=nope",
        "--out",
        tmp_path / "o",
    )
    assert result.code == 2 and len(result.err) < 1_500
    assert result.err.replace("\n", "").isprintable() and "x1b" in result.err


@pytest.mark.parametrize(
    ("on", "shown"), [("terminal", "'\\x1b[2J\\x9b\\u202e' 강"), ("file", "'\x1b[2J\x9b\u202e' 강")]
)
def test_a_terminal_obeys_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: str, shown: str) -> None:
    """A terminal gets escaped control characters; a file gets the result unchanged."""
    monkeypatch.setattr(firth.cli.app, "run", lambda tokens: print("'\x1b[2J\x9b\u202e' 강\tb") or 0)
    reader, writer = os.openpty() if on == "terminal" else (None, os.open(tmp_path / "o", os.O_WRONLY | os.O_CREAT))
    with open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([]) == 0 and sys.stdout is stream
        found = (tmp_path / "o").read_text("utf-8") if reader is None else os.read(reader, 1000).decode()
    assert found.split("\t")[0] == shown


def test_a_line_that_no_text_has_is_not_read(tmp_path: Path) -> None:
    """For example a binary file, which would fill the memory as a single line."""
    with open(tmp_path / "a.txt", "wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(InputError, match=r"a\.txt, line 1: more than 16,777,216 characters; split it"):
        next(lines_from(tmp_path / "a.txt"))


def test_a_line_ends_at_a_line_feed_with_or_without_a_carriage_return(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffa\rb\r\nc\n\nd\r".encode())
    assert list(lines_from(tmp_path / "a.txt")) == ["a\rb", "c", "", "d"]


def test_lines_may_come_from_another_command_but_from_no_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match=r"pipe\.txt: cannot be read: not a regular file \(a pipe\?\)"):
        next(lines_from(tmp_path / "pipe.txt"))
    read, write = os.pipe()  # as <(command) in a shell makes one
    try:
        os.write(write, "강\n".encode())
        os.close(write)
        assert list(lines_from(Path(f"/dev/fd/{read}"))) == ["강"]
    finally:
        os.close(read)


@pytest.mark.parametrize("where", ["token", "folder"])
def test_names_that_are_not_utf8_are_refused_at_once(
    firth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """Recipes and manifests cannot hold such names: a run used to fail only at its end."""
    place = tmp_path / os.fsdecode(b"bad\xff")
    place.mkdir()
    if where == "folder":
        monkeypatch.chdir(place)
    result = firth("models", *([] if where == "folder" else ["--json", place]))
    assert result.code == 2 and "not UTF-8; rename it" in result.complaint


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
    ],
)
@pytest.mark.parametrize(
    ("command", "helps"),
    [("pretrain", "train.batch_tokens"), ("predict", "--precision auto"), ("vocab", "fewer --workers, or less text")],
)
def test_too_little_memory_is_one_line(firth, monkeypatch, error, command, helps) -> None:  # type: ignore[no-untyped-def]
    def fail(tokens: object) -> int:
        raise error

    monkeypatch.setattr("firth.cli.app.run", fail)
    result = firth(command)
    assert result.code == 1
    assert result.complaint.startswith("there is not enough memory") and helps in result.complaint


def test_other_errors_of_the_interpreter_are_not_hidden(firth, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def fail(tokens: object) -> int:
        raise RuntimeError("our own mistake")

    monkeypatch.setattr("firth.cli.app.run", fail)
    with pytest.raises(RuntimeError, match="our own mistake"):
        firth("predict")


@pytest.mark.parametrize(
    "command",
    [
        ["pretrain", "--model", "bert-tiny", "--threads", "9999"],
        ["prepare", "x.txt", "--tokenizer", "v", "--out", "c", "--workers", "9999"],
        ["vocab", "x.txt", "--out", "c", "--workers", "9999"],
        ["study", "learning", "--data", "d", "--workers", "9999"],
    ],
)
def test_threads_and_workers_are_bounded_by_the_processors(firth, command: list[str]) -> None:  # type: ignore[no-untyped-def]
    result = firth(*command)
    assert result.code == 2 and "=9999: expected at most" in result.complaint


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["finetune", "--task", "clasify", "--model", "m", "--out", "o"], "did you mean 'classify'?"),
        (["finetune", "--task", "classify", "--train", "trian.tsv", "--out", "o"], "did you mean train.tsv?"),
        (["evaluate", "m", "--data", "trian.tsv"], "did you mean train.tsv?"),
        (
            ["finetune", "--task", "classify", "--train", ".", "--out", "o"],
            ". is a folder: give the file of examples, such as train.tsv",
        ),
        (["compare", "--train", "train.tsv", "--dev", "trian.tsv", "--out", "o"], "did you mean train.tsv?"),
        (["finetune", "--task", "classify", "--train", "train.tsv", "--out", "o"], "--model is missing"),
        (
            ["finetune", "--task", "classify", "--model", "m", "--train", "train.tsv", "--out", "train.tsv"],
            "train.tsv exists already: choose another name",
        ),
        (["pretrain", "--model", "bert-mini", "--corpus", "c", "--out", "train.tsv"], "train.tsv exists already"),
        (["probe", "--task", "ner", "--out", "o"], "what is called ner elsewhere is --task tag"),
    ],
)
def test_wrong_names_are_found_before_torch_is_imported(tokens: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").touch()
    program = "import sys; sys.modules['torch'] = None; from firth.cli import main; sys.exit(main(sys.argv[1:]))"
    result = run(sys.executable, "-c", program, *tokens, cwd=tmp_path)
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["vocab", "mytext.tx", "--out", "v"], "mytext.tx: no such file or folder; did you mean mytext.txt?"),
        (["vocab", "qqq", "--out", "v"], "qqq: no such file or folder; check the path"),
        (["prepare", "mytext.txt", "--tokenizer", "vocb", "--out", "c"], "no such tokenizer; did you mean vocab?"),
        (["prepare", "mytext.txt", "--tokenizer", "qqq", "--out", "c"], "expected a folder or a vocab.txt"),
        (["pretrain", "--model", "bert-mini", "--corpus", "corps", "--out", "r"], "folder; did you mean corpus?"),
        (["pretrain", "--model", "bert-mini", "--corpus", "qqq", "--out", "r"], "make one with: firth prepare TEXT"),
        (["pretrain", "--recipe", "smal", "--corpus", "c", "--out", "r"], "expected a file (.toml), or one of small,"),
        (["pretrain", "--resume", "corps"], "corps: no such folder; did you mean corpus?"),
        (["finetune", "--resume", "corps"], "corps: no such folder; did you mean corpus?"),
    ],
)
def test_a_misspelt_path_is_answered_with_the_nearest(  # type: ignore[no-untyped-def]
    firth, tokens: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mytext.txt").write_text("a text\n")
    (tmp_path / "vocab").mkdir()
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    result = firth(*tokens)
    assert result.code == 2 and message in result.complaint


def test_garbage_is_collected_again_after_imports() -> None:
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_tables_of_wide_names_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("긍정", "1"), ("neutral", "2")])
    assert capsys.readouterr().out == "  긍정     1\n  neutral  2\n"


@pytest.mark.parametrize(
    "command",
    ["search i x --top-k 1.5", "vocab t --out v --size 1e3", "serve a=b --port 80.5", "pretrain --processes 1.5"],
)
def test_a_fraction_is_no_whole_number(firth, command: str) -> None:
    result = firth(*command.split())
    assert result.code == 2 and f"{command.split()[-1]} is not a whole number" in result.complaint
