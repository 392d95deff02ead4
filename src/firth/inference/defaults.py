"""Names and defaults of inference, shared by Python, the commands and the server; no torch."""

from typing import Literal

# How the vectors of several layers become one.
MixName = Literal["sum", "mean", "concat", "scalar"]
# Endings of files of the vectors of tokens or words.
UNIT_FILES = (".npz", ".hdf5", ".h5", ".jsonl")
# What ``--task`` names for scoring translations, which are no task of fine-tuning.
TRANSLATE = "translate"

# Beam width.
BEAM = 4
NEW_TOKENS = 50
TOP_P = 0.9
# Vaswani et al. 2017, §6.1.
LENGTH_PENALTY = 0.6
EXTRA = 50
