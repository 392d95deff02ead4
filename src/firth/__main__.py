"""``python -m firth`` is ``firth``: for launchers such as torchrun."""

import sys

from firth.cli import main

if __name__ == "__main__":
    sys.exit(main())
