"""A server as a process: it starts, reloads, finishes what it accepted, and stops; and each step in this process."""

import asyncio
import gc
import hashlib
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from served import Client, Serve

import firth.folder
import firth.serving
from firth.cli import main
from firth.errors import ConfigError
from firth.folder import read_model
from firth.inference.loading import load
from firth.inference.model import Model
from firth.serving import admin, server
from firth.serving.access import Access
from firth.serving.admin import canary, forget_garbage, leave_processors, renewed
from firth.serving.asking import ServerState
from firth.serving.config import Limits
from firth.serving.engine import Engine
from firth.serving.hosted import Hosted
from firth.serving.metrics import Metrics
from firth.serving.server import Served, _obey, _signals, allow_many_files

KEY = "a-key-of-sixteen-letters"
WITH_KEY = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def garbage_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the collection at a start or reload: in this process it would traverse all that earlier tests hold."""
    for module in (admin, server):
        monkeypatch.setattr(module, "forget_garbage", lambda: None)


@pytest.fixture
def process(tiny_run: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``firth serve`` on a free port, and its address."""
    command = [sys.executable, "-m", "firth", "serve", f"tiny={tiny_run}", "--port", "0"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        lines = []
        for line in running.stderr:
            lines.append(line)
            if line.startswith("serving "):
                break
        else:
            pytest.fail("".join(lines))
        yield running, line.split(" at ")[1].strip()
    finally:
        running.kill()
        running.communicate()


def _line(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def test_serves_reloads_and_ends(process: tuple[subprocess.Popen[str], str], tiny_run: Path) -> None:
    running, address = process
    with httpx2.Client(base_url=address, timeout=60) as http:
        assert http.get("/ready").json() == {"status": "ready"}
        before = http.post("/embed", json={"inputs": "the river"}).json()
        running.send_signal(signal.SIGHUP)
        assert "tiny: loaded again" in _line(running, "tiny: ")
        assert http.post("/embed", json={"inputs": "the river"}).json() == before
        running.send_signal(signal.SIGTERM)
    assert _line(running, "stopped")
    assert running.wait(60) == 0


def test_hugging_faces_own_client_is_answered(process: tuple[subprocess.Popen[str], str], tiny_run: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    address, model = process[1], load(tiny_run)
    assert isinstance(model, Model)
    vectors = hub.InferenceClient(f"{address}/feature-extraction").feature_extraction("the river")
    np.testing.assert_allclose(vectors[0], model.embed("the river"), atol=1e-5)
    found = hub.InferenceClient(address).fill_mask("the [MASK]", top_k=3)
    assert [one.token_str for one in found] == [c.token for c in model.fill_mask("the [MASK]", top_k=3)[0].candidates]
    similarity = hub.InferenceClient(f"{address}/sentence-similarity").sentence_similarity
    assert similarity("the river", other_sentences=["the river", "winter"])[0] == pytest.approx(1, abs=1e-5)


def test_check_says_what_would_go_wrong(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"tiny={tiny_run}", "--port", "0", "--check"]) == 0
    assert "all models answer" in capsys.readouterr().out
    for flags, words in (
        ([f"tiny={tmp_path / 'gone'}"], "gone"),
        ([f"a={tiny_run}", f"a={tiny_run}"], "two models"),
        ([f"a={tiny_run}", "--host", "0.0.0.0"], "--no-auth"),
        ([f"a={tiny_run}", "--set", "inputs=0"], "inputs=0"),
        ([f"a={tiny_run}", "--set", "input=1"], "inputs"),
        ([f"a={tiny_run}", "--precision", "int8"], "int8"),
        ([f"a={tiny_run}", "--threshold", "2"], "0 to 1"),
    ):
        assert main(["serve", *flags, "--port", "0", "--check"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("firth: ") and words in error


def test_reloading_swaps_a_model_and_keeps_the_old_one_on_failure(serve: Serve, tiny_run: Path, tmp_path: Path) -> None:
    access = Access(keys=(hashlib.sha256(KEY.encode()).digest(),))

    async def work(client: Client) -> Any:
        old = client.state.models["masked"]
        old.path = tmp_path / "model"
        shutil.copytree(tiny_run / "model", old.path)
        path = "/admin/models/masked/reload"
        swapped = await client.post(path, {}, headers=WITH_KEY)
        new = client.state.models["masked"]
        shutil.rmtree(old.path)
        failed = await client.post(path, {}, headers=WITH_KEY)
        answer = await client.post("/embed", {"inputs": "a"}, headers=WITH_KEY)
        unknown = await client.post("/admin/models/other/reload", {}, headers=WITH_KEY)
        return swapped, new is not old, failed, client.state.models["masked"] is new, answer.status_code, unknown

    swapped, is_new, failed, kept, status, unknown = serve(work, "masked", access=access)
    assert swapped.status_code == 200 and is_new
    assert failed.status_code == 409 and "old model keeps serving" in failed.json()["error"]
    assert kept and status == 200 and unknown.status_code == 404


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.\nTried"), OSError("gone")]
)
def test_whatever_goes_wrong_the_old_model_goes_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    access = Access(keys=(hashlib.sha256(KEY.encode()).digest(),))

    def fail(*given: Any) -> Any:
        raise error

    monkeypatch.setattr(admin, "load_hosted", fail)

    async def work(client: Client) -> Any:
        signals = iter([signal.SIGHUP, signal.SIGTERM])
        await asyncio.to_thread(_obey, lambda: next(signals), client.state, asyncio.get_running_loop())
        client.state.engine.draining = False
        return await client.post("/admin/models/masked/reload", {}, headers=WITH_KEY)

    answer = serve(work, "masked", access=access)
    why = "OSError: gone" if isinstance(error, OSError) else "not enough memory"
    assert answer.status_code == 409 and "the old model keeps serving: " in answer.json()["error"]
    assert why in answer.json()["error"]
    said, _ = capsys.readouterr().err.splitlines()
    assert said.startswith("masked: the old model keeps serving: ") and why in said


def test_a_reload_that_memory_has_no_room_for_is_refused_before_anything_is_made(
    serve: Serve, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(keys=(hashlib.sha256(KEY.encode()).digest(),))

    def unexpected(*given: Any) -> Any:
        raise AssertionError("no weights are read")

    monkeypatch.setattr(firth.folder, "free_memory", lambda device: 1000.0)
    monkeypatch.setattr(firth.folder, "read_weights", unexpected)

    async def work(client: Client) -> Any:
        old = client.state.models["masked"]
        old.path = tiny_run
        refused = await client.post("/admin/models/masked/reload", {}, headers=WITH_KEY)
        return refused, client.state.models["masked"] is old

    refused, kept = serve(work, "masked", access=access)
    assert refused.status_code == 409 and kept
    (why,) = refused.json()["error"].splitlines()
    assert why.startswith("the old model keeps serving: ") and "needs 0.0 GB of memory, and 0.0 GB are free" in why


def test_of_two_reloads_the_later_one_stays(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any]
) -> None:
    first_may_end, made, at_once = threading.Event(), list[Hosted](), list[bool]()

    def load_hosted(name: str, *rest: Any) -> Hosted:
        made.append(Hosted(name, Path("x"), predictors["masked"]))
        own = made[-1]
        if own is made[0]:
            assert first_may_end.wait(60)
            at_once.append(len(made) > 1)
        return own

    monkeypatch.setattr(admin, "load_hosted", load_hosted)

    async def work(client: Client) -> Any:
        first = asyncio.ensure_future(admin.reload_model(client.state, "masked"))
        while not made:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(admin.reload_model(client.state, "masked"))
        for _ in range(10_000):  # event-loop turns in which the second reload would begin
            await asyncio.sleep(0)
        first_may_end.set()
        await asyncio.gather(first, second)
        return client.state.models["masked"]

    assert serve(work, "masked") is made[1] and at_once == [False]


@pytest.mark.parametrize("fails", [False, True])
def test_a_reload_goes_on_without_the_client_that_asked_for_it(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    predictors: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    fails: bool,
) -> None:
    may_end, made = threading.Event(), list[Hosted]()

    def load_hosted(name: str, *rest: Any) -> Hosted:
        made.append(Hosted(name, Path("x"), predictors["masked"]))
        assert may_end.wait(60)
        if fails:
            raise ConfigError("no model")
        return made[-1]

    monkeypatch.setattr(admin, "load_hosted", load_hosted)
    access = Access(keys=(hashlib.sha256(KEY.encode()).digest(),))

    async def work(client: Client) -> Any:
        asked = asyncio.ensure_future(client.post("/admin/models/masked/reload", {}, headers=WITH_KEY))
        while not made:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait({asked})
        locked = client.state.reloads.locked()
        may_end.set()
        while client.state.reloading:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return locked, client.state.models["masked"] is made[0]

    assert serve(work, "masked", access=access) == (True, not fails)
    said = "masked: the old model keeps serving: no model" if fails else "masked: loaded again"
    assert said in capsys.readouterr().err.splitlines()


def _end_and_wait(engine: Engine) -> None:
    """Send this process SIGTERM from a loading thread, and wait until it takes effect."""
    main_thread, until = threading.main_thread().ident, time.monotonic() + 60
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    while not engine.draining and time.monotonic() < until:
        pass


def test_a_signal_to_end_gives_up_a_reload(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any]
) -> None:
    loaded, draining = list[str](), list[bool]()

    async def work(client: Client) -> Any:
        engine = client.state.engine

        def load_hosted(name: str, *rest: Any) -> Hosted:
            loaded.append(name)
            _end_and_wait(engine)
            draining.append(engine.draining)
            return Hosted(name, Path("x"), predictors[name])

        monkeypatch.setattr(admin, "load_hosted", load_hosted)
        with _signals(client.state) as wait:
            signal.raise_signal(signal.SIGHUP)
            await asyncio.to_thread(_obey, lambda: wait(lambda: True), client.state, asyncio.get_running_loop())
        return (await client.get("/ready")).status_code

    assert serve(work, "masked", "classify") == 503
    assert loaded == ["masked"] and draining == [True]


def test_a_signal_to_end_gives_up_loading_at_the_start(
    monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    engines, loaded = list[Engine](), list[str]()

    def make_engine(limits: Limits, metrics: Metrics) -> Engine:
        engines.append(Engine(limits, metrics))
        return engines[-1]

    def load_hosted(name: str, *rest: Any) -> Hosted:
        loaded.append(name)
        _end_and_wait(engines[-1])
        return Hosted(name, Path("x"), predictors["classify"])

    monkeypatch.setattr(server, "Engine", make_engine)
    monkeypatch.setattr(server, "load_hosted", load_hosted)
    models = (("a", Path("a")), ("b", Path("b")))
    server.serve(Served(models=models, access=Access(), limits=Limits(), port=0))
    assert loaded == ["a"]
    assert capsys.readouterr().err.splitlines()[-1] == "stopped while models were loading"


@pytest.mark.parametrize(
    ("access", "is_told"),
    [
        (Access(), True),
        (Access(hosts=("box.lan",)), False),
        (Access(keys=(hashlib.sha256(KEY.encode()).digest(),)), False),
    ],
)
def test_who_serves_everybody_by_every_name_is_told(
    monkeypatch: pytest.MonkeyPatch,
    predictors: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    access: Access,
    is_told: bool,
) -> None:
    monkeypatch.setattr(server, "load_hosted", lambda name, *rest: Hosted(name, Path("x"), predictors["classify"]))
    monkeypatch.setattr(server, "_obey", lambda *given: None)
    server.serve(Served(models=(("a", Path("a")),), access=access, limits=Limits(), port=0))
    assert ("give --allowed-host NAME" in capsys.readouterr().err) is is_told


@pytest.mark.parametrize("is_broken", [False, True])
def test_probes_are_answered_while_models_are_loaded(
    monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any], is_broken: bool
) -> None:
    """If a model cannot be loaded, the port is released."""
    ports, answers = list[int](), list[tuple[int, str]]()

    def listen(host: str, port: int) -> socket.socket:
        bound = server_listen(host, port)
        ports.append(bound.getsockname()[1])
        return bound

    def load_hosted(name: str, *rest: Any) -> Hosted:
        with httpx2.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=60) as http:
            answers.extend((one.status_code, one.text) for one in map(http.get, ("/health", "/ready", "/metrics")))
        if is_broken:
            raise ConfigError("no model")
        return Hosted(name, Path("x"), predictors["classify"])

    server_listen = server.listen
    monkeypatch.setattr(server, "listen", listen)
    monkeypatch.setattr(server, "load_hosted", load_hosted)
    monkeypatch.setattr(server, "_obey", lambda *given: None)
    served = Served(models=(("a", Path("a")),), access=Access(), limits=Limits(), port=0)
    with pytest.raises(ConfigError, match="no model") if is_broken else nullcontext():
        server.serve(served)
    assert [status for status, _ in answers] == [200, 503, 200] and "the server is loading" in answers[1][1]
    assert "firth_ready 0.0" in answers[2][1]
    server_listen("127.0.0.1", ports[0]).close()


def test_a_model_for_something_else_is_no_reload(tiny_run: Path, predictors: dict[str, Any]) -> None:
    old = Hosted("a", tiny_run, predictors["classify"])
    with pytest.raises(ConfigError, match="is for pretraining, and .* served for classify; force takes it"):
        renewed(old, force=False)
    assert renewed(old, force=True).task == read_model(tiny_run).task


def test_a_model_of_pairs_does_not_replace_one_of_single_texts(
    monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any]
) -> None:
    old = Hosted("single", Path("x"), predictors["single"])
    monkeypatch.setattr(admin, "load_hosted", lambda name, *rest: Hosted(name, Path("x"), predictors["pairs"]))
    with pytest.raises(ConfigError, match="x reads pairs of texts, and the model that is served single texts; force"):
        renewed(old, force=False)
    assert renewed(old, force=True).pairs


def test_every_model_has_a_question_it_can_answer(predictors: dict[str, Any]) -> None:
    for name, predictor in predictors.items():
        job = canary(Hosted(name, Path(name), predictor), texts=2)
        prepared = job.prepare()
        assert len(prepared.answers(job.forward.run([row.work for row in prepared.rows]))) == 2


def test_as_many_files_are_allowed_as_the_system_does() -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits of files")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] == resource.RLIM_INFINITY:
        pytest.skip("this system has no limit of files")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class _Circle:
    """Garbage kept alive by a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_collections_pass_over_what_stays_and_a_reload_frees_what_does_not() -> None:
    old = _Circle()
    gone = weakref.ref(old)
    forget_garbage()
    frozen = gc.get_freeze_count()
    del old
    gc.collect()
    assert frozen > 10_000 and gone() is not None
    forget_garbage()
    assert gone() is None


@pytest.mark.parametrize(("rates", "one_thread"), [([1e5, 2e5], True), ([1e5, 1e4], False)])
def test_tiny_models_leave_processors_to_connections(
    predictors: dict[str, Any], rates: list[float], one_thread: bool
) -> None:
    state = ServerState({}, Engine(Limits(), Metrics()), Limits())
    for rate in rates:
        hosted = state.models[str(rate)] = Hosted(str(rate), Path("x"), predictors["classify"])
        hosted.cost.learn(1000, 0.0, 1000 / rate)
    leave_processors(state)
    assert state.engine.one_thread == one_thread


def test_a_reload_decides_again_how_many_threads_compute(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, predictors: dict[str, Any]
) -> None:
    chosen = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(admin, "load_hosted", lambda name, *rest: Hosted(name, Path("x"), predictors["masked"]))

    async def work(client: Client) -> Any:
        found = []
        for tiny_from in (0.0, math.inf):
            monkeypatch.setattr(admin, "_TINY_RATE", tiny_from)
            await admin.reload_model(client.state, "masked")
            assert (await client.post("/embed", {"inputs": "a"})).status_code == 200
            found.append(chosen[-1])
        return found

    assert serve(work, "masked") == [1, 2]


@pytest.mark.parametrize("package", ["uvloop", "httptools"])
def test_what_the_server_needs_is_asked_for_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    for name in ("uvicorn.protocols.http.httptools_impl", "firth.serving.http1", "firth.serving.server"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(firth.serving, "server")
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["serve", "runs/a"]) == 2
    assert f"firth serve needs {package}: pip install" in capsys.readouterr().err


def test_what_was_accepted_is_finished(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        engine = client.state.engine
        asked = [asyncio.ensure_future(client.post("/predict", {"inputs": "the river"})) for _ in range(20)]
        while engine.in_flight < 20:
            await asyncio.sleep(0)
        engine.draining = True
        refused = await client.post("/predict", {"inputs": "a"})
        finished = await engine.drained()
        return [one.status_code for one in await asyncio.gather(*asked)], refused, finished

    answered, refused, finished = serve(work, "classify")
    assert answered == [200] * 20 and finished
    assert refused.status_code == 503 and "shutting down" in refused.json()["error"]
