"""Defaults of generation and translation, shared by Python, the commands and the server; no torch."""

# Beam width.
BEAM = 4
NEW_TOKENS = 50
TOP_P = 0.9
# Vaswani et al. 2017, §6.1.
LENGTH_PENALTY = 0.6
EXTRA = 50
