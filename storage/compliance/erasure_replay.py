"""What a restored backup must not forget: the redactions and compliance requests of the database that it replaces.

They travel as JSON Lines: read from the replaced database, or from the copy that `compliance export` made. What is sealed
stays sealed. Nothing depends on when a backup was taken, nor on anybody's clock: what the other journal and the other ledger
have and this one has not is done. A file that was cut off, or is something else, is refused before anything is done.

The journal is erased again row by row. Then the ledger is brought up to date:

- a redaction that is open here stays open, though it is done there: whom it is about is here still, and it is done wholly;
- a shop's redaction that is done there and unknown here is open here: its shop is told again, and it is done wholly;
- whatever else is done there, or waits there, is taken over; what waits may be taken up at once.
"""

import base64
import binascii
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.fsync import sync
from schemas.base.timestamps import from_ms, to_ms
from schemas.compliance.requests import ComplianceStatus, Topic
from storage.compliance import erasure_log
from storage.compliance.erasure import SLICE, erasable, erase_again
from storage.compliance.erasure_log import Redacted
from storage.db.engine import execute, rows, transaction, values_list
from storage.secrets.encrypted_columns import REPORT

#: The first line; another version may be read by another version of the product.
_HEADER: Final = {"riskrelay": "redactions", "version": 1}

_SEALED: Final = ("subject_sealed", "report_sealed")
#: Whose lease it is, and when it may be taken up, is nothing that another database can say.
_COLUMNS: Final = (
    "id",
    "topic",
    "shop_domain",
    "body_sha256",
    "subject_pseudonym",
    "subject_sealed",
    "status",
    "result",
    "counts",
    "report_sealed",
    "attempts",
    "last_error",
    "due_at",
    "created_at",
    "finished_at",
)
_REDACTIONS: Final = frozenset({Topic.CUSTOMER_REDACT.value, Topic.SHOP_REDACT.value})
_DONE: Final = ComplianceStatus.DONE.value
#: What an order is before a worker has come to it.
_UNTOUCHED: Final = {
    "status": ComplianceStatus.RECEIVED.value,
    "result": None,
    "counts": "{}",
    "attempts": 0,
    "finished_at": None,
}

Row = dict[str, Any]
Item = TypeVar("Item")


class Unreadable(Exception):
    """This is no whole file of redactions; the message says why."""


def lines() -> Iterator[str]:
    """Write what the open database has, a line each, the end of the line included."""
    count = 0
    yield _line(_HEADER)
    # The ledger first: what is done by then is in the journal, whatever a worker does meanwhile.
    for request in _ledger():
        count += 1
        yield _line({"request": request})
    for page in erasure_log.pages():
        for line in page:
            count += 1
            yield _line({"redaction": [line.request_id, line.table, line.row_id, line.redacted_at_ms]})
    yield _line({"end": count})


def save(path: Path) -> int:
    """Write them to a file for its owner alone, in the place of another one; return how many lines. Raises OSError."""
    part, count = path.with_name(f".{path.name}.part"), 0
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            for line in lines():
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        # A restore replaces the database that all this was read from.
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)
    # Its first and its last line are about itself.
    return count - 2


def require_whole(path: Path) -> None:
    """Read a file to its end. Raises Unreadable, OSError."""
    for _ in _read(path):
        pass


def journal_of(path: Path) -> Iterator[Redacted]:
    """Read the redactions in a file that is whole."""
    return (each for each in _read(path) if isinstance(each, Redacted))


def apply(path: Path, now: datetime) -> Counter[str]:
    """Do to the open database what a whole file tells; what is done already changes nothing.

    Return how many `redactions` were repeated, `requests` taken over, and how many of those are open.
    """
    replaced: set[str] = set()
    counts: Counter[str] = Counter()
    for batch in _slices(journal_of(path), SLICE):
        with transaction():
            counts["redactions"] += _erase_again(batch, replaced)
    for requests in _slices((each for each in _read(path) if not isinstance(each, Redacted)), SLICE):
        with transaction():
            counts += _bring_up_to_date(requests, replaced, now)
    return counts


def _ledger() -> Iterator[Row]:
    after = ""
    statement = f"SELECT {', '.join(_COLUMNS)} FROM compliance_requests WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 - our own names
    while page := rows(statement, (after, SLICE)):
        after = page[-1][0]
        for row in page:
            request = dict(zip(_COLUMNS, row, strict=True))
            yield request | {name: _encoded(request[name]) for name in _SEALED}


def _read(path: Path) -> Iterator[Redacted | Row]:
    """Read a file line by line; that it is whole is known at its end. Raises Unreadable."""
    count, ended = -1, False
    with path.open(encoding="utf-8") as file:
        try:
            for line in file:
                told = json.loads(line)
                if count < 0 and told != _HEADER:
                    raise Unreadable("it does not begin as one")
                ended = "end" in told
                if ended and told["end"] != count:
                    raise Unreadable("lines are missing")
                if count >= 0 and not ended:
                    yield _parsed(told)
                count += 1
        except (ValueError, TypeError, KeyError) as wrong:
            raise Unreadable(f"line {count + 2} is damaged") from wrong
    if not ended:
        raise Unreadable("it was cut off")


def _parsed(told: Mapping[str, Any]) -> Redacted | Row:
    if "redaction" in told:
        request_id, table, row_id, at = told["redaction"]
        if table != REPORT.table and table not in erasable():
            raise ValueError(table)
        return Redacted(str(request_id), table, str(row_id), int(at))
    request = told["request"]
    return {name: request[name] for name in _COLUMNS} | {name: _decoded(request[name]) for name in _SEALED}


def _erase_again(lines: Sequence[Redacted], replaced: set[str]) -> int:
    """Repeat what this journal has not, and count it; collect the requests whose reports another one replaced."""
    new = erasure_log.missing(lines)
    for (request_id, table, at), named in groupby(new, key=_as_it_was_done):
        # Asked anew: what a group takes along is noted with it, and comes next.
        ids = list(dict.fromkeys(line.row_id for line in erasure_log.missing(list(named))))
        if ids and table == REPORT.table:
            replaced.update(ids)
            _erase_reports(ids)
            erasure_log.note(request_id, table, ids, from_ms(at))
        elif ids:
            erase_again(table, ids, from_ms(at), request_id)
    return len(new)


def _as_it_was_done(line: Redacted) -> tuple[str, str, int]:
    return line.request_id, line.table, line.redacted_at_ms


def _bring_up_to_date(requests: Sequence[Row], replaced: set[str], now: datetime) -> Counter[str]:
    ids = [request["id"] for request in requests]
    statement = f"SELECT id, status FROM compliance_requests WHERE id IN {values_list(len(ids), 1)}"  # noqa: S608 - our own names
    here: dict[str, str] = {row[0]: row[1] for row in rows(statement, ids)}
    taken = [_as_taken_over(each) for each in requests if _is_taken_over(each, here.get(each["id"]), replaced)]
    _erase_reports([each["id"] for each in requests if each["status"] == _DONE and each["report_sealed"] is None])
    _store(taken, now)
    return Counter({"requests": len(taken), "open": sum(each["status"] != _DONE for each in taken)})


def _is_taken_over(there: Row, status_here: str | None, replaced: set[str]) -> bool:
    if status_here is None:
        return True
    if status_here == _DONE:
        # Of both reports the right one was redacted later; one that was erased is erased here by now.
        return there["status"] == _DONE and there["id"] in replaced and there["report_sealed"] is not None
    return there["status"] == _DONE and there["topic"] not in _REDACTIONS


def _as_taken_over(there: Row) -> Row:
    is_to_be_done_again = there["status"] == _DONE and there["topic"] == Topic.SHOP_REDACT.value
    return there | _UNTOUCHED if is_to_be_done_again else there


def _store(requests: Sequence[Row], now: datetime) -> None:
    """Insert requests, or put them in place of those with the same ids."""
    if not requests:
        return
    taken = _others_with_the_same_bytes(requests)
    columns = (*_COLUMNS, "next_run_at")
    parameters: list[Any] = []
    for request in requests:
        key = (request["topic"], request["shop_domain"], request["body_sha256"])
        is_repeated = taken.get(key, request["id"]) != request["id"]
        # As `receive` does with the same bytes of long ago: they keep no order from coming in.
        body_sha256 = f"{request['body_sha256']}|{request['id']}" if is_repeated else request["body_sha256"]
        row = request | {"body_sha256": body_sha256, "next_run_at": None if request["status"] == _DONE else to_ms(now)}
        parameters += [row[name] for name in columns]
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "id")
    execute(
        f"INSERT INTO compliance_requests ({', '.join(columns)}) VALUES {values_list(len(columns), len(requests))} "  # noqa: S608 - our own names
        f"ON CONFLICT (id) DO UPDATE SET {changes}, lease = NULL",
        parameters,
    )


def _others_with_the_same_bytes(requests: Sequence[Row]) -> dict[tuple[str, str, str], str]:
    shops = sorted({request["shop_domain"] for request in requests})
    statement = (
        "SELECT topic, shop_domain, body_sha256, id FROM compliance_requests "  # noqa: S608 - our own names
        f"WHERE shop_domain IN {values_list(len(shops), 1)}"
    )
    return {(row[0], row[1], row[2]): row[3] for row in rows(statement, shops)}


def _erase_reports(ids: Sequence[str]) -> None:
    if ids:
        execute(f"UPDATE compliance_requests SET report_sealed = NULL WHERE id IN {values_list(len(ids), 1)}", ids)  # noqa: S608 - our own names


def _slices(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while slice_ := list(islice(left, size)):
        yield slice_


def _line(told: Mapping[str, Any]) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n"


def _encoded(sealed: bytes | None) -> str | None:
    return None if sealed is None else base64.b64encode(bytes(sealed)).decode()


def _decoded(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as wrong:
        raise ValueError("not base64") from wrong
