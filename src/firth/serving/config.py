"""Options of the server; no torch."""

from dataclasses import dataclass, fields

from firth.config import option
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on one request, one client and all clients together."""

    body_bytes: int = option(2_000_000, "longest body of a request; a longer one is refused with 413")
    body_s: float = option(10.0, "seconds within which a body must be there; a slower one is refused with 408")
    inputs: int = option(32, "texts in one request; more are refused with 422")
    characters: int = option(100_000, "characters of one text; a longer one is refused with 422")
    requests: int = option(512, "requests in flight; further ones are refused with 429")
    timeout_ms: int = option(30_000, "until a request must be answered; x-timeout-ms may ask for less")
    max_queue_ms: int = option(2_000, "predicted wait from which on a client's further requests are refused with 429")
    slice_ms: int = option(100, "predicted time of a batch; up to three times as long while many requests wait")
    drain_s: float = option(30.0, "after SIGTERM, how long accepted requests may take to end")
    new_tokens: int = option(512, "tokens that one request may have generated, in all its prompts; not of translations")
    prompt_tokens: int = option(1_024, "tokens of a prompt or a text to translate, read in one step; more: 422")
    candidate_characters: int = option(2_000_000, "characters in an answer of /fill-mask; more are refused with 422")
    vector_numbers: int = option(2_000_000, "numbers in an answer of /embed_all; more are refused with 422")

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigError(f"{field.name}={getattr(self, field.name)}: expected more than 0")
