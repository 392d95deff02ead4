"""The deployment file for Ray Serve: two replicas give the library's answers, and one of them may die."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import NODE, python_path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    f"{who} {what}" for who in ("the baker", "our teacher", "the queen") for what in ("walked", "wrote a lot", "sang")
]
TRIES = 20

# Starts processes. Ray Serve uses what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from firth.finetuning.finetune import finetune

    folder = tmp_path_factory.mktemp("served")
    lines = [f"{text} {number}\t{'even' if number % 2 else 'odd'}" for number, text in enumerate(TEXTS * 4)]
    (folder / "t.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    settings = {"train.precision": "float32", "train.epochs": 1}
    finetune(task="classify", model=tiny_run, train=folder / "t.tsv", out=folder / "m", settings=settings, processes=1)
    return folder / "m"


@pytest.fixture
def address(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the application with its two replicas."""
    import ray
    from ray import serve

    from firth.cluster.connection import own_token

    # As with serve run --app-dir deploy.
    monkeypatch.syspath_prepend(ROOT / "deploy")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "deploy"), python_path()]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("FIRTH_MODELS", f"m={model}")
    monkeypatch.delenv("FIRTH_API_KEY", raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with own_token():  # otherwise Ray would write one to the home folder
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=NODE["object_store_memory"],
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="CRITICAL",
        )
        try:
            import ray_serve

            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(ray_serve.application)
            yield f"http://127.0.0.1:{port}"
        finally:
            serve.shutdown()
            ray.shutdown()


def asked(address: str, text: str) -> Any:
    """The answer to a text for a client that retries after server errors."""
    body = json.dumps({"inputs": text}).encode()
    for left in range(TRIES, -1, -1):
        request = urllib.request.Request(f"{address}/predict", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 or not left:
                    raise
    raise AssertionError("no try is left")


def replicas() -> list[Any]:
    import psutil

    return [process for process in psutil.process_iter() if process.name().startswith("ray::ServeRepl")]


def test_two_replicas_answer_as_the_library_and_one_may_die(address: str, model: Path) -> None:
    import firth

    loaded = firth.load(model)
    expected = loaded.predict(TEXTS)
    assert len(replicas()) == 2
    with ThreadPoolExecutor(4) as clients:
        before = list(clients.map(lambda text: asked(address, text), TEXTS))
        assert [answer[0]["label"] for answer in before] == [one.label for one in expected]
        scores = [answer[0]["score"] for answer in before]
        assert scores == pytest.approx([one.probability for one in expected], abs=1e-5)
        going = [clients.submit(asked, address, text) for text in TEXTS * 10]
        os.kill(replicas()[0].pid, signal.SIGKILL)
        after = [one.result() for one in going]
    for answer, like in zip(after, before * 10, strict=True):
        assert [one["label"] for one in answer] == [one["label"] for one in like]
        assert [one["score"] for one in answer] == pytest.approx([one["score"] for one in like], abs=1e-5)
