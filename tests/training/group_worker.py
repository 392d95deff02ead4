"""Worker process for the group tests: does what its message says."""

import os
import signal
from typing import Any

from firth.errors import ConfigError
from firth.training.processes import Group, join_group


def work(group: Group, message: dict[str, Any]) -> None:
    mine = message.get("of") == group.rank
    if message["do"] == "meet":
        group.gather(b"first" * group.rank)
        for some in group.all_gather(bytes([group.rank]) * message["n_bytes"]):
            assert len(some) == message["n_bytes"]
        group.share(8)[group.rank] = group.rank
        group.all_gather(b"")
    elif mine and message["do"] == "refuse":
        raise ConfigError("no such thing: give another")
    elif mine and message["do"] == "break":
        raise ZeroDivisionError("ours")
    elif mine and message["do"] == "die":
        os.kill(os.getpid(), message["by"])
    group.all_gather(b"")
    signal.pause()


if __name__ == "__main__":
    join_group(work)
