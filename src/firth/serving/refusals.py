"""Why a request is refused: status, kind and reason, in the form of its protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Protocol = Literal["tei", "openai", "kserve"]

# Error types of TEI and OpenAI, by status.
_TEI_TYPES = {413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


@dataclass(eq=False)
class RefusalError(Exception):
    """A request that is answered with an error.

    ``status``: of HTTP. ``reason``: one word for the metrics. ``param``: the field of the body that is wrong.
    """

    status: int
    reason: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, protocol: Protocol) -> dict[str, Any]:
        """The error as clients of a protocol read it."""
        if protocol == "kserve":
            return {"error": self.message}
        if protocol == "openai":
            server = "server_error" if self.status >= 500 else "invalid_request_error"
            kind = _OPENAI_TYPES.get(self.status, server)
            return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.reason}}
        kind = _TEI_TYPES.get(self.status, "Backend" if self.status >= 500 else "Validation")
        return {"error": self.message, "error_type": kind}


def protocol_of(path: str) -> Protocol:
    """The protocol that a path belongs to."""
    if path.startswith("/v1"):
        return "openai"
    return "kserve" if path.startswith("/v2") else "tei"
