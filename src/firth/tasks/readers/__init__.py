"""Readers of labelled data, one file per kind: strict, streaming, errors with file and line."""
