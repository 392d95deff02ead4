"""Everything the deployment examples name exists: files, flags, routes, ports; and their timeouts are consistent."""

import configparser
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from firth.cli.app import app
from firth.serving.access import KEY_VARIABLE, make_access
from firth.serving.app import PUBLIC, ROUTES
from firth.serving.config import Limits
from firth.serving.server import CLOSING_S, named_models

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_SPEC = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
assert _SPEC is not None and _SPEC.loader is not None
lock = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lock)

GETS = {route.path for route in ROUTES if route.method == "GET"}
# How long a stop may take after SIGTERM.
STOP_S = Limits().drain_s + CLOSING_S


def flags_of(tokens: list[str]) -> dict[str, Any]:
    """The arguments of ``firth serve``; an unknown flag is an error."""
    assert Path(tokens[0]).name == "firth" and tokens[1] == "serve"
    _, bound, _ = app.parse_args(tokens[1:], exit_on_error=False, print_error=False)
    found = dict(bound.arguments)
    named_models(found.get("models", ()))
    return found


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, in order, with continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)]


def values_of(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def listed(text: str) -> list[str]:
    """The arguments of an instruction in exec form."""
    found: list[str] = yaml.safe_load(text)
    return found


def commands_of(text: str, program: str) -> list[list[str]]:
    """The commands that a page or comment says to type."""
    joined = re.sub(r"\\\n#?\s*", "", text)
    return [shlex.split(line) for line in re.findall(rf"^#?\s*({program} .*)$", joined, flags=re.MULTILINE)]


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd have capitals
    parser.read_string((DEPLOY / "firth.service").read_text("utf-8"))
    return parser


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The manifest's objects by kind."""
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    assert len({one["kind"] for one in objects}) == len(objects)
    return {one["kind"]: one for one in objects}


@pytest.fixture(scope="module")
def pod(manifest: dict[str, Any]) -> Any:
    return manifest["Deployment"]["spec"]["template"]["spec"]


def test_the_image_is_built_of_what_there_is() -> None:
    stages = [line.partition(" AS ")[2] for line in values_of("FROM")]
    for line in values_of("COPY"):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        if line.startswith("--from="):
            assert line.split()[0].removeprefix("--from=") in stages
        else:
            assert all((ROOT / source).exists() for source in sources), line


def pins(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Version and SHA-256 hashes of each package in a requirements file."""
    lines = re.sub(r"\\\n\s*", "", path.read_text("utf-8")).splitlines()
    found = [
        re.fullmatch(r"([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})*) *", line) for line in lines if line[0] != "#"
    ]
    assert all(found)
    return {lock.normal(one[1]): (one[2], re.findall("[0-9a-f]{64}", one[3])) for one in found if one}


def test_all_that_the_image_installs_has_hashes_but_pytorch() -> None:
    installs = [shlex.split(part) for line in values_of("RUN") for part in line.split("&&") if "pip install" in part]
    fetching = [words for words in installs if "--no-index" not in words]
    assert all("--no-deps" in words for words in installs)
    without = [words for words in fetching if "--require-hashes" not in words]
    assert [words[-1] for words in without] == [lock.BY_INDEX] and "constraints.txt" in without[0]
    files = [words[words.index("-r") + 1] for words in fetching if words not in without]
    assert sorted(files) == ["deploy/requirements-build.txt", "deploy/requirements.txt"]
    (wheel,) = [line for line in values_of("RUN") if "pip wheel" in line]
    assert "--no-index" in wheel and "--no-build-isolation" in wheel and "pip check" in wheel
    constrained = pins(ROOT / "constraints.txt")
    for file in files:
        for name, (version, hashes) in pins(ROOT / file).items():
            assert hashes, name
            assert version == constrained.get(name, (version,))[0], f"{name}: make lock"


def test_the_hashes_are_of_all_that_the_server_needs() -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    found = pins(DEPLOY / "requirements.txt")
    assert {*found, "firth", lock.BY_INDEX} == set(lock.needed("firth", frozenset({"serve"}))), "make lock"
    assert set(found) <= set(pins(ROOT / "constraints.txt"))
    # Packages with compiled code have a file for each of two CPU architectures.
    assert {len(found[name][1]) for name in ("numpy", "scipy", "tokenizers", "orjson", "uvloop")} == {2}
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert set(backend) <= set(pins(DEPLOY / "requirements-build.txt"))


def test_the_image_serves_as_a_user_without_rights_and_is_asked_for_its_health() -> None:
    assert [int(user) > 0 for user in values_of("USER")] == [True]
    assert [name for name, _ in instructions()].index("USER") < [name for name, _ in instructions()].index("ENTRYPOINT")
    (entry,) = values_of("ENTRYPOINT")
    found = flags_of([*listed(entry), "spam=/models/spam"])
    assert str(found["port"]) == values_of("EXPOSE")[0]
    (health,) = values_of("HEALTHCHECK")
    code = listed(health.partition("CMD ")[2])[-1]
    compile(code, "health check", "exec")
    address = urlsplit(re.findall(r"http://[^']+", code)[0])
    assert address.path in GETS & PUBLIC and address.port == found["port"]


def test_the_command_that_runs_the_image_mounts_models_read_only_and_passes_a_key() -> None:
    texts = [(DEPLOY / "Containerfile").read_text("utf-8"), (ROOT / "docs" / "deployment.md").read_text("utf-8")]
    entry = listed(values_of("ENTRYPOINT")[0])
    for text in texts:
        (run,) = commands_of(text, "podman run")
        folder, where, how = run[run.index("--volume") + 1].split(":")
        assert folder and where == values_of("VOLUME")[0] and how == "ro" and "--read-only" in run
        assert run[run.index("--env") + 1] == KEY_VARIABLE
        assert run[run.index("--publish") + 1].rpartition(":")[2] == values_of("EXPOSE")[0]
        image = next(part for part in run if part.startswith("firth-serve:"))
        added = run[run.index(image) + 1 :]
        assert all(model.partition("=")[2].startswith(f"{where}/") for model in flags_of([*entry, *added])["models"])
        (build,) = commands_of(text, "podman build")
        # The image that the cluster's file names.
        assert build[build.index("-t") + 1] == image
        assert f"image: {image}\n" in (DEPLOY / "kubernetes.yaml").read_text("utf-8")
        assert (ROOT / build[build.index("-f") + 1]).exists()
    assert int(run[run.index("--stop-timeout") + 1]) > STOP_S


def test_the_unit_starts_the_server_and_gives_it_time_to_end(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    found = flags_of(shlex.split(service["ExecStart"]))
    assert found["host"] == "0.0.0.0"
    readable = [Path(path) for path in service["ReadOnlyPaths"].split()]
    needed = [found["key_file"], *(Path(one.partition("=")[2]) for one in found["models"])]
    assert all(any(path.is_relative_to(folder) for folder in readable) for path in needed)
    assert float(service["TimeoutStopSec"]) > STOP_S
    assert shlex.split(service["ExecReload"])[1:] == ["-HUP", "$MAINPID"]
    assert service["User"] not in ("root", "0")


def test_the_unit_takes_rights_away(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ""
    assert service["ProtectSystem"] == "strict" and service["SystemCallFilter"] == "@system-service"
    assert all(service.getboolean(name) for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"))
    assert "MemoryDenyWriteExecute" not in service, "the kernels of oneDNN could not be compiled"
    assert {"AF_INET", "AF_INET6"} <= set(service["RestrictAddressFamilies"].split())


def test_the_page_names_the_unit_s_paths(unit: configparser.ConfigParser) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    tokens = shlex.split(unit["Service"]["ExecStart"])
    assert str(Path(tokens[0]).parents[1]) in page and tokens[tokens.index("--key-file") + 1] in page
    assert all((ROOT / path).exists() for path in re.findall(r"deploy/[\w.-]+", page))


def test_the_pod_probes_routes_that_need_no_key(pod: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in GETS & PUBLIC and asked["port"] in ports
    assert container["livenessProbe"]["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]
    found = flags_of([*listed(values_of("ENTRYPOINT")[0]), *container["args"]])
    assert list(ports.values()) == [found["port"]]
    # Probes use the pod's address, which no flag could name.
    monkeypatch.setenv(KEY_VARIABLE, "a-key-of-sixteen-letters")
    assert make_access(found["host"], None, [], no_auth=False).hosts == ()


def test_the_pod_has_time_to_end(pod: Any) -> None:
    (container,) = pod["containers"]
    program, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] > float(pause_s) + STOP_S


def test_the_pod_has_the_image_s_user_models_to_read_and_one_thread_a_core(pod: Any) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == int(values_of("USER")[0])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    models = mounts["models"]
    assert models["readOnly"] and models["mountPath"] == values_of("VOLUME")[0]
    assert all(one.partition("=")[2].startswith(f"{models['mountPath']}/") for one in container["args"])
    environment = {one["name"]: one for one in container["env"]}
    assert "secretKeyRef" in environment[KEY_VARIABLE]["valueFrom"]
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert environment["OMP_NUM_THREADS"]["value"] == limits["cpu"] and set(limits) == set(requests)


def test_the_service_reaches_the_pods(manifest: dict[str, Any], pod: Any) -> None:
    template = manifest["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifest["Service"]["spec"]["selector"] == labels
    names = {port["name"] for port in pod["containers"][0]["ports"]}
    assert {port["targetPort"] for port in manifest["Service"]["spec"]["ports"]} <= names


def test_the_commands_for_the_secret_make_the_one_that_the_pod_reads(pod: Any) -> None:
    reference = next(e["valueFrom"]["secretKeyRef"] for e in pod["containers"][0]["env"] if e["name"] == KEY_VARIABLE)
    texts = [(DEPLOY / "kubernetes.yaml").read_text("utf-8"), (ROOT / "docs" / "deployment.md").read_text("utf-8")]
    for text in texts:
        (create,) = commands_of(text, "kubectl create secret")
        assert create[4] == reference["name"]
        assert create[5].startswith(f"--from-literal={reference['key']}=")
