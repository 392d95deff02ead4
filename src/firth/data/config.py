"""Options of pre-training data; does not import torch. Defaults are BERT's (Devlin et al. 2018, App. A.2)."""

import math
from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, PART, SHARE, Bounds, check_bounds, option
from firth.errors import ConfigError

# Gigabytes of a remote corpus's shards that are kept on this machine.
CACHE_GB = 20.0

WORKERS = Bounds("0 to 256", lambda x: 0 <= x <= 256)


# The shortest maximum length of sequences.
SHORTEST = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingConfig:
    """Which tokens are predicted, and what replaces them in the input."""

    share: float = option(0.15, "share of a sequence's tokens to predict", PART)
    max_predictions: int = option(
        0, "maximum predictions per sequence; 0: the share of the sequence length, rounded up", AMOUNT
    )
    mask: float = option(0.8, "share of them replaced by [MASK]", SHARE)
    keep: float = option(0.1, "share of them left unchanged; the rest become a random token", SHARE)
    whole_words: bool = option(False, "mask whole words instead of single tokens")

    def __post_init__(self) -> None:
        check_bounds(self, "masking")
        if self.mask + self.keep > 1 + 1e-9:
            raise ConfigError(f"masking.mask={self.mask} and keep={self.keep}: expected a sum of at most 1")

    def most(self, length: int) -> int:
        """Maximum predictions per sequence of at most ``length`` tokens (20 at 128, 77 at 512)."""
        return self.max_predictions or math.ceil(self.share * length)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which sequences are built from the corpus."""

    corpus: str = option("", "corpus folder, made by firth prepare")
    instances: Literal["pairs", "documents", "streams", "copies", "crops", "translations"] = option(
        "pairs",
        "sentence pairs (next-sentence prediction), document windows, one long stream, windows to "
        "reconstruct (sequence autoencoder), two crops of each text (contrastive), or parallel text",
    )
    length: int = option(
        128,
        "maximum sequence length, with special tokens; for streams, tokens per step; for translations, of either side",
    )
    varied_windows: bool = option(
        False,
        "True: vary the length of stream windows around data.length, sometimes half of it, and scale the learning rate "
        "in proportion (AWD-LSTM); an update then has about train.batch_tokens",
    )
    restart_every: int = option(
        0,
        "steps of a stream after which recurrent state is reset to zero, as at the start of a text; 0: never "
        "(published)",
        AMOUNT,
    )
    long_length: int = option(
        0, "sequence length in the last part of training; 0: one length throughout (paper: 512)", AMOUNT
    )
    long_share: float = option(0.1, "share of the steps (mixed_lengths: of the documents) at long_length", SHARE)
    mixed_lengths: bool = option(
        False, "True: use both lengths throughout, by document, so that late positions are learned from the start"
    )
    short_share: float = option(0.1, "share of documents cut to a random shorter length (pairs)", SHARE)
    duplicates: int = option(
        0, "0: new pairs and masks every epoch; n: n fixed copies of the data, as in the paper (10)", AMOUNT
    )
    workers: int = option(1, "threads that build batches; the data is the same for any number", WORKERS)

    cache_gb: float = option(
        CACHE_GB, "gigabytes of shards kept in ~/.cache/firth/shards, for a corpus at an address such as s3://…", AMOUNT
    )

    def __post_init__(self) -> None:
        check_bounds(self, "data")
        if self.length < SHORTEST or (self.long_length and self.long_length < self.length):
            raise ConfigError(
                f"data.length={self.length}, long_length={self.long_length}: expected at least {SHORTEST}, and "
                "long_length no less than length"
            )
        if self.varied_windows and self.instances != "streams":
            raise ConfigError(f"data.varied_windows=true requires data.instances='streams', not {self.instances!r}")
        if self.restart_every and self.instances != "streams":
            raise ConfigError(f"data.restart_every={self.restart_every} requires data.instances='streams'")
        if self.mixed_lengths and self.instances != "documents":
            raise ConfigError(
                f"data.mixed_lengths=true is for data.instances='documents', not {self.instances!r}: "
                "add --set data.mixed_lengths=false"
            )
        if self.mixed_lengths and not self.long_length:
            raise ConfigError("data.mixed_lengths=true requires two lengths: give data.long_length")
        if self.instances == "streams" and self.long_length:
            raise ConfigError("data.long_length does not apply to streams, which have one length")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Sequence length of each phase; with mixed lengths the longer one."""
        if self.mixed_lengths:
            return (self.long_length,)
        return (self.length, self.long_length) if self.long_length else (self.length,)
