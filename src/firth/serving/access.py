"""Access control: keys, host names, and the origin of pages that send requests."""

import hashlib
import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from firth.config import is_open_stream
from firth.errors import ConfigError
from firth.files import check_regular
from firth.serving.refusals import RefusalError

KEY_VARIABLE = "FIRTH_API_KEY"
_SHORTEST_KEY = 16
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# The form of a Host header: a name or an address, and a port. Browsers encode names of other alphabets in ASCII.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Which requests are allowed. ``keys``: SHA-256 of each. ``hosts``: names that the server answers to; none: any."""

    keys: tuple[bytes, ...] = ()
    hosts: tuple[str, ...] = ()

    def client(self, headers: Mapping[str, str], address: str) -> Hashable:
        """Identify the client by the number of its key, or by its address. RefusalError 401 without a known key."""
        if not self.keys:
            return address
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        # All are compared, each in constant time, so that timing reveals nothing about any of them.
        found = [number for number, known in enumerate(self.keys) if hmac.compare_digest(digest, known)]
        if scheme.lower() != "bearer" or not found:
            sent = scheme.lower() == "bearer" and key.strip()
            what = "the key is not one of this server's" if sent else "a key is needed"
            message = f"{what}: send the header Authorization: Bearer KEY"
            raise RefusalError(401, "key", message, headers={"WWW-Authenticate": "Bearer"})
        return ("key", found[0])

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise RefusalError for a name that is not the server's (DNS rebinding), and for a page of another site."""
        host = headers.get("host", "")
        if self.hosts and host_name(host) not in self.hosts:
            name = (host_name(host)[:60] if _HOST.fullmatch(host) else "") or "NAME"
            message = f"this server does not answer to {host[:60]!r}; start it with --allowed-host {name}"
            raise RefusalError(403, "host", message)
        origin = headers.get("origin")
        if origin is not None and _site(origin) != host:
            raise RefusalError(403, "origin", "pages of other sites may not ask this server")


def _site(origin: str) -> str | None:
    """The name and port in an Origin header; None if there are none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def allowed_name(given: str) -> str:
    """Normalise a name or address of the command line like ``host_name``; ConfigError if it fits no Host header."""
    host = f"[{given}]" if given.count(":") > 1 and not given.startswith("[") else given
    if not (name := host_name(host) if _HOST.fullmatch(host) else ""):
        raise ConfigError(f"--allowed-host {given!r}: expected a host name, such as box.lan, without http:// and path")
    return name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_access(host: str, key_file: Path | None, allowed_hosts: Sequence[str], *, no_auth: bool) -> Access:
    """Make the access rules that the flags ask for. ConfigError for an address that others can reach, without keys."""
    keys = read_keys(key_file)
    if no_auth and keys:
        raise ConfigError("--no-auth lets everybody in, but there are keys: leave out one or the other")
    if not keys and not no_auth and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached by others: give keys by --key-file FILE or the variable {KEY_VARIABLE}, or "
            "say --no-auth"
        )
    names = set(map(allowed_name, allowed_hosts))
    # An address such as 0.0.0.0 has no name of its own: names are then checked only if some are given.
    if is_loopback(host) or names:
        names |= {host.lower().rstrip("."), *_LOCAL_NAMES}
    return Access(keys=tuple(hashlib.sha256(key.encode()).digest() for key in keys), hosts=tuple(sorted(names)))


def read_keys(file: Path | None) -> list[str]:
    """Read the keys of a file, one per line, and of the environment; ConfigError for a file that others can read."""
    found = [key] if (key := os.environ.get(KEY_VARIABLE, "").strip()) else []
    if file is not None:
        try:
            if not is_open_stream(file):
                check_regular(file)
            mode = file.stat().st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(f"--key-file {file}: others can read it: chmod 600 {file}")
            lines = file.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"--key-file {file}: cannot be read: {reason}") from None
        keys = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
        if not keys:
            raise ConfigError(f"--key-file {file}: has no key; expected one a line")
        found += keys
    for key in found:
        if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"a key of {len(key)} characters: expected at least {_SHORTEST_KEY} letters, digits and marks; "
                "python3 -c 'import secrets; print(secrets.token_urlsafe())' makes one"
            )
    return found
