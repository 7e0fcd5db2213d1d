"""Canaries: unique words that tests send as input, and the search for them in all stored data, in any encoding.

A search that misses a place proves nothing. `tests/test_canaries.py` therefore puts a word into each of these places, in
each encoding, and checks that the search finds it.
"""

import html
import json
import re
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from storage.db.engine import rows
from storage.db.models import ALL
from tests.support.servers.redis_and_postgres import PostgresServer

#: The content of each searched place (such as a file, a column or a Redis key), by the name of the place.
Places = Mapping[str, bytes]

_NUMBERED: Final = re.compile(rb"cnry(\d{5})yrnc", re.IGNORECASE)


def numbered(number: int) -> str:
    """Return the canary with this number. It has only letters and digits, so it is valid in names and hosts."""
    return f"cnry{number:05}yrnc"


def numbers_in(data: bytes) -> set[int]:
    """Return the numbers of the canaries that `data` contains unencoded."""
    return {int(digits) for digits in _NUMBERED.findall(data)}


def spellings(word: str) -> frozenset[bytes]:
    """Return a word as it is and in the usual encodings, all in lower case."""
    raw = word.encode()
    reported = {
        raw,
        raw.hex().encode(),
        word.encode("utf-16-le"),
        word.encode("utf-16-be"),
        quote(word, safe="").encode(),
        "".join(f"%{byte:02x}" for byte in raw).encode(),
        json.dumps(word)[1:-1].encode(),
        "".join(f"\\u{ord(letter):04x}" for letter in word).encode(),
        "".join(f"\\x{byte:02x}" for byte in raw).encode(),
        html.escape(word).encode(),
        "".join(f"&#{ord(letter)};" for letter in word).encode(),
        "".join(f"&#x{ord(letter):x};" for letter in word).encode(),
        *_base64(raw),
    }
    return frozenset(each.lower() for each in reported)


def is_in(data: bytes, word: str) -> bool:
    """Return whether `data` contains the word in any encoding."""
    lowered = data.lower()
    return any(each in lowered for each in spellings(word))


def traces(places: Places, words: Iterable[str]) -> list[str]:
    """Return `word in place` for each word that a place contains in any encoding."""
    spelled = {word: spellings(word) for word in words}
    lowered = {name: data.lower() for name, data in places.items()}
    return sorted(
        f"{word} in {name}"
        for name, data in lowered.items()
        for word, ways in spelled.items()
        if any(way in data for way in ways)
    )


def folder(path: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder: logs, metrics, a database with its free pages and its log."""
    found = {}
    for each in sorted(path.rglob("*")):
        with suppress(FileNotFoundError):  # the file was deleted meanwhile
            if each.is_file():
                found[f"file {each.relative_to(path)}"] = each.read_bytes()
    return found


def columns() -> dict[str, bytes]:
    """Return all values of each column of the open database."""
    found: dict[str, bytes] = {}
    for model in ALL:
        table, names = model._meta.table_name, [field.column_name for field in model._meta.sorted_fields]
        values = rows(f"SELECT {', '.join(names)} FROM {table}")  # noqa: S608 - our own names
        for name, column in zip(names, zip(*values, strict=True), strict=True) if values else ():
            found[f"{table}.{name}"] = b"\n".join(_bytes(value) for value in column)
    return found


def postgres(server: PostgresServer, dump: Path | None = None) -> dict[str, bytes]:
    """Return the log of a PostgreSQL, and a dump of it, uncompressed."""
    found = {"PostgreSQL's log": (server.folder / "log").read_bytes()}
    if dump is not None:
        command = [str(server.binaries / "pg_restore"), "--file=-", str(dump)]
        found["dump"] = subprocess.run(command, capture_output=True, check=True).stdout
    return found


def redis(url: str) -> dict[str, bytes]:
    """Return every key of a Redis with its value."""
    with Redis.from_url(url) as client:
        return {f"Redis key {key!r}": key + b"\n" + _held(client, key) for key in client.scan_iter()}


def processes(pids: Iterable[int]) -> dict[str, bytes]:
    """Return what every user of the machine can read of processes and their children: names and arguments."""
    found = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            found[f"process {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
            found |= processes(_children(pid))
    return found


class Monitor:
    """Records every command that a Redis receives, with Redis' command MONITOR."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = Redis.from_url(url)
        self._reported: list[bytes] = []
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @property
    def places(self) -> dict[str, bytes]:
        """The recorded commands."""
        return {"Redis commands": b"\n".join(self._reported)}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends when MONITOR reports the next command: the PING below.
        self._listening.clear()
        with Redis.from_url(self._url) as other, suppress(RedisError):
            other.ping()
        self._thread.join(10)
        self._client.close()

    def _listen(self) -> None:
        with suppress(RedisError), self._client.monitor() as monitor:  # type: ignore[no-untyped-call]  # untyped in redis
            self._listening.set()
            for reported in monitor.listen():
                self._reported.append(_bytes(reported["command"]))
                if not self._listening.is_set():
                    return


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield the base64 of a word at each offset, without the digits that depend on adjacent bytes."""
    for before, mixed in ((0, 0), (1, 2), (2, 3)):
        digits = b64encode(bytes(before) + raw).rstrip(b"=")
        whole = digits[mixed : -1 if (before + len(raw)) % 3 else None]
        yield from (whole, whole.replace(b"+", b"-").replace(b"/", b"_"))


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview | bytearray) else str(value).encode()


def _held(client: Redis, key: bytes) -> bytes:
    read = {
        b"string": client.get,
        b"list": lambda name: client.lrange(name, 0, -1),
        b"set": client.smembers,
        b"zset": lambda name: client.zrange(name, 0, -1),
        b"hash": client.hgetall,
        b"stream": client.xrange,
    }
    kind: Any = client.type(key)
    # A key that expired meanwhile has the type "none" and no value.
    return b"" if kind == b"none" else _flat(read[kind](key))  # type: ignore[operator]  # redis annotates both its clients


def _flat(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"\n".join(_flat(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set):
        return b"\n".join(map(_flat, value))
    return _bytes(value)


def _children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
