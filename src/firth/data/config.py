"""Options of the data side of pre-training; no torch. Defaults are BERT's (Devlin et al. 2018, App. A.2)."""

import math
from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, PART, SHARE, Bounds, check_bounds, option
from firth.errors import ConfigError

WORKERS = Bounds("0 to 256", lambda x: 0 <= x <= 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingConfig:
    """Which pieces are predicted, and what the model sees in their place."""

    share: float = option(0.15, "of a row's pieces are predicted", PART)
    max_predictions: int = option(0, "at most this many a row; 0: the share of the row length, rounded up", AMOUNT)
    mask: float = option(0.8, "of them are seen as [MASK]", SHARE)
    keep: float = option(0.1, "of them are seen as they are; the rest as a random piece", SHARE)
    whole_words: bool = option(False, "choose whole words, not pieces")

    def __post_init__(self) -> None:
        check_bounds(self, "masking")
        if self.mask + self.keep > 1 + 1e-9:
            raise ConfigError(f"masking.mask={self.mask} and keep={self.keep}: expected two shares of at most 1")

    def most(self, length: int) -> int:
        """The most predictions in a row when rows are at most ``length`` long (20 at 128, 77 at 512)."""
        return self.max_predictions or math.ceil(self.share * length)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """From shards to rows."""

    corpus: str = option("", "corpus folder, made by firth prepare")
    instances: Literal["pairs", "documents", "streams", "copies", "translations"] = option(
        "pairs",
        "sentence pairs (next-sentence prediction), document windows, one long stream, windows that are "
        "written again (sequence autoencoder), or parallel text",
    )
    length: int = option(
        128, "longest row, special pieces included; for streams, tokens a step; for translations, of either side"
    )
    varied_windows: bool = option(
        False,
        "True: steps of a stream have about data.length tokens, now and then half of it, and the learning rate "
        "is in proportion (AWD-LSTM's language model); an update then has about train.batch_tokens",
    )
    restart_every: int = option(
        0,
        "steps of a stream after which recurrent state begins at zero again, as it does in new text; 0: never "
        "(published)",
        AMOUNT,
    )
    long_length: int = option(
        0, "row length of the last part of training; 0: one length throughout (paper: 512)", AMOUNT
    )
    long_share: float = option(0.1, "share of the steps (mixed_lengths: of the documents) at long_length", SHARE)
    mixed_lengths: bool = option(
        False, "True: rows of both lengths throughout, by document, so that late positions are learned from the start"
    )
    short_share: float = option(0.1, "of documents are cut to a random shorter target (pairs)", SHARE)
    duplicates: int = option(0, "0: new pairs and masks every epoch; n: n fixed copies, as in the paper (10)", AMOUNT)
    workers: int = option(1, "threads that make batches; the stream is the same for any number", WORKERS)

    def __post_init__(self) -> None:
        check_bounds(self, "data")
        if self.length < 8 or (self.long_length and self.long_length < self.length):
            raise ConfigError(
                f"data.length={self.length}, long_length={self.long_length}: expected 8 or more, the long one no less"
            )
        if self.varied_windows and self.instances != "streams":
            raise ConfigError(f"data.varied_windows=true is for data.instances='streams', not {self.instances!r}")
        if self.restart_every and self.instances != "streams":
            raise ConfigError(f"data.restart_every={self.restart_every} is for data.instances='streams'")
        if self.mixed_lengths and (self.instances != "documents" or not self.long_length):
            raise ConfigError(
                "data.mixed_lengths=true is for data.instances='documents' and two lengths: give data.long_length"
            )
        if self.instances == "streams" and self.long_length:
            raise ConfigError("data.long_length is for rows; a stream has one length")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Row length of each phase; of mixed lengths the longer one."""
        if self.mixed_lengths:
            return (self.long_length,)
        return (self.length, self.long_length) if self.long_length else (self.length,)
