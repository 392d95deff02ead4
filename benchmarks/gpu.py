"""All GPU figures by one command: pre-training steps and encoding of BERT-base and BERT-large at 128 and 512.

PYTHONPATH=src python benchmarks/gpu.py      # --sizes base --lengths 512; --device cpu --quick

Runs gpu_pretrain_step.py and gpu_encode.py with the same options: tokens per second, share of the GPU's matrix rate,
and memory, beside transformers where it is installed.
"""

from collections.abc import Sequence
from pathlib import Path

import gpu_encode
import gpu_pretrain_step


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    return [*gpu_pretrain_step.main(arguments), *gpu_encode.main(arguments)]


if __name__ == "__main__":
    main()
