"""What each inbound source was refused last: a row a source, the newest of all processes."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.intake.sources import InboundSource, Refusal, Trouble
from storage.db.columns import JsonField
from storage.db.engine import connection, execute, rows, transaction, values_list

_COLUMNS: Final = ("source", "refused_at", "status", "code", "problems", "request_id")
_LAST: Final = f"SELECT {', '.join(_COLUMNS)} FROM inbound_refusals"  # noqa: S608 - our own names
#: Another process may have written a newer one meanwhile; one that is newer by more than this was noted by a clock that was
#: set back since, and would stay until that moment comes.
_AHEAD_MS: Final = 3_600_000
_KEEP_NEWEST: Final = (
    f"ON CONFLICT (source) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])} "
    "WHERE inbound_refusals.refused_at <= excluded.refused_at "
    f"OR inbound_refusals.refused_at > excluded.refused_at + {_AHEAD_MS}"
)

_json: Final = JsonField()


def record(refusals: Iterable[Refusal]) -> None:
    """Keep the last refusal of some sources, one each, in a transaction and on a connection of its own."""
    # In one order, so that no two processes wait for each other.
    told = [_row(refusal) for refusal in sorted(refusals, key=lambda refusal: refusal.source)]
    if told:
        insert = f"INSERT INTO inbound_refusals ({', '.join(_COLUMNS)}) VALUES {values_list(len(_COLUMNS), len(told))}"  # noqa: S608 - our own names
        with connection(), transaction():
            execute(f"{insert} {_KEEP_NEWEST}", [value for row in told for value in row])


def last() -> Mapping[InboundSource, Refusal]:
    """Return the last refusal of each source that was ever refused anything."""
    return {refusal.source: refusal for refusal in map(_refusal, rows(_LAST))}


def _row(refusal: Refusal) -> tuple[Any, ...]:
    troubles = _json.db_value([[trouble.path, trouble.code] for trouble in refusal.troubles])
    return (refusal.source.value, to_ms(refusal.at), refusal.status, refusal.code, troubles, refusal.request_id)


def _refusal(row: tuple[Any, ...]) -> Refusal:
    source, at_ms, status, code, troubles, request_id = row
    told = tuple(Trouble(path, trouble) for path, trouble in _json.python_value(troubles))
    return Refusal(InboundSource(source), from_ms(at_ms), status, code, told, request_id)
