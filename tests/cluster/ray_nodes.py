"""Settings of the nodes that tests start on this machine."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A loopback address that Ray does not replace by the machine's own, as it does 127.0.0.1.
ADDRESS = "127.0.0.2"
# Objects are small, and Ray takes no less.
NODE = {"object_store_memory": 80 << 20, "node_ip_address": ADDRESS}


def python_path() -> str:
    """Where nodes find this Firth, and the functions that tests run there."""
    return os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE), os.environ.get("PYTHONPATH", "")])
