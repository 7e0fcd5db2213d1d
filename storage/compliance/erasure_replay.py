"""Erasure replay: repeats in a restored database the erasures that were made after its backup.

The erasures and compliance requests come from the replaced database, or from a file that `compliance export` wrote, as JSON
Lines. Encrypted values stay encrypted. Neither the time of the backup nor any clock matters: every erasure and request that
the source has and this database lacks is applied. An incomplete file, or one of another kind, is refused before any change.

First, every row in the source's erasure log is erased again. Then the requests are updated:

- An erasure that is open here stays open, even if the source has finished it: this database still has its subject, and a
  worker runs the whole erasure.
- A shop's erasure that the source has finished and this database does not know is open here: the restored projects name the
  shop again, and a worker runs the whole erasure.
- Any other request is copied from the source. If it waits there, a worker may claim it at once.
"""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from peewee import BlobField, chunked

from runtime.files import replacing
from schemas.base.timestamps import from_ms
from schemas.compliance.requests import ComplianceStatus, Topic
from storage.compliance import erasure_log
from storage.compliance.erasure import ERASED_AGAIN, SLICE, erase_again
from storage.compliance.erasure_log import ErasedRow
from storage.compliance.requests import UNCLAIMED
from storage.db.engine import transaction
from storage.db.models import ComplianceRequestRow
from storage.db.queries import tuples
from storage.secrets.encrypted_columns import REPORT

#: The first line of a file. Another format would have another version number.
_HEADER: Final = {"riskrelay": "redactions", "version": 1}

#: The columns that a file contains: a lease, and the time of the next run, are only valid in their own database.
_FIELDS: Final = {
    name: field for name, field in ComplianceRequestRow._meta.columns.items() if name not in {"lease", "next_run_at"}
}
_ERASURES: Final = frozenset({Topic.CUSTOMER_REDACT.value, Topic.SHOP_REDACT.value})
_DONE: Final = ComplianceStatus.DONE.value

RequestRecord = dict[str, Any]


class DamagedReplay(Exception):
    """The file is not a complete file of erasures; the message gives the reason."""


def lines() -> Iterator[str]:
    """Yield the requests and the erasure log of the open database, each as one line with its line end."""
    count = 0
    yield _line(_HEADER)
    # The requests first: the log then contains all erasures of requests that are done, whatever a worker does meanwhile.
    for request in _requests():
        count += 1
        yield _line({"request": request})
    for page in erasure_log.pages():
        for entry in page:
            count += 1
            yield _line({"redaction": [entry.request_id, entry.table, entry.row_id, entry.erased_at_ms]})
    yield _line({"end": count})


def save(path: Path) -> int:
    """Write `lines` to a file that only its owner can read, replacing it as a whole; return their number. Raises OSError."""
    count = 0
    # Synced to the disk, because a restore replaces the database that the lines come from.
    with replacing(path) as file:
        for line in lines():
            file.write(line)
            count += 1
    # The first and the last line describe the file itself.
    return count - 2


def require_intact(path: Path) -> None:
    """Read a file to its end. Raises DamagedReplay, OSError."""
    for _ in _read(path):
        pass


def erasures_in(path: Path) -> Iterator[ErasedRow]:
    """Read the erasures of a complete file."""
    return (each for each in _read(path) if isinstance(each, ErasedRow))


def apply(path: Path, now: datetime) -> Counter[str]:
    """Apply a complete file to the open database; parts that were applied before change nothing.

    Returns how many `redactions` were repeated, how many `requests` were copied, and how many of these are `open`.
    """
    replaced: set[str] = set()
    counts: Counter[str] = Counter()
    for batch in chunked(erasures_in(path), SLICE):
        with transaction():
            counts["redactions"] += _erase_again(batch, replaced)
    for requests in chunked((each for each in _read(path) if not isinstance(each, ErasedRow)), SLICE):
        with transaction():
            counts += _bring_up_to_date(requests, replaced, now)
    return counts


def _requests() -> Iterator[RequestRecord]:
    after, row = "", ComplianceRequestRow
    while page := tuples(row.select(*_FIELDS.values()).where(row.id > after).order_by(row.id).limit(SLICE)):
        after = page[-1][0]
        for values in page:
            yield {name: _stored(field, value) for (name, field), value in zip(_FIELDS.items(), values, strict=True)}


def _read(path: Path) -> Iterator[ErasedRow | RequestRecord]:
    """Read a file line by line; only its end shows whether it is complete. Raises DamagedReplay."""
    count, ended = -1, False
    with path.open(encoding="utf-8") as file:
        try:
            for line in file:
                record = json.loads(line)
                if count < 0 and record != _HEADER:
                    raise DamagedReplay("it does not begin as one")
                ended = "end" in record
                if ended and record["end"] != count:
                    raise DamagedReplay("lines are missing")
                if count >= 0 and not ended:
                    yield _parsed(record)
                count += 1
        except (ValueError, TypeError, KeyError) as wrong:
            raise DamagedReplay(f"line {count + 2} is damaged") from wrong
    if not ended:
        raise DamagedReplay("it was cut off")


def _parsed(record: Mapping[str, Any]) -> ErasedRow | RequestRecord:
    if "redaction" in record:
        request_id, table, row_id, at = record["redaction"]
        if table != REPORT.table and table not in ERASED_AGAIN:
            raise ValueError(table)
        return ErasedRow(str(request_id), table, str(row_id), int(at))
    return {name: _loaded(field, record["request"][name]) for name, field in _FIELDS.items()}


def _erase_again(entries: Sequence[ErasedRow], replaced: set[str]) -> int:
    """Repeat the erasures that this log does not have, and count them; collect requests whose reports were replaced."""
    new = erasure_log.missing(entries)
    for (request_id, table, at), group in groupby(new, key=attrgetter("request_id", "table", "erased_at_ms")):
        # Read again, because erasing one group may erase and log rows of the next one.
        ids = list(dict.fromkeys(entry.row_id for entry in erasure_log.missing(list(group))))
        if ids and table == REPORT.table:
            replaced.update(ids)
            _erase_reports(ids)
            erasure_log.add(request_id, table, ids, from_ms(at))
        elif ids:
            erase_again(table, ids, from_ms(at), request_id)
    return len(new)


def _bring_up_to_date(requests: Sequence[RequestRecord], replaced: set[str], now: datetime) -> Counter[str]:
    row = ComplianceRequestRow
    ids = [request["id"] for request in requests]
    stored = tuples(row.select(row.id, row.status, row.due_at).where(row.id.in_(ids)))
    here: dict[str, tuple[str, datetime]] = {request_id: (status, due_at) for request_id, status, due_at in stored}
    taken = [
        # A shop's erasure that the source has finished is repeated here.
        {**each, **UNCLAIMED} if each["status"] == _DONE and each["topic"] == Topic.SHOP_REDACT.value else each
        for each in requests
        if _is_taken_over(each, here.get(each["id"]), replaced)
    ]
    _erase_reports([each["id"] for each in requests if each["status"] == _DONE and each["report_sealed"] is None])
    if taken:
        _store(taken, now)
    return Counter({"requests": len(taken), "open": sum(each["status"] != _DONE for each in taken)})


def _is_taken_over(there: RequestRecord, here: tuple[str, datetime] | None, replaced: set[str]) -> bool:
    if here is None:
        return True
    status_here, due_at_here = here
    if status_here == _DONE and there["topic"] == Topic.SHOP_REDACT.value:
        # A later due date means that the erasure was repeated: the shop was installed and removed again after the backup.
        return bool(there["due_at"] > due_at_here)
    if status_here == _DONE:
        # If the reports differ, the source has the later version. A report that the source erased has already been erased
        # here.
        return there["status"] == _DONE and there["id"] in replaced and there["report_sealed"] is not None
    return there["status"] == _DONE and there["topic"] not in _ERASURES


def _store(requests: Sequence[RequestRecord], now: datetime) -> None:
    """Insert requests, or replace those with the same ids."""
    row, digests = ComplianceRequestRow, [request["body_sha256"] for request in requests]
    taken: dict[str, str] = dict(tuples(row.select(row.body_sha256, row.id).where(row.body_sha256.in_(digests))))
    records = []
    for request in requests:
        is_repeated = taken.setdefault(request["body_sha256"], request["id"]) != request["id"]
        # As in `receive` for an old request with the same bytes: it does not keep a new webhook from being stored.
        body_sha256 = f"{request['body_sha256']}|{request['id']}" if is_repeated else request["body_sha256"]
        next_run_at = None if request["status"] == _DONE else now
        records.append(request | {"body_sha256": body_sha256, "next_run_at": next_run_at, "lease": None})
    row.insert_many(records).on_conflict(
        conflict_target=[row.id], preserve=[name for name in records[0] if name != "id"]
    ).execute()


def _erase_reports(ids: Sequence[str]) -> None:
    if ids:
        ComplianceRequestRow.update(report_sealed=None).where(ComplianceRequestRow.id.in_(ids)).execute()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def _stored(field: Any, value: Any) -> Any:
    """Return a value as the table stores it, bytes as base64."""
    if isinstance(field, BlobField):
        return None if value is None else base64.b64encode(value).decode()
    return field.db_value(value)


def _loaded(field: Any, value: Any) -> Any:
    """Return the value that `_stored` converted."""
    if not isinstance(field, BlobField):
        return field.python_value(value)
    try:
        return None if value is None else base64.b64decode(value, validate=True)
    except binascii.Error as wrong:
        raise ValueError("not base64") from wrong
