"""The search for canaries finds a word in each searched place, in each encoding."""

import base64
import gzip
import html
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from storage.db.engine import close_database, connection, execute, is_sqlite, open_database
from tests.support import canaries
from tests.support.factories import NOW, make_customer, make_exports
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

WORD = 'cAnArY-7"f3a/9d+'

SPELLED: dict[str, Callable[[str], bytes]] = {
    "in clear": lambda word: word.encode(),
    "in small letters": lambda word: word.lower().encode(),
    "in capitals": lambda word: word.upper().encode(),
    "percent": lambda word: urllib.parse.quote(word, safe="").encode(),
    "every byte as percent": lambda word: "".join(f"%{ord(letter):02X}" for letter in word).encode(),
    "JSON": lambda word: word.replace('"', '\\"').encode(),
    "JSON escapes": lambda word: "".join(f"\\u{ord(letter):04X}" for letter in word).encode(),
    "HTML": lambda word: html.escape(word).encode(),
    "HTML numbers": lambda word: "".join(f"&#{ord(letter)};" for letter in word).encode(),
    "hex": lambda word: word.encode().hex().encode(),
    "bytes as Python writes them": lambda word: "".join(f"\\x{ord(letter):02x}" for letter in word).encode(),
    "UTF-16": lambda word: word.encode("utf-16"),
    "base64": lambda word: base64.b64encode(word.encode()),
    "base64 from a second byte on": lambda word: base64.b64encode(b"?" + word.encode() + b"?"),
    "base64 from a third byte on": lambda word: base64.b64encode(b"??" + word.encode() + b"??"),
    "base64 for addresses": lambda word: base64.urlsafe_b64encode(b"?" + word.encode()),
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_canary_is_found_in_every_encoding(spelled: str) -> None:
    data = b"before \xff\x00 " + SPELLED[spelled](WORD) + b" behind"
    assert canaries.is_in(data, WORD)
    assert not canaries.is_in(data, "an0ther-w0rd")
    assert canaries.traces({"here": data, "there": b"nothing"}, [WORD, "an0ther-w0rd"]) == [f"{WORD} in here"]


def test_numbers_are_extracted_from_canaries() -> None:
    assert canaries.numbers_in(f"a {canaries.numbered(12)}, {canaries.numbered(345).upper()}!".encode()) == {12, 345}


def test_files_in_nested_folders_are_searched(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(WORD.encode())
    (tmp_path / "other").write_bytes(gzip.compress(b"nothing"))
    assert canaries.traces(canaries.folder(tmp_path), [WORD]) == [f"{WORD} in file deep/er/file"]


def test_every_column_is_searched(database: str) -> None:
    [export_id] = make_exports(make_customer(), 1, NOW)
    execute(
        "UPDATE exports SET ticket = ?, body = ?, source_id = ? WHERE id = ?",
        (f'{{"title": "{canaries.numbered(1)}"}}', canaries.numbered(2).encode(), canaries.numbered(3), export_id),
    )
    found = {name: canaries.numbers_in(data) for name, data in canaries.columns().items()}
    assert {name: numbers for name, numbers in found.items() if numbers} == {
        "exports.ticket": {1},
        "exports.body": {2},
        "exports.source_id": {3},
    }


def test_the_log_and_the_free_pages_of_sqlite_are_searched(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url)
    with connection():
        assert is_sqlite()
        [export_id] = make_exports(make_customer(), 1, NOW)
        execute("UPDATE exports SET source_id = ? WHERE id = ?", (WORD, export_id))
        execute("UPDATE exports SET source_id = '' WHERE id = ?", (export_id,))
        # The word is in no row any more, but still in the write-ahead log.
        assert canaries.traces(canaries.columns(), [WORD]) == []
        assert f"{WORD} in file riskrelay.db-wal" in canaries.traces(canaries.folder(tmp_path), [WORD])
    close_database()


def test_a_dump_and_the_log_of_postgresql_are_searched(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    in_log, in_dump = "cAnArY-of-the-log", "cAnArY-of-a-dump" * 20
    with psycopg.connect(postgres_url, autocommit=True) as client:
        client.execute("INSERT INTO accounts (name, may_use_webhooks, created_at) VALUES (%s, true, 1)", (in_dump,))
        with pytest.raises(psycopg.Error):
            client.execute(f"SELECT '{in_log}'::integer".encode())
    dump = tmp_path / "dump"
    command = [str(postgres_server.binaries / "pg_dump"), "--format=custom", f"--file={dump}", postgres_url]
    subprocess.run(command, check=True)
    # The dump is compressed, so a search of the file itself finds nothing.
    assert canaries.traces(canaries.folder(tmp_path), [in_dump]) == []
    found = canaries.traces(canaries.postgres(postgres_server, dump), [in_log, in_dump])
    assert found == [f"{in_dump} in dump", f"{in_log} in PostgreSQL's log"]


def test_every_kind_of_key_and_every_command_of_redis_is_searched(redis: RedisServer) -> None:
    with canaries.Monitor(redis.url) as monitor, Redis.from_url(redis.url) as client:
        client.set("string", WORD)
        client.rpush("list", "a", WORD)
        client.sadd("set", WORD)
        client.zadd("zset", {WORD: 1})
        client.hset("hash", WORD, "b")
        client.xadd("stream", {"a": WORD})
        client.set(f"name {WORD}", "c")
        client.set("nothing", "d")
        actual = canaries.redis(redis.url)
        client.flushall()
    named = {name for name, data in actual.items() if canaries.is_in(data, WORD)}
    kinds = (*("string", "list", "set", "zset", "hash", "stream"), f"name {WORD}")
    assert named == {f"Redis key {kind.encode()!r}" for kind in kinds}
    assert canaries.traces(monitor.places, [WORD]) == [f"{WORD} in Redis commands"]
    assert canaries.traces(canaries.redis(redis.url), [WORD]) == []


def test_the_command_lines_of_children_are_searched() -> None:
    # A parent whose child has the word in its command line.
    child = "import time; time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, sys.stdin.readline()])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(f"{WORD}\n")
        process.stdin.flush()
        found: list[str] = []
        while not found:
            assert process.poll() is None
            found = canaries.traces(canaries.processes([process.pid]), [WORD])
        children = [int(name.removeprefix("process ")) for name in canaries.processes([process.pid])][1:]
        for pid in (process.pid, *children):
            subprocess.run(["kill", "-9", str(pid)], check=True)
    assert found == [f"{WORD} in process {children[0]}"]
