"""Write hashes of the packages that the container installs to deploy/ (``make lock``).

requirements.txt has the dependencies of ``firth[serve]``, at the versions of constraints.txt and without PyTorch, whose
files differ between indexes; requirements-build.txt has what builds Firth's wheel. Both are for CPython 3.11 on Linux,
on two architectures. The hashes come from the package index that pip is configured for: nothing is installed, and
local files are refused.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
ARCHITECTURES = ("x86_64", "aarch64")
# Minor versions of glibc: the container's, and the oldest that wheels are built for.
_NEWEST_GLIBC, _OLDEST_GLIBC = 41, 5
BY_INDEX = "torch"  # pinned by its version alone
_TITLE = """# {what}, for CPython 3.11 on Linux (x86_64, aarch64).
# Written by make lock; versions that constraints.txt names are its own.
"""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str, extras: frozenset[str]) -> dict[str, str]:
    """The installed packages that a package needs, itself included, each with its version."""
    found: dict[str, str] = {}
    todo, seen = [(normal(name), extras)], set()
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.add(item)
        package = distribution(item[0])
        found[item[0]] = package.version
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*item[1], "")):
                todo.append((normal(requirement.name), frozenset(requirement.extras)))
    return found


def reported(architecture: str, *wanted: str) -> list[dict[str, Any]]:
    """What pip would install on an architecture; SystemExit with pip's message if a file is missing."""
    tags = [f"manylinux_2_{minor}_{architecture}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
    # pip requires a target folder for another machine's files; a dry run writes nothing.
    command = ["-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", "--target", "build/lock"]
    command += ["--implementation", "cp", "--python-version", "3.11", "--only-binary", ":all:"]
    command += [word for tag in (*tags, f"manylinux2014_{architecture}") for word in ("--platform", tag)]
    ran = subprocess.run([sys.executable, *command, *wanted], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return list(json.loads(ran.stdout)["install"])


def locked(*wanted: str) -> list[str]:
    """A line with version and hashes for each package, sorted by name."""
    versions, hashes = dict[str, str](), defaultdict[str, set[str]](set)
    for architecture in ARCHITECTURES:
        for one in reported(architecture, *wanted):
            name, file = normal(one["metadata"]["name"]), one["download_info"]
            if not file["url"].startswith("https://"):
                raise SystemExit(
                    f"{name}: pip takes a file of this machine, whose hash says nothing: PIP_CONFIG_FILE={os.devnull} "
                    "PIP_FIND_LINKS= make lock"
                )
            if versions.setdefault(name, one["metadata"]["version"]) != one["metadata"]["version"]:
                raise SystemExit(f"{name}: the architectures have other versions")
            hashes[name].add(file["archive_info"]["hashes"]["sha256"])
    return [
        " \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{one}" for one in sorted(hashes[name]))])
        + "\n"
        for name in sorted(hashes)
    ]


def main() -> None:
    serving = needed("firth", frozenset({"serve"}))
    pins = [f"{name}=={version}" for name, version in sorted(serving.items()) if name not in ("firth", BY_INDEX)]
    files = {
        "requirements.txt": ("What firth serve needs, without PyTorch", locked("--no-deps", *pins)),
        "requirements-build.txt": ("What builds Firth's wheel", locked("-c", "constraints.txt", "hatchling")),
    }
    for name, (what, lines) in files.items():
        (DEPLOY / name).write_text(_TITLE.format(what=what) + "".join(lines), "utf-8")


if __name__ == "__main__":
    main()
