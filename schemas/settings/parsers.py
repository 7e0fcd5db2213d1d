"""Parsers of settings, one per kind of value.

Each takes the text and returns the value. Each raises a ValidationError that describes a valid value and never quotes the
given one, which may be a secret in the wrong place.
"""

import base64
import re
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from marshmallow import ValidationError, fields, validate

Parse = Callable[[str], Any]

#: AES-256.
KEY_BYTES: Final = 32

#: Shorter shared secrets are rejected. They can only be guessed over the network, some twenty times a minute, which eight
#: random characters resist by far; placeholders that people type are shorter.
MIN_SECRET_BYTES: Final = 8
#: A shorter signing secret can be guessed offline from one signed message: it is accepted with a warning.
RECOMMENDED_SECRET_BYTES: Final = 16
#: What to do about a secret that is too short.
HOW_TO_GENERATE: Final = "`openssl rand -hex 32` prints one"

#: Ids have four bytes in PostgreSQL.
MAX_SERIAL: Final = 2**31 - 1
#: The limit of a number without a narrower one: more than any installation has, and both databases can store it.
MAX_COUNT: Final = 10**12
#: A hundred years: much longer times would exceed the range of dates.
MAX_DAYS: Final = 36_500
MAX_HOURS: Final = MAX_DAYS * 24
#: Seconds between two attempts: a year at most.
MAX_DELAY_S: Final = 365 * 86_400
#: Seconds for one attempt, or between two polls: a day at most. Polls without a pause would keep a processor and the
#: database busy, and no receiver responds in less than a hundredth of a second.
MIN_WAIT_S: Final = 0.01
MAX_WAIT_S: Final = 86_400
#: Maximum number of processes of one role: more than any machine has cores.
MAX_PROCESSES: Final = 1_000
#: Maximum number of threads of one process, which all start: more would reach the limits of a usual machine, and several
#: processes are faster.
MAX_THREADS: Final = 10_000
#: SQLite stores no longer values, and a body is kept in memory.
MAX_BODY_BYTES: Final = 10**9

#: Help for the URLs of servers that require a user and a password.
HOW_TO_ENCODE: Final = (
    "In a user or password, write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25, a space as %20."
)

#: The names of this machine in URLs.
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

_DATABASES: Final = ("postgresql://", "postgres://", "sqlite:///")
#: Any number of hosts, each with an optional port; a host may be the percent-encoded folder of a socket.
_POSTGRESQL_URL: Final = re.compile(
    r"postgres(?:ql)?://(?:{part}*(?::{part}*)?@)?(?:{host}(?:,{host})*)?(?:/{part}*)?(?:\?(?:{part}|[/?:@])*)?".format(
        part=r"(?:[^\s/?#@:%\[\]]|%[0-9A-Fa-f]{2})",
        host=r"(?:\[[0-9A-Fa-f:.]+\]|(?:[^\s/?#@:,%\[\]]|%[0-9A-Fa-f]{2})*)(?::[0-9]{1,5})?",
    )
)


def secret(value: str) -> str:
    """Return the secret unchanged: at least MIN_SECRET_BYTES bytes of text, or empty."""
    if 0 < len(value.encode()) < MIN_SECRET_BYTES:
        raise ValidationError(f"A secret must have at least {MIN_SECRET_BYTES} bytes; {HOW_TO_GENERATE}.")
    return value


def whole(minimum: int, maximum: int = MAX_COUNT) -> Parse:
    """Return a parser of whole numbers from `minimum` to `maximum`."""
    return fields.Integer(validate=validate.Range(min=minimum, max=maximum)).deserialize


def seconds(value: str) -> Any:
    """Return a number from MIN_WAIT_S to MAX_WAIT_S, fractions included."""
    return fields.Float(validate=validate.Range(min=MIN_WAIT_S, max=MAX_WAIT_S)).deserialize(value)


def truth(value: str) -> Any:
    """Return a boolean: true, yes, on, 1, or their opposites."""
    return fields.Boolean().deserialize(value)


def one_of(*words: str) -> Parse:
    """Return a parser that accepts one of a few words."""
    return fields.String(validate=validate.OneOf(words)).deserialize


def member_of(kind: type[Enum]) -> Parse:
    """Return a parser of an enumeration's values."""
    return fields.Enum(kind, by_value=True).deserialize


def some_of(kind: Callable[[str], Any], words: Iterable[str], refusal: str) -> Parse:
    """Return a parser of a comma-separated choice from `words`, each converted to a `kind`."""
    allowed = frozenset(words)

    def parsed(value: str) -> frozenset[Any]:
        names = {name.strip() for name in value.split(",") if name.strip()}
        if not names <= allowed:
            raise ValidationError(refusal)
        return frozenset(kind(name) for name in names)

    return parsed


#: Redirects and the cookie's path begin with this path. No segment may be `.`, `..` or empty: browsers resolve those.
_PUBLIC_PATH: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*/?")


def public_url(value: str) -> str:
    """Return the base of all URLs in responses, or an empty value; credentials are rejected, since clients see it."""
    if not value:
        return value
    parts = plain_web_address(value)
    if parts is None or "?" in value or not _PUBLIC_PATH.fullmatch(parts.path):
        raise ValidationError(
            "Use http://HOST or https://HOST, optionally with a port and a plain path, without user or password, "
            "query and fragment; an international name as xn--…"
        )
    return value


def sentry_dsn(value: str) -> str:
    """Return a DSN of Sentry: a URL with a public key and a project's number."""
    parts = web_address(value)
    project = parts.path.rpartition("/")[2] if parts is not None else ""
    if parts is None or not (parts.username and project.isascii() and project.isdecimal()):
        raise ValidationError("Use the DSN as Sentry shows it: https://KEY@HOST/PROJECT.")
    return value


def otlp_endpoint(value: str) -> str:
    """Return the base URL of a collector; the path of each signal is added to it."""
    parts = web_address(value)
    if parts is not None and "@" in parts.netloc:
        raise ValidationError("Omit user and password; set a collector's token in OTEL_EXPORTER_OTLP_HEADERS.")
    if parts is None or parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1/traces"):
        raise ValidationError("Use the collector's base URL, such as http://127.0.0.1:4318, without /v1/traces.")
    return value


def database_url(value: str) -> str:
    """Return the database's URL, or an empty value; refuses a form that PostgreSQL's library would reject and quote."""
    if value and not value.startswith(_DATABASES):
        raise ValidationError(f"Use a URL that starts with one of: {', '.join(_DATABASES)}")
    if value.startswith("postgres") and not _POSTGRESQL_URL.fullmatch(value):
        raise ValidationError(f"Use postgresql://USER:PASSWORD@HOST:PORT/DATABASE. {HOW_TO_ENCODE}")
    return value


#: Labels of letters, digits, `_` and `-`. The last one has a letter: digits alone are part of an IPv4 address.
_HOST_NAME: Final = re.compile(r"(?!.{254})(?:(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.)*(?!-|\d+$)[A-Za-z0-9_-]{1,63}(?<!-)")


def bind(value: str) -> str:
    """Return HOST:PORT, the host as an IPv4 address, an IPv6 address in brackets or a name."""
    host, _, port = value.rpartition(":")
    if not (_is_host(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValidationError(
            "Use HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000; HOST is an IPv4 address, an IPv6 address in brackets or a "
            "host name."
        )
    return value


def schedule(value: str) -> tuple[int, ...]:
    """Return whole seconds, none of them negative or above MAX_DELAY_S."""
    try:
        delays = tuple(map(int, value.split(",")))
    except ValueError:
        delays = (-1,)
    if not all(0 <= delay <= MAX_DELAY_S for delay in delays):
        raise ValidationError(f"Use comma-separated whole seconds from 0 to {MAX_DELAY_S}, which is a year.")
    return delays


def encryption_keys(value: str) -> tuple[bytes, ...]:
    """Return the keys, KEY_BYTES bytes each."""
    return tuple(_key(part.strip()) for part in value.split(",") if part.strip())


def web_address(value: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None for anything else."""
    return None if any(map(str.isspace, value)) else _parts(value, ("http", "https"))


def plain_web_address(value: str) -> SplitResult | None:
    """Return the parts of an http or https URL in printable ASCII without user and fragment; None for anything else."""
    parts = web_address(value)
    is_plain = value.isascii() and value.isprintable() and "#" not in value
    return parts if parts is not None and is_plain and "@" not in parts.netloc else None


def server_address(value: str, schemes: Collection[str]) -> SplitResult | None:
    """Return the parts of a URL that names a server, perhaps with a user, but no path or query; None for anything else."""
    parts = _parts(value, schemes)
    is_plain = value.isascii() and value.isprintable() and not {*" ?#"} & {*value}
    return parts if parts is not None and parts.path in {"", "/"} and is_plain else None


def _parts(value: str, schemes: Collection[str]) -> SplitResult | None:
    try:
        parts = urlsplit(value)
        return parts if parts.scheme in schemes and parts.hostname and parts.port != 0 else None
    except ValueError:
        # an invalid port, an unclosed bracket
        return None


def _is_host(host: str) -> bool:
    try:
        if host.startswith("[") and host.endswith("]"):
            return bool(IPv6Address(host[1:-1]))
        return bool(_HOST_NAME.fullmatch(host) or IPv4Address(host))
    except ValueError:
        return False


def _key(encoded: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        # Both binascii.Error and the error for text that is not ASCII are ValueErrors.
        raise ValidationError("Each key must be base64.") from None
    if len(key) != KEY_BYTES:
        raise ValidationError(f"Each key must be {KEY_BYTES} bytes.")
    return key
