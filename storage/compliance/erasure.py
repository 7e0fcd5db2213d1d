"""The tables with submitted data: how they are searched for a person, and how their rows are erased.

Searches read slices in the order of ids, so that no statement takes long. A LIKE over a row's texts excludes most rows, and
`schemas.compliance.subject_matching` decides on the rest. Erasures are small: each belongs to one slice and to one
transaction of its caller. An erased row is not found again, so a repeated search continues where another one was killed. The
ids of erased rows are added to the erasure log in the same transaction; `erase_again` repeats them in a restored backup.

A row belongs to a shop by its project, and a diagnostic also by the shop's domain in it. Exports without a project, their
attempts and the notes of bulk jobs belong to each shop of their account that they mention, or whose person they mention. If
the account has only one shop and no other project, they belong to this shop entirely.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import or_
from typing import Any, Final

from peewee import SQL, AutoField, BigAutoField, Expression, Value, chunked, fn

from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import format_rfc3339
from schemas.compliance.subject_matching import Mentions
from schemas.exports.state_machine import ExportStatus
from schemas.intake.report_uploads import ReportUploadStatus, UploadError
from storage.accounts.tokens import has_ability, revoke_where
from storage.compliance import erasure_log
from storage.compliance.erasure_log import CLIENT_KEYS
from storage.db.columns import JsonField
from storage.db.engine import is_sqlite
from storage.db.models import (
    AttemptRow,
    BulkJobRow,
    DiagnosticRow,
    EvidenceCaptureRow,
    ExportRow,
    FindingRow,
    FindingSightingRow,
    GrantRow,
    HandoffRow,
    IdempotencyKeyRow,
    InboundEmailRow,
    PageResultRow,
    ProjectRow,
    ReportRow,
    ReportUploadRow,
    ScanRunRow,
    TokenRow,
    UserRow,
)
from storage.db.queries import for_update, scalars, tuples
from storage.exports import groups_sql, transitions

#: How many rows a slice has: a fraction of a second to search and to erase, on either database.
SLICE: Final = 200
_IDS_AT_ONCE: Final = 100 * SLICE
#: The body of an erased response. Its row stays, so that a repeated request is still not processed twice.
ERASED_RESPONSE: Final = '{"redacted": true}'

#: How much the clocks of two hosts may differ before a row counts as younger than an erasure on another host.
CLOCKS_APART: Final = timedelta(minutes=10)

#: The ids in a stored response. A response that repeats submitted data names the prepared export; an email's response names
#: the email.
_EXPORT_OR_EMAIL_ID: Final = re.compile(r"(?:exp|eml)_[0-9A-HJKMNP-TV-Z]{26}")

#: The route whose responses contain the names of projects; their `id` is the project's.
_PROJECTS: Final = "/api/projects"

#: The option of a bulk job with free text.
_NOTE: Final = "note"

#: Statuses in which a person or a receiver has seen the ticket.
_FINAL: Final = frozenset({ExportStatus.EXPORTED, ExportStatus.DISMISSED})

#: An empty list as a JSON column stores it.
_EMPTY_LIST: Final = Value("[]", converter=False)

Erase = Callable[[Sequence[Any], datetime, str], Counter[str]]


def _projects(shop_domain: str) -> Any:
    return ProjectRow.select(ProjectRow.id).where(ProjectRow.shop_domain == shop_domain)


def _accounts(shop_domain: str) -> Any:
    return ProjectRow.select(ProjectRow.account).where(ProjectRow.shop_domain == shop_domain)


def _accounts_of_one_shop(shop_domain: str) -> Any:
    """Return the accounts with a project of the shop and no other project."""
    other = ProjectRow.alias()
    is_another = other.shop_domain.is_null() | (other.shop_domain != shop_domain)
    return _accounts(shop_domain).where(
        ~fn.EXISTS(other.select(other.id).where(other.account == ProjectRow.account, is_another))
    )


def _unassigned(accounts: Any) -> Any:
    """Return the condition that an export has no project and belongs to one of these accounts."""
    return ExportRow.project.is_null() & ExportRow.account.in_(accounts)


def _attempts(exports: Any) -> Any:
    return AttemptRow.export.in_(ExportRow.select(ExportRow.id).where(exports))


def _exports(shop_domain: str) -> Any:
    return ExportRow.project.in_(_projects(shop_domain))


def _columns(model: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(model, name) for name in names)


def _has_any(columns: Sequence[Any]) -> Any:
    """Return the condition that any of the columns is not empty."""
    return reduce(or_, [column != (_EMPTY_LIST if isinstance(column, JsonField) else "") for column in columns])


@dataclass(frozen=True, slots=True)
class ErasableTable:
    """A table of submitted data: the columns with text, how rows are erased, and which rows belong to a shop."""

    model: Any
    columns: tuple[Any, ...]
    erase: Erase
    #: The condition for a shop's rows, by its domain; None: the rows of the shop's projects.
    owner: Callable[[str], Any] | None = None
    #: The condition for rows that still contain text; None: all rows do.
    has_text: Any = None
    #: The condition for rows that belong only to the shop, if others are shared with further projects of the account.
    owner_alone: Callable[[str], Any] | None = None
    #: The column with the time of a row, which gives its age; None: `created_at`.
    dated_by: Any = None

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return str(self.model._meta.table_name)

    @property
    def moment(self) -> Any:
        """Return the column with the time of a row."""
        return self.model.created_at if self.dated_by is None else self.dated_by

    def of_shop(self, shop_domain: str) -> Any:
        """Return the condition for a shop's rows."""
        return self.model.project.in_(_projects(shop_domain)) if self.owner is None else self.owner(shop_domain)


@dataclass(frozen=True, slots=True)
class SubjectMatch:
    """A row that mentions a subject: the texts with a mention, by column and path."""

    table: str
    id: str | int
    created_at: datetime
    texts: dict[str, str]

    def record(self) -> dict[str, Any]:
        """Return the match as reports show it."""
        return {"table": self.table, "id": self.id, "created_at": format_rfc3339(self.created_at), "texts": self.texts}


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The idempotency key that a client chose, with the id of its row."""

    id: int
    key: str


def _erase_uploads(model: Any, ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    table = str(model._meta.table_name)
    erasure_log.add(actor, table, ids, now)
    handoffs = scalars(HandoffRow.delete().where(HandoffRow.source_id.in_(ids)).returning(HandoffRow.export))
    deleted = model.delete().where(model.id.in_(ids)).execute()
    counts = Counter({table: deleted, "handoffs": len(handoffs)})
    return counts + _erase_exports(sorted(handoffs), now, actor)


def _erase_emails(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Empty emails but keep their rows: by the digest of the message id, a repeated message is still recognized."""
    erasure_log.add(actor, "inbound_emails", ids, now)
    emptied = scalars(
        InboundEmailRow.update(sender="", recipients=[], subject="", text="", attachments=[])
        .where(InboundEmailRow.id.in_(ids))
        .returning(InboundEmailRow.export)
    )
    return Counter({"inbound_emails": len(emptied)}) + _erase_exports(sorted(emptied), now, actor)


def _erase_findings(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Delete findings, and empty their exports.

    Any word of a group may be about the person, so its export is emptied as a whole. Unless the export was exported or
    dismissed, its other findings are deleted too: the next scan then reports them as new, and they get a ticket.
    """
    belongs = FindingRow.select(FindingRow.export_id).where(FindingRow.id.in_(ids))
    is_source = (ExportRow.source_type == "finding") & ExportRow.source_id.in_(ids)
    wanted = ExportRow.select(ExportRow.id, ExportRow.status).where(is_source | ExportRow.id.in_(belongs))
    # With this lock, no postback adds a finding to a group that is emptied: it has already stored the finding, or will find
    # no group.
    groups_sql.lock_projects_of(scalars(wanted))
    exports: dict[str, ExportStatus] = dict(tuples(wanted))
    unfinished = [export_id for export_id, status in exports.items() if status not in _FINAL]
    others = FindingRow.select(FindingRow.id).where(FindingRow.export_id.in_(unfinished)).order_by(FindingRow.id)
    finding_ids = list(dict.fromkeys((*ids, *scalars(others))))
    deleted = 0
    for slice_ in chunked(finding_ids, SLICE):
        erasure_log.add(actor, "findings", slice_, now)
        # With this lock, a postback that reports one of these findings now adds no sighting after the next statement.
        tuples(for_update(FindingRow.select(FindingRow.id).where(FindingRow.id.in_(slice_)).order_by(FindingRow.id)))
        FindingSightingRow.delete().where(FindingSightingRow.finding.in_(slice_)).execute()
        deleted += FindingRow.delete().where(FindingRow.id.in_(slice_)).execute()
    return Counter({"findings": deleted}) + _erase_exports(sorted(exports), now, actor)


def _erase_reports(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Empty uploaded reports; a report that waits for its import fails."""
    erasure_log.add(actor, "report_uploads", ids, now)
    row, waits = ReportUploadRow, ReportUploadRow.content_sealed.is_null(False)
    row.update(
        status=ReportUploadStatus.FAILED.value,
        error=UploadError.ERASED.value,
        content_sealed=None,
        lease=None,
        next_run_at=None,
        finished_at=now,
    ).where(row.id.in_(ids), waits).execute()
    return Counter({"report_uploads": row.update(file_name="", left_out=[]).where(row.id.in_(ids)).execute()})


def wait_for_writers(shop_domain: str) -> Counter[str]:
    """Wait for transactions that are storing data of a shop's projects: a search would not see their uncommitted rows.

    The foreign keys of these rows lock the projects. The caller holds the transaction; new writers wait until it ends.
    """
    tuples(for_update(_projects(shop_domain).order_by(ProjectRow.id)))
    return Counter()


def erase_waiting_reports(shop_domain: str, now: datetime, actor: str) -> Counter[str]:
    """Erase a shop's uploaded reports that are not fully imported: the search would miss the findings of a later import.

    Their users may upload them again. The caller holds the transaction.
    """
    row = ReportUploadRow
    waiting = row.select(row.id).where(row.project.in_(_projects(shop_domain)), row.content_sealed.is_null(False))
    ids = scalars(waiting)
    return _erase_reports(ids, now, actor) if ids else Counter()


def _erase_notes(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Remove the notes of bulk jobs; the jobs continue without them."""
    erasure_log.add(actor, "bulk_jobs", ids, now)
    row = BulkJobRow
    jobs = tuples(for_update(row.select(row.id, row.options).where(row.id.in_(ids)).order_by(row.id)))
    for job_id, options in jobs:
        without = {name: value for name, value in options.items() if name != _NOTE}
        row.update(options=without).where(row.id == job_id).execute()
    return Counter({"bulk_jobs": len(jobs)})


def _erase_rows(erasing: Any, ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Erase rows by one statement: `erasing` deletes or empties rows of a table."""
    table = str(erasing.model._meta.table_name)
    erasure_log.add(actor, table, ids, now)
    return Counter({table: erasing.where(erasing.model.id.in_(ids)).execute()})


def _text_with_key(text: str, key: Any) -> Any:
    return Value(text).cast("TEXT").concat(key.cast("TEXT"))


_NUMBERED_PROJECTS: Final = ProjectRow.update(name=_text_with_key("Redacted project ", ProjectRow.id))
_NUMBERED_REPORTS: Final = ReportRow.update(title=_text_with_key("Redacted report ", ReportRow.id))


def _erase_exports(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Empty exports and their copies for further targets, because events may have added texts of later findings to them."""
    has_copies = ExportRow.id.in_(ids) & ExportRow.siblings.is_null(False)
    copies = [copy for siblings in scalars(ExportRow.select(ExportRow.siblings).where(has_copies)) for copy in siblings]
    ids = sorted({*ids, *copies})
    erasure_log.add(actor, "exports", ids, now)
    return Counter({"exports": transitions.redact(ids, now, actor)})


def _erase_tickets(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Empty exports, and delete the findings of those that were neither exported nor dismissed, as `_erase_findings` does.

    A ticket has texts that no finding has, and findings may have been stored since their table was searched.
    """
    unfinished = ExportRow.select(ExportRow.id).where(ExportRow.id.in_(ids), ExportRow.status.not_in(sorted(_FINAL)))
    first = FindingRow.select(FindingRow.export_id, fn.MIN(FindingRow.id)).where(FindingRow.export_id.in_(unfinished))
    with_findings: dict[str, str] = dict(tuples(first.group_by(FindingRow.export_id)))
    counts = _erase_findings(sorted(with_findings.values()), now, actor) if with_findings else Counter[str]()
    return counts + _erase_exports([each for each in ids if each not in with_findings], now, actor)


_EMAIL_TEXTS: Final = _columns(InboundEmailRow, "sender", "subject", "text", "recipients", "attachments")
_UPLOAD_TEXTS: Final = _columns(ReportUploadRow, "file_name", "left_out")

ERASABLE_TABLES: Final = (
    # First, because a job copies its note to exports, which are searched later.
    ErasableTable(
        BulkJobRow,
        _columns(BulkJobRow, "options"),
        _erase_notes,
        owner=lambda shop: BulkJobRow.account.in_(_accounts(shop)),
        has_text=BulkJobRow.options.cast("TEXT").contains(f'"{_NOTE}"'),
        owner_alone=lambda shop: BulkJobRow.account.in_(_accounts_of_one_shop(shop)),
    ),
    ErasableTable(
        EvidenceCaptureRow,
        (
            *_columns(EvidenceCaptureRow, "page_url", "page_title", "selected_text", "meta_description", "canonical_url"),
            *_columns(EvidenceCaptureRow, "extension_version", "heading_outline"),
        ),
        partial(_erase_uploads, EvidenceCaptureRow),
    ),
    ErasableTable(
        DiagnosticRow,
        _columns(DiagnosticRow, "site_url", "shop_name", "client_version", "diagnostics"),
        partial(_erase_uploads, DiagnosticRow),
        owner=lambda shop: DiagnosticRow.project.in_(_projects(shop)) | (DiagnosticRow.shop_domain == shop),
    ),
    ErasableTable(InboundEmailRow, _EMAIL_TEXTS, _erase_emails, has_text=_has_any(_EMAIL_TEXTS)),
    ErasableTable(
        FindingRow,
        _columns(FindingRow, "code", "title", "page_url", "location", "help_url"),
        _erase_findings,
        dated_by=FindingRow.first_seen_at,
    ),
    ErasableTable(
        PageResultRow,
        _columns(PageResultRow, "url", "normalized_url", "page_type", "screenshot_path", "response_headers"),
        partial(_erase_rows, PageResultRow.delete()),
        owner=lambda shop: PageResultRow.scan_run.in_(
            ScanRunRow.select(ScanRunRow.id).join(ProjectRow).where(ProjectRow.shop_domain == shop)
        ),
        dated_by=PageResultRow.received_at,
    ),
    ErasableTable(ReportUploadRow, _UPLOAD_TEXTS, _erase_reports, has_text=_has_any(_UPLOAD_TEXTS)),
    ErasableTable(
        AttemptRow,
        _columns(AttemptRow, "answer"),
        partial(_erase_rows, AttemptRow.update(answer=None)),
        owner=lambda shop: _attempts(_exports(shop) | _unassigned(_accounts(shop))),
        has_text=AttemptRow.answer.is_null(False),
        owner_alone=lambda shop: _attempts(_exports(shop) | _unassigned(_accounts_of_one_shop(shop))),
        dated_by=AttemptRow.started_at,
    ),
    # Last: by now, the only tickets left are manual ones and those with more text than their source.
    ErasableTable(
        ExportRow,
        (
            *_columns(ExportRow, "source_id", "provider_ticket_id", "provider_ticket_url"),
            *_columns(ExportRow, "rule", "ticket", "original_ticket", "dismissal_note"),
        ),
        _erase_tickets,
        has_text=ExportRow.redacted_at.is_null(),
    ),
)

#: The names of a shop's projects and reports. A redaction of the shop replaces all of them, and the domain.
NAMES: Final = (
    ErasableTable(
        ProjectRow,
        _columns(ProjectRow, "name"),
        partial(_erase_rows, _NUMBERED_PROJECTS),
        owner=lambda shop: ProjectRow.shop_domain == shop,
    ),
    ErasableTable(ReportRow, _columns(ReportRow, "title"), partial(_erase_rows, _NUMBERED_REPORTS)),
)

#: Searched again after the exports: if one was stored since, its export may be empty now.
UPLOADS_AND_EMAILS: Final = tuple(
    table for table in ERASABLE_TABLES if table.model in {EvidenceCaptureRow, DiagnosticRow, InboundEmailRow}
)

#: Exports without a project.
UNASSIGNED: Final = replace(
    ERASABLE_TABLES[-1],
    owner=lambda shop: _unassigned(_accounts(shop)),
    owner_alone=lambda shop: _unassigned(_accounts_of_one_shop(shop)),
)


def is_known(shop_domain: str) -> bool:
    """Return whether any stored data belongs to a shop."""
    return _projects(shop_domain).exists() or DiagnosticRow.select().where(DiagnosticRow.shop_domain == shop_domain).exists()


def search(table: ErasableTable, shop_domain: str, mentions: Mentions) -> Iterator[list[SubjectMatch]]:
    """Search a shop's rows of a table; yields the matches of each slice, which may be none."""
    texts: list[Any] = [fn.COALESCE(column, "") for column in table.columns]
    text = reduce(lambda text, more: text.concat(" ").concat(more), texts)
    model = table.model
    for ids in _ids_with_text(table, shop_domain):
        said = model.select(model.id, _lowered(text).alias("said")).where(model.id.in_(ids))
        slice_ = said.cte("slice", materialized=True)
        may_mention = _may_mention(slice_.c.said, mentions).alias("may_mention")
        found = tuples(slice_.select_from(slice_.c.id, may_mention).order_by(slice_.c.id))
        yield _matches(table, [row_id for row_id, is_candidate in found if is_candidate], mentions)


def ids_of_shop(table: ErasableTable, shop_domain: str) -> Iterator[list[Any]]:
    """Yield the ids of rows with text that belong only to the shop, slice by slice.

    Rows that were erased together with rows of earlier slices, such as the other findings of a group, are left out.
    """
    key = table.model.id
    for ids in _ids_with_text(replace(table, owner=table.owner_alone or table.owner), shop_domain):
        rest = table.model.select(key).where(key.in_(ids)).order_by(key)
        if left := scalars(rest if table.has_text is None else rest.where(table.has_text)):
            yield left


def responses_with_erased_data(shop_domain: str, mentions: Mentions | None) -> Iterator[list[ClientKey]]:
    """Search the stored responses for those that repeat erased or deleted exports, and for those that mention the subject.

    With `mentions`, the latter are responses to the shop's users that mention the subject in their text or key; without it,
    responses with the shop's domain or one of its projects. Yields the matches of each slice, which may be none.
    """
    row, after = IdempotencyKeyRow, 0
    users = UserRow.select(_text_with_key("user:", UserRow.id)).where(UserRow.account.in_(_accounts(shop_domain)))
    is_theirs = row.principal.in_(users)
    may_mention = SQL("1 = 0") if mentions is None else _may_mention(_lowered(fn.COALESCE(row.response_body, "")), mentions)
    query = row.select(row.id, row.key, row.route, row.response_body, is_theirs, is_theirs & may_mention)
    project_ids = projects_of(shop_domain) if mentions is None else set()
    while slice_ := tuples(query.where(row.id > after).order_by(row.id).limit(SLICE)):
        after = slice_[-1][0]
        named = {row_id: set(_EXPORT_OR_EMAIL_ID.findall(body or "")) for row_id, _, _, body, *_ in slice_}
        erased = _erased_or_deleted(sorted(set().union(*named.values())))
        yield [
            ClientKey(row_id, key)
            for row_id, key, route, body, theirs, may in slice_
            if named[row_id] & erased
            or (mentions is None and _is_about_shop(route, body or "", shop_domain, project_ids))
            or (mentions is not None and theirs and (mentions.in_name(key) or (may and mentions.in_text(body or ""))))
        ]


def erase_responses(responses: Sequence[ClientKey], mentions: Mentions | None, now: datetime, actor: str) -> Counter[str]:
    """Empty stored responses, and erase the idempotency keys that mention the subject; all keys without `mentions`.

    Clients choose their keys, so these may contain personal data. Without its key, a repeated request counts as a new one.
    """
    if not responses:
        return Counter()
    with_subject = [response.id for response in responses if mentions is None or mentions.in_name(response.key)]
    if with_subject:
        _erase_keys(with_subject, now, actor)
    return _empty_responses([response.id for response in responses], now, actor)


def erase_again(name: str, ids: Sequence[str], now: datetime, actor: str) -> Counter[str]:
    """Repeat erasures from another database's log for a table: the request `actor` erased these rows at `now`.

    A numeric id may belong to another row by now, so a row that is younger than its erasure is not erased. The caller holds
    the transaction.
    """
    moment, erase = ERASED_AGAIN[name]
    key = moment.model._meta.primary_key
    if not isinstance(key, AutoField | BigAutoField):
        return erase(ids, now, actor)
    here = moment.model.select(key).where(key.in_([int(row_id) for row_id in ids]), moment <= now + CLOCKS_APART)
    found = {*scalars(here)}
    # A missing row may be in the next backup that is restored, so it is logged too.
    erasure_log.add(actor, name, [row_id for row_id in ids if int(row_id) not in found], now)
    return erase(sorted(found), now, actor) if found else Counter()


def revoke_access(shop_domain: str, now: datetime, actor: str) -> Counter[str]:
    """Delete the grants on a shop's projects and reports; revoke the storefront tokens of users without another grant.

    The caller holds the transaction.
    """
    wait_for_writers(shop_domain)
    reports = ReportRow.select(ReportRow.id).where(ReportRow.project.in_(_projects(shop_domain)))
    of_shop = GrantRow.project.in_(_projects(shop_domain)) | GrantRow.report.in_(reports)
    user_ids = scalars(GrantRow.delete().where(of_shop).returning(GrantRow.user))
    useless = (
        TokenRow.user.in_(sorted({*user_ids}))
        & (TokenRow.kind == TokenKind.PLATFORM.value)
        & has_ability(Ability.UPLOAD_STOREFRONT_DIAGNOSTICS)
        & ~fn.EXISTS(GrantRow.select(GrantRow.id).where(GrantRow.user == TokenRow.user))
    )
    revoked = revoke_where(useless, now, actor) if user_ids else []
    return Counter({"grants": len(user_ids), "tokens": len(revoked)}) if user_ids else Counter()


def projects_of(shop_domain: str) -> set[int]:
    """Return the ids of a shop's projects."""
    return {*scalars(_projects(shop_domain))}


def anonymize_shop(shop_domain: str, project_ids: Collection[int]) -> Counter[str]:
    """Remove a shop's domain and name from these of its projects, and the titles from their reports.

    This is the last step, because afterwards nothing is found by the domain. The caller holds the transaction.
    """
    own = (ProjectRow.shop_domain == shop_domain) & ProjectRow.id.in_(sorted(project_ids))
    reports = _NUMBERED_REPORTS.where(ReportRow.project.in_(ProjectRow.select(ProjectRow.id).where(own))).execute()
    projects = _NUMBERED_PROJECTS.where(own).execute()
    ProjectRow.update(shop_domain=None).where(own).execute()
    return Counter({"reports": reports, "projects": projects})


def _is_about_shop(route: str, body: str, shop_domain: str, project_ids: set[int]) -> bool:
    return f'"{shop_domain}"' in body or (route.startswith(_PROJECTS) and json.loads(body or "{}").get("id") in project_ids)


def _empty_responses(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    erasure_log.add(actor, "idempotency_keys", ids, now)
    IdempotencyKeyRow.update(response_body=ERASED_RESPONSE).where(IdempotencyKeyRow.id.in_(ids)).execute()
    return Counter({"idempotency_keys": len(ids)})


def _erase_keys(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    erasure_log.add(actor, CLIENT_KEYS, ids, now)
    erased = IdempotencyKeyRow.update(key=_text_with_key("redacted:", IdempotencyKeyRow.id))
    erased.where(IdempotencyKeyRow.id.in_(ids)).execute()
    return Counter()


#: How `erase_again` erases the rows of each table in the erasure log, with the column that gives a row's age.
ERASED_AGAIN: Final[Mapping[str, tuple[Any, Erase]]] = {
    **{table.name: (table.moment, table.erase) for table in (*ERASABLE_TABLES, *NAMES)},
    "idempotency_keys": (IdempotencyKeyRow.created_at, _empty_responses),
    CLIENT_KEYS: (IdempotencyKeyRow.created_at, _erase_keys),
}


def _ids_with_text(table: ErasableTable, shop_domain: str) -> Iterator[list[Any]]:
    """Yield the ids of a shop's rows with text, slice by slice.

    Many slices are read at once, because SQLite has no index of a shop's rows in this order and sorts all of them each time.
    """
    key = table.model.id
    query = table.model.select(key).where(table.of_shop(shop_domain))
    if table.has_text is not None:
        query = query.where(table.has_text)
    query = query.order_by(key).limit(_IDS_AT_ONCE)
    ids = scalars(query)
    while ids:
        yield from chunked(ids, SLICE)
        ids = scalars(query.where(key > ids[-1]))


def _may_mention(said: Any, mentions: Mentions) -> Any:
    if mentions.patterns is None:
        return SQL("1 = 1")
    # Encoded letters do not match the pattern of an address, so texts with encoded letters may mention the subject too.
    is_encoded = said.contains("&#") | said.contains("%")
    return reduce(or_, [said.ilike(pattern) for pattern in mentions.patterns], is_encoded)


def _lowered(text: Any) -> Any:
    """Return a text with ASCII letters in lower case; some languages of a PostgreSQL database lower I to another letter."""
    return fn.LOWER(text if is_sqlite() else Expression(text, "COLLATE", SQL('"C"')))


def _matches(table: ErasableTable, ids: Sequence[Any], mentions: Mentions) -> list[SubjectMatch]:
    """Read rows that may mention the subject, and return the matches."""
    if not ids:
        return []
    key = table.model.id
    found = tuples(table.model.select(key, table.moment, *table.columns).where(key.in_(ids)).order_by(key))
    read = []
    for row_id, created_at, *values in found:
        texts: dict[str, str] = {}
        for column, value in zip(table.columns, values, strict=True):
            texts |= mentions.in_value(column.column_name, value)
        read.append(SubjectMatch(table.name, row_id, created_at, texts))
    return [match for match in read if match.texts]


def _erased_or_deleted(ids: Sequence[str]) -> set[str]:
    """Return those of `ids`, which name exports and emails, that were erased with their export or deleted by retention.

    A stored response may be newer than the end of its export, for example if a client dismisses a dismissed export again.
    """
    if not ids:
        return set()
    is_kept = ExportRow.redacted_at.is_null()
    exports = ExportRow.select(ExportRow.id).where(is_kept, ExportRow.id.in_(ids))
    emails = InboundEmailRow.select(InboundEmailRow.id).join(ExportRow).where(is_kept, InboundEmailRow.id.in_(ids))
    return {*ids} - {*scalars(exports + emails)}
