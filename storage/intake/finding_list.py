"""Findings for lists and the API: an account's findings by filters, newest first, each with the state of its ticket."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final

from peewee import JOIN, SQL, Case, Select, fn

from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.findings.life_cycle import FindingState
from schemas.triage.finding_filter import FindingQuery
from storage.db import identifiers
from storage.db.columns import LAST_ULID, columns, get_by_id, read
from storage.db.engine import database, is_sqlite, planned_for_values
from storage.db.models import ExportRow, FindingRow
from storage.db.queries import ASCII_LOWER

_AFTER_ALL: Final = f"{identifiers.FINDING}_{LAST_ULID}"
#: The Unicode normalization forms in which a stored text may have a word.
_FORMS: Final = ("NFC", "NFD", "NFKC")
_UNFIXED: Final = frozenset(FindingState) - {FindingState.FIXED}
#: How many findings of each state are counted; a list says if there are more.
MAX_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding; `rule` is its code, `scan_runs` is how many runs have reported it."""

    id: str
    project_id: int
    rule: str
    title: str
    severity: str
    state: FindingState
    url: str
    location: str
    first_seen_at: datetime
    last_seen_at: datetime
    fixed_at: datetime | None
    times_reopened: int
    scan_runs: int
    #: None if the export was deleted.
    ticket_export_id: str | None
    ticket_status: ExportStatus | None
    ticket_approved_at: datetime | None
    #: The digest of the page, from `schemas.intake.page_url`.
    page_digest: str
    fingerprint: str

    @property
    def joined_later(self) -> bool:
        """Whether the finding joined its ticket after the approval, which froze the ticket's text."""
        return self.ticket_approved_at is not None and self.first_seen_at > self.ticket_approved_at


@planned_for_values()
def list_page(query: FindingQuery, now: datetime, limit: int, before: str | None = None) -> list[Finding]:
    """Return up to `limit` of the findings that match a query, newest first, older than the finding `before`."""
    parts = [_part(query, before or _AFTER_ALL, now, is_fixed=is_fixed) for is_fixed in _wanted(query)]
    newest = [part.order_by(FindingRow.id.desc()).limit(limit) for part in parts]
    ids = newest[0] if len(newest) == 1 else _merged(parts if is_sqlite() else newest).limit(limit)
    return read(Finding, _findings(now).where(FindingRow.id.in_(ids)).order_by(FindingRow.id.desc()))


def _merged(parts: Sequence[Any]) -> Any:
    """Return the ids of all parts, newest first; SQLite merges parts without their own limit row by row."""
    return reduce(lambda one, other: one.union_all(other), parts).order_by(SQL("id DESC"))


def list_severity(
    project_id: int, severity: str, now: datetime, limit: int, before: str | None = None, *, is_fixed: bool | None = None
) -> list[Finding]:
    """Return up to `limit` findings of a project with a severity, newest first, older than the finding `before`.

    With `is_fixed`, only fixed findings, or only those that are not fixed.
    """
    f = FindingRow
    found = _findings(now).where(f.project == project_id, f.severity == severity, f.id < (before or _AFTER_ALL))
    found = found if is_fixed is None else found.where(f.fixed_at.is_null(not is_fixed))
    return read(Finding, found.order_by(f.id.desc()).limit(limit))


def totals(project_id: int, now: datetime) -> Mapping[tuple[str, FindingState], int]:
    """Return how many findings of a project have each severity and state; reads all of them."""
    f, x = FindingRow, ExportRow
    state = _state(now).alias("state")
    found = f.select(f.severity, state, fn.COUNT(SQL("1"))).join(x, JOIN.LEFT_OUTER, on=f.export_id == x.id)
    counted: Any = found.where(f.project == project_id).group_by(f.severity, SQL("state")).tuples()
    return {(severity, FindingState(name)): int(number) for severity, name, number in counted}


@planned_for_values()
def count_by_state(query: FindingQuery, now: datetime) -> Mapping[FindingState, int]:
    """Return how many findings match a query in each state, at most MAX_COUNTED + 1; ignores the query's own states."""
    of_states = [(replace(query, states=(each,)), each is FindingState.FIXED) for each in FindingState]
    parts = [_part(each, _AFTER_ALL, now, is_fixed=is_fixed).limit(MAX_COUNTED + 1) for each, is_fixed in of_states]
    counts = [Select([part.alias("part")], [fn.COUNT(SQL("*"))]) for part in parts]
    [numbers] = Select(columns=counts).bind(database).tuples()
    return dict(zip(FindingState, map(int, numbers), strict=True))


def get(finding_id: str, account_id: int, now: datetime) -> Finding:
    """Return a finding of an account. Raises NotFound."""
    query = _findings(now).where(FindingRow.id == finding_id, FindingRow.account_id == account_id)
    return get_by_id(Finding, query, identifiers.FINDING, finding_id, "There is no such finding.")


def project_of(finding_id: str) -> int | None:
    """Return the project of a finding; None if there is no such finding."""
    if not identifiers.is_id(identifiers.FINDING, finding_id):
        return None
    found: int | None = FindingRow.select(FindingRow.project).where(FindingRow.id == finding_id).scalar()
    return found


def _findings(now: datetime) -> Any:
    """Return the query of findings, with their states at `now`."""
    f, x = FindingRow, ExportRow
    ticket = {"ticket_export_id": x.id, "ticket_status": x.status, "ticket_approved_at": x.approved_at}
    ticket["state"] = _state(now).converter(FindingState)
    shown = columns(Finding, f, rule=f.code, url=f.page_url, scan_runs=f.times_seen, **ticket)
    return f.select(*shown).join(x, JOIN.LEFT_OUTER, on=f.export_id == x.id)


def _wanted(query: FindingQuery) -> list[bool]:
    """Return whether unfixed and fixed findings are wanted. An index has each of them in order."""
    states = set(query.states) or set(FindingState)
    return [is_fixed for is_fixed, of in ((False, _UNFIXED), (True, {FindingState.FIXED})) if states & of]


def _part(query: FindingQuery, before: str, now: datetime, *, is_fixed: bool) -> Any:
    """Return the query for the ids of a query's fixed or unfixed findings, older than the id `before`."""
    f, x = FindingRow, ExportRow
    # The index of pages has few findings of a page; without statistics, SQLite would read all findings of the account.
    account_id = f.account_id + 0 if query.pages else f.account_id
    found = f.select(f.id).where(account_id == query.account_id, f.fixed_at.is_null(not is_fixed), f.id < before)
    lists = ((f.project, query.project_ids), (f.severity, query.severities), (f.code, query.rules), (f.host, query.hosts))
    found = found.where(*(_is_any(column, values) for column, values in (*lists, (f.page_digest, query.pages)) if values))
    if query.visible_projects is not None:
        found = found.where(f.project.in_(query.visible_projects))
    if query.words:
        found = found.where(_has_words(query.words))
    states = set(query.states) & _UNFIXED
    if is_fixed or not states or states == _UNFIXED:
        return found
    wanted = reduce(or_, _of_states(states, now))
    if FindingState.OPEN not in states:
        # People have decided on few exports, so these have fewer findings than the account.
        return found.where(f.export_id.in_(x.select(x.id).where(x.account == query.account_id, wanted)))
    return found.join(x, JOIN.LEFT_OUTER, on=f.export_id == x.id).where(wanted)


def _is_any(column: Any, values: Sequence[Any]) -> Any:
    # Without statistics, SQLite expects a list to have many values, even if it has one.
    return column == values[0] if len(values) == 1 else column.in_(values)


def _of_states(states: set[str], now: datetime) -> Iterator[Any]:
    x = ExportRow
    is_dismissed = fn.COALESCE(x.status == ExportStatus.DISMISSED.value, SQL("FALSE"))
    lasts = x.snoozed_until.is_null() | (x.snoozed_until > to_ms(now))
    is_snoozed = fn.COALESCE(x.status == ExportStatus.PREPARED.value, SQL("FALSE")) & x.snoozed_at.is_null(False) & lasts
    if FindingState.OPEN in states:
        yield ~(is_dismissed | is_snoozed)
    if FindingState.DISMISSED in states:
        yield is_dismissed
    if FindingState.SNOOZED in states:
        yield is_snoozed


def _state(now: datetime) -> Any:
    """Return the state of a finding whose export is joined; a fix takes precedence over a decision on the ticket."""
    [is_snoozed], [is_dismissed] = (_of_states({each}, now) for each in (FindingState.SNOOZED, FindingState.DISMISSED))
    cases = [(FindingRow.fixed_at.is_null(False), FindingState.FIXED), (is_dismissed, FindingState.DISMISSED)]
    return Case(None, [*cases, (is_snoozed, FindingState.SNOOZED)], FindingState.OPEN)


def _has_words(words: Sequence[str]) -> Any:
    """Return the condition that a finding's text has all words; with the limit, databases build the text only once."""
    f = FindingRow
    text = fn.LOWER(f.title.concat(" ").concat(f.code).concat(" ").concat(f.page_url).concat(" ").concat(f.location))
    found = Select(columns=[text.alias("text")]).limit(1).alias("found")
    return fn.EXISTS(Select([found], [SQL("1")]).where(*(_has_word(found.c.text, word) for word in words)))


def _has_word(text: Any, word: str) -> Any:
    find = fn.instr if is_sqlite() else fn.strpos
    # SQLite changes the case of ASCII letters only, and neither database changes the Unicode form.
    cases = [each.translate(ASCII_LOWER) for each in (word, word.upper(), word.capitalize())]
    spellings = {unicodedata.normalize(form, each) for each in cases for form in _FORMS}
    return reduce(or_, [find(text, each) > 0 for each in spellings])
