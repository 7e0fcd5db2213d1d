"""Dumps of PostgreSQL databases: `pg_dump` writes them, `pg_restore` reads them, `psql` restores them in one transaction.

Only RiskRelay's own tables are dumped and replaced. The programs are from the oldest installed release that is not older
than the server, because a newer release may use statements that an older server does not know. They connect to DATABASE_URL.
A password is passed in their environment, never on their command line, where every user of the machine could read it. If
this process dies, `pg_dump` can no longer write to its pipe and `psql` receives no COMMIT, so neither leaves a result.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from peewee import Select, fn

from storage.db.engine import database, is_pooled
from storage.db.models import ALL
from storage.db.schema_version import HISTORY
from storage.maintenance import partitions_sql

_PROGRAMS: Final = ("pg_dump", "pg_restore", "psql")
_DEBIAN: Final = Path("/usr/lib/postgresql")
#: The folder in which `bin/setup --test` installs servers.
_IN_VENV: Final = Path(__file__).resolve().parents[2] / ".venv" / "servers" / "postgres"

#: The first part of a script, in which pg_restore sets the settings of its session.
_HEAD_BYTES: Final = 1 << 20
#: How many seconds a restore waits for a transaction that still uses the tables.
_LOCK_WAIT_S: Final = 10
#: pg_restore sets it since release 17, but servers before 17 do not know it. It is off by default.
_UNKNOWN_TO_OLD_SERVERS: Final = b"SET transaction_timeout = 0;\n"

_TABLES: Final = (*(str(model._meta.table_name) for model in ALL), HISTORY)
_ESCAPES: Final = {"\\b": "\b", "\\f": "\f", "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\v": "\v", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\[bfnrtv\\]")


class DumpFailed(Exception):
    """A program of PostgreSQL is missing or failed; the message gives the cause and, if there is one, the fix."""


def take(url: str, dump: IO[bytes]) -> None:
    """Dump the open database at `url` in PostgreSQL's custom format. Raises DumpFailed."""
    schema = _schema()
    # Releases before 16 dump a partitioned table without its rows, unless its partitions are named as well.
    partitions = [each.name for table in partitions_sql.BY_MONTH for each in partitions_sql.partitions(table)]
    tables = [f'--table="{schema}"."{table}"' for table in (*_TABLES, *partitions)]
    command = [
        "pg_dump",
        "--format=custom",
        "--encoding=UTF8",
        "--no-owner",
        "--no-privileges",
        *tables,
        f"--dbname={_address(url)}",
    ]
    with _running(command, url, stdout=subprocess.PIPE) as (dumping, stderr):
        shutil.copyfileobj(_pipe(dumping.stdout), dump)
        _require_success(dumping, stderr)


def require_intact(dump: Path) -> None:
    """Read a dump from end to end. Raises DumpFailed."""
    with _running(["pg_restore", "--file=-", str(dump)], stdout=subprocess.DEVNULL) as (reading, stderr):
        _require_success(reading, stderr)


def rows_of(dump: Path, table: str) -> Iterator[dict[str, str | None]]:
    """Read the rows of a table from a dump. Raises DumpFailed."""
    command = ["pg_restore", "--data-only", f"--table={table}", "--file=-", str(dump)]
    with _running(command, stdout=subprocess.PIPE) as (reading, stderr):
        yield from _copied_rows(line.decode().removesuffix("\n") for line in _pipe(reading.stdout))
        _require_success(reading, stderr)


def put_in_place(dump: Path, url: str, statements: Sequence[str]) -> None:
    """Replace RiskRelay's tables in the open database by those of a dump; run `statements` in the same transaction.

    Raises DumpFailed; then nothing has changed.
    """
    schema = f'"{_schema()}"'
    dropped = ", ".join(f"{schema}.{table}" for table in _TABLES)
    before = f"BEGIN;\nSET LOCAL lock_timeout = '{_LOCK_WAIT_S}s';\nDROP TABLE IF EXISTS {dropped};\n"
    after = "".join(f"{statement};\n" for statement in (f"SET LOCAL search_path TO {schema}", *statements, "COMMIT"))
    reading = ["pg_restore", "--no-owner", "--no-privileges", "--file=-", str(dump)]
    writing = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={_address(url)}"]
    with (
        _running(writing, url, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as (psql, psql_stderr),
        _running(reading, stdout=subprocess.PIPE) as (restore, stderr),
    ):
        source, script = _pipe(restore.stdout), _pipe(psql.stdin)
        try:
            script.write(before.encode())
            script.write(source.read(_HEAD_BYTES).replace(_UNKNOWN_TO_OLD_SERVERS, b"", 1))
            shutil.copyfileobj(source, script)
            # Before the COMMIT, because an incomplete dump ends like a complete one.
            _require_success(restore, stderr)
            psql.communicate(after.encode())
        except BrokenPipeError:
            psql.wait()
        _require_success(psql, psql_stderr)


def folder_for(server: int, folders: Iterable[Path]) -> Path:
    """Return the folder with the programs of the oldest release that is not older than `server`. Raises DumpFailed."""
    whole = [each for each in folders if all(os.access(each / name, os.X_OK) for name in _PROGRAMS)]
    releases = {folder: _release(folder) for folder in whole}
    usable = {folder: release for folder, release in releases.items() if release >= server}
    if usable:
        return min(usable, key=lambda folder: usable[folder])
    newest = max(releases.values(), default=0)
    found = f"those found are of PostgreSQL {newest}" if newest else "they are neither on PATH nor where Debian has them"
    raise DumpFailed(
        f"pg_dump, pg_restore and psql of PostgreSQL {server} or newer are needed, and {found}; "
        f"run: apt-get install postgresql-client-{server}"
    )


def _schema() -> str:
    return str(Select((), (fn.current_schema(),)).bind(database).scalar())


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise RuntimeError("The program was started without this pipe.")
    return end


@contextmanager
def _running(
    command: Sequence[str], url: str | None = None, **pipes: int
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Run a program of PostgreSQL; yield its process and standard error. The program is killed at the end of the block."""
    program, *words = command
    if url is not None and is_pooled():
        # The program's settings for its session would stay in a session that the pooler then gives to other clients.
        fix = "run the command again with PostgreSQL's own address in DATABASE_URL."
        raise DumpFailed(f"{program} cannot run through PgBouncer; {fix}")
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [str(_folder() / program), *words],
            stdin=pipes.get("stdin", subprocess.DEVNULL),
            stdout=pipes["stdout"],
            stderr=stderr,
            env=_environment(url),
        )
        try:
            yield process, stderr
        finally:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                # The other end may be closed before all data was sent.
                with suppress(BrokenPipeError):
                    pipe.close()


def _require_success(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    if process.wait() == 0:
        return
    stderr.seek(0)
    messages = [line for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    # The first line names the cause; a DETAIL line names the affected object. The other lines are hints and consequences.
    cause = messages[: 2 if messages[1:] and messages[1].startswith("DETAIL:") else 1]
    program = Path(process.args[0]).name if isinstance(process.args, list) else "PostgreSQL"
    raise DumpFailed(" ".join(cause) or f"{program} ended with {process.returncode}")


def _address(url: str) -> str:
    """Return the connection string for the programs, without a password."""
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - SQLite does not need the driver

    return make_conninfo("", **{name: value for name, value in _parameters(url).items() if "password" not in name})


def _parameters(url: str) -> Mapping[str, Any]:
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - as above

    return conninfo_to_dict(url)


def _environment(url: str | None) -> dict[str, str]:
    password = None if url is None else _parameters(url).get("password")
    # English messages, because they are matched and shown.
    return {**os.environ, "LC_ALL": "C", **({"PGPASSWORD": str(password)} if password else {})}


def _folder() -> Path:
    server = database.connection().info.server_version // 10_000
    on_path = shutil.which("pg_dump")
    folders = [*([Path(on_path).parent] if on_path else []), *_DEBIAN.glob("*/bin"), *_IN_VENV.glob("*/*/bin")]
    return folder_for(server, folders)


@cache
def _release(folder: Path) -> int:
    """Return the major version of the programs in a folder; 0 if they do not run on this machine."""
    try:
        version = subprocess.run([str(folder / "pg_dump"), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    found = re.search(r"\) (\d+)", version)
    return int(found[1]) if found else 0


def _copied_rows(lines: Iterable[str]) -> Iterator[dict[str, str | None]]:
    """Read the rows in the COPY blocks of a SQL script."""
    columns = list[str]()
    for line in lines:
        begins = re.fullmatch(r"COPY \S+ \((.+)\) FROM stdin;", line)
        if begins:
            columns = [name.strip('" ') for name in begins[1].split(",")]
        elif line == "\\.":
            columns = []
        elif columns:
            yield dict(zip(columns, map(_value, line.split("\t")), strict=True))


def _value(field: str) -> str | None:
    return None if field == "\\N" else _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], field)
