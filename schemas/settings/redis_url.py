"""Parses REDIS_URL in all its forms, in one place for all users of Redis.

REDIS_URL names one server by TCP, TLS or a unix socket, or the Sentinels that name the current master. All parts are
percent-encoded. An ambiguous form is refused, and so is any parameter other than those listed here: a URL that set timeouts
would override those that requests rely on. Errors never quote the URL, which contains the password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote

from marshmallow import ValidationError

from schemas.settings.parsers import HOW_TO_ENCODE

SERVER_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_TLS: Final = frozenset({"rediss", "rediss+sentinel"})
_SENTINEL: Final = frozenset({"redis+sentinel", "rediss+sentinel"})
_SCHEMES: Final = frozenset({"redis", "unix"}) | _TLS | _SENTINEL
#: Files for TLS: the authorities to trust instead of the system's, and our client certificate with its key.
_TLS_FILES: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})

#: Not urlsplit: some versions of Python reject brackets within a list of hosts, and quote the text.
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z+]+)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?", re.DOTALL
)
_PLACE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]:,]+))(?::(?P<port>[0-9]{1,5}))?")
_DATABASE: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where to connect: the one server in `places`, `socket`, or the master of `service` by the Sentinels in `places`."""

    places: tuple[tuple[str, int], ...] = ()
    socket: str | None = None
    service: str | None = None
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    tls_files: Mapping[str, str] = field(default_factory=dict)


def parse_redis_url(text: str) -> RedisUrl:
    """Parse a URL. Raises ValidationError."""
    url = _split(text)
    username, password = _credentials(url.netloc)
    where, is_tls = url.netloc.rpartition("@")[2], url.scheme in _TLS
    path = _path_of_socket(url, where) if url.scheme == "unix" else None
    service, in_path = (None, "") if path else _service_and_database(url)
    parameters = _parameters(url.query, is_tls=is_tls)
    return RedisUrl(
        places=() if path else _places(where, many=url.scheme in _SENTINEL),
        socket=path,
        service=service,
        database=_database(in_path, parameters.pop("db", "")),
        username=username,
        password=password,
        is_tls=is_tls,
        tls_files=parameters,
    )


def _split(text: str) -> SplitResult:
    found = _URL.fullmatch(text)
    if found is None or found["scheme"].lower() not in _SCHEMES:
        forms = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://"
        raise ValidationError(f"Use a URL that starts with one of: {forms}")
    if "#" in text:
        raise ValidationError(f"The URL contains #. {HOW_TO_ENCODE}")
    return SplitResult(found["scheme"].lower(), found["netloc"], found["path"], found["query"] or "", "")


def _credentials(netloc: str) -> tuple[str | None, str | None]:
    username, _, password = netloc.rpartition("@")[0].partition(":")
    if username and not password:
        raise ValidationError(
            "A user needs a password: redis://user:password@host, or redis://:password@host without a user."
        )
    return unquote(username) or None, unquote(password) or None


def _path_of_socket(url: SplitResult, where: str) -> str:
    if where or len(url.path) < 2:
        raise ValidationError("Give the whole path of the socket: unix:///path or unix://user:password@/path.")
    return unquote(url.path)


def _places(where: str, *, many: bool) -> tuple[tuple[str, int], ...]:
    named = where.split(",")
    if len(named) > 1 and not many:
        raise ValidationError("Only Sentinels can be several hosts: redis+sentinel://host:26379,host:26379/service.")
    return tuple(_place(each.strip(), SENTINEL_PORT if many else SERVER_PORT) for each in named)


def _place(text: str, usual_port: int) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    port = int(found["port"] or usual_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValidationError(f"Use HOST or HOST:PORT after the user and password. {HOW_TO_ENCODE}")
    return found["six"] or unquote(found["name"]), port


def _service_and_database(url: SplitResult) -> tuple[str | None, str]:
    parts = [unquote(part) for part in url.path.removeprefix("/").split("/")]
    service = parts.pop(0) if url.scheme in _SENTINEL else None
    if service == "":
        raise ValidationError("Name the service that the Sentinels watch: redis+sentinel://host:26379/service.")
    if len(parts) > 1:
        raise ValidationError("Nothing follows the number of the database.")
    return service, parts[0] if parts else ""


def _parameters(query: str, *, is_tls: bool) -> dict[str, str]:
    given = parse_qsl(query, keep_blank_values=True)
    allowed = {"db"} | (_TLS_FILES if is_tls else set())
    if len(dict(given)) < len(given) or not {name for name, _ in given} <= allowed:
        # The names are not quoted: the text after ? may be the rest of a password.
        raise ValidationError(f"Parameters allowed after ?, once each: {', '.join(sorted(allowed))}. {HOW_TO_ENCODE}")
    return dict(given)


def _database(in_path: str, in_query: str) -> int:
    number = in_path or in_query or "0"
    if (in_path and in_query) or not _DATABASE.fullmatch(number):
        raise ValidationError("A Redis database has a number. Name it once: /1 at the end, or ?db=1.")
    return int(number)
