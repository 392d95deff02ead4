"""Look up known vulnerabilities of the pinned dependencies (``make audit``).

Prints how many were looked up, because an index may know none of them. Skipped, with the reason, where pip-audit is not
installed or has no network. Any finding is an error.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

# --no-deps requires each line to be a pin, as all of constraints.txt are; nothing is installed to resolve them.
COMMAND = (
    *("-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"),
    *("--progress-spinner", "off", "--format", "json"),
)


def verdict(dependencies: list[dict[str, Any]]) -> tuple[int, str]:
    """The exit code and the lines to print for pip-audit's list of dependencies."""
    unknown = [one["name"] for one in dependencies if "skip_reason" in one]
    found = [
        f"{one['name']} {one['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for one in dependencies
        for hole in one.get("vulns", ())
    ]
    if found:
        return 1, "\n".join(found)
    if len(unknown) == len(dependencies):
        return 0, f"audit skipped: the index knows none of the {len(unknown)} dependencies"
    looked_up = f"audit: no known vulnerability in {len(dependencies) - len(unknown)} dependencies"
    return 0, looked_up + (f"; not looked up: {', '.join(unknown)}" if unknown else "")


def main() -> int:
    if find_spec("pip_audit") is None:
        print("audit skipped: pip-audit is not installed (.venv/bin/python -m pip install pip-audit)")
        return 0
    ran = subprocess.run([sys.executable, *COMMAND], capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"audit skipped: {(ran.stderr.strip().splitlines() or ['pip-audit said nothing'])[-1]}")
        return 0
    code, lines = verdict(dependencies)
    print(lines)
    return code


if __name__ == "__main__":
    sys.exit(main())
