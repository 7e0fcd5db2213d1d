"""Where outside input is kept, how it is searched for a person, and how it is emptied.

Searches read in id-ordered slices, so that no statement takes long; a LIKE over a row's texts leaves most of them out, and
`schemas.compliance.subject_matching` decides on the rest. Erasures are small: each belongs to one slice and to one
transaction of its caller. What is erased is not found again, so a search that begins anew goes on where another one was
killed. The ids of what is erased go into the journal in the same transaction, by which `erase_again` repeats it in a
restored backup.

A row belongs to a shop by its project, a diagnostic also by the shop that it names. An export without a project belongs to
each shop of its account as far as it speaks of the person or of the shop, and wholly to the one shop of an account that has
no other project.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import from_ms, rfc3339, to_ms
from schemas.compliance.subject_matching import Mentions
from storage.accounts.audit_log import AuditEntry, append_all
from storage.compliance.erasure_log import KEYS, note
from storage.db.columns import JsonField
from storage.db.engine import LOCK_WAIT_S, execute, is_sqlite, rows, values_list
from storage.exports import transitions

#: Rows of one slice: a fraction of a second to search and to erase, on either database.
SLICE: Final = 200
#: What is left of a stored answer; the row stays, so that a repeated request is still not done twice.
REDACTED_ANSWER: Final = '{"redacted": true}'

#: How far the clocks of two hosts may be apart before a row counts as younger than what another host did.
CLOCKS_APART: Final = timedelta(minutes=10)

#: Writers wait as long as the log is being emptied.
_LOG_WAIT_MS: Final = 250

_PROJECTS: Final = "(SELECT id FROM projects WHERE shop_domain = ?)"
_RUNS: Final = "(SELECT r.id FROM scan_runs r JOIN projects p ON p.id = r.project_id WHERE p.shop_domain = ?)"
_ACCOUNTS: Final = "(SELECT account_id FROM projects WHERE shop_domain = ?)"
#: Every answer that repeats what was sent in names the export that it prepared; an email's names the email.
_OURS: Final = re.compile(r"(?:exp|eml)_[0-9A-HJKMNP-TV-Z]{26}")

_json: Final = JsonField()

Erase = Callable[[Sequence[Any], datetime, str], Counter[str]]


@dataclass(frozen=True, slots=True)
class Store:
    """A table that holds what somebody sent: which rows are a shop's, and which columns say something."""

    table: str
    #: A condition with `owner_places` places, each for the shop's domain.
    owner: str
    owner_places: int
    moment: str
    texts: tuple[str, ...]
    json: tuple[str, ...]
    #: Sorts before every id.
    before_all: str | int
    erase: Erase
    #: Rows that say anything still.
    unless_empty: str = "1 = 1"


@dataclass(frozen=True, slots=True)
class Found:
    """A row that speaks of a subject: the texts that do, by column and path."""

    table: str
    id: str | int
    created_at: datetime
    texts: dict[str, str]

    def record(self) -> dict[str, Any]:
        """Return it as it stands in a report."""
        return {"table": self.table, "id": self.id, "created_at": rfc3339(self.created_at), "texts": self.texts}


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored answer of the service, by its row and the key that its client gave it."""

    id: int
    key: str


def _erase_captures(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    return _erase_handed_in("evidence_captures", ids, now, actor)


def _erase_diagnostics(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    return _erase_handed_in("diagnostics", ids, now, actor)


def _erase_handed_in(table: str, ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, table, ids, now)
    within = values_list(len(ids), 1)
    handed_in = rows(f"SELECT export_id FROM handoffs WHERE source_id IN {within}", ids)  # noqa: S608 - our own names
    handoffs = execute(f"DELETE FROM handoffs WHERE source_id IN {within}", ids)  # noqa: S608 - our own names
    deleted = execute(f"DELETE FROM {table} WHERE id IN {within}", ids)  # noqa: S608 - our own names
    counts = Counter({table: deleted, "handoffs": handoffs})
    return counts + _erase_exports([row[0] for row in handed_in], now, actor)


def _erase_emails(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    """Empty emails but keep their rows: the digest of the message id keeps a repeated message from coming back."""
    note(actor, "inbound_emails", ids, now)
    within = values_list(len(ids), 1)
    prepared = rows(f"SELECT export_id FROM inbound_emails WHERE id IN {within}", ids)  # noqa: S608 - our own names
    emptied = execute(
        "UPDATE inbound_emails SET sender = '', recipients = '[]', subject = '', text = '', attachments = '[]' "  # noqa: S608 - our own names
        f"WHERE id IN {within}",
        ids,
    )
    return Counter({"inbound_emails": emptied}) + _erase_exports([row[0] for row in prepared], now, actor)


def _erase_findings(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, "findings", ids, now)
    within = values_list(len(ids), 1)
    prepared = rows(f"SELECT id FROM exports WHERE source_type = 'finding' AND source_id IN {within}", ids)  # noqa: S608 - our own names
    deleted = execute(f"DELETE FROM findings WHERE id IN {within}", ids)  # noqa: S608 - our own names
    return Counter({"findings": deleted}) + _erase_exports([row[0] for row in prepared], now, actor)


def _erase_pages(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, "page_results", ids, now)
    return Counter({"page_results": execute(f"DELETE FROM page_results WHERE id IN {values_list(len(ids), 1)}", ids)})  # noqa: S608 - our own names


def _erase_answers(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, "attempts", ids, now)
    within = values_list(len(ids), 1)
    return Counter({"attempts": execute(f"UPDATE attempts SET answer = NULL WHERE id IN {within}", ids)})  # noqa: S608 - our own names


def _erase_exports(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, "exports", ids, now)
    return Counter({"exports": transitions.redact(ids, now, actor)})


STORES: Final = (
    Store(
        table="evidence_captures",
        owner=f"project_id IN {_PROJECTS}",
        owner_places=1,
        moment="created_at",
        texts=("page_url", "page_title", "selected_text", "meta_description", "canonical_url", "extension_version"),
        json=("heading_outline",),
        before_all="",
        erase=_erase_captures,
    ),
    Store(
        table="diagnostics",
        owner=f"(project_id IN {_PROJECTS} OR shop_domain = ?)",
        owner_places=2,
        moment="created_at",
        texts=("site_url", "shop_name", "client_version"),
        json=("diagnostics",),
        before_all="",
        erase=_erase_diagnostics,
    ),
    Store(
        table="inbound_emails",
        owner=f"project_id IN {_PROJECTS}",
        owner_places=1,
        moment="created_at",
        texts=("sender", "subject", "text"),
        json=("recipients", "attachments"),
        before_all="",
        erase=_erase_emails,
        unless_empty="(sender <> '' OR subject <> '' OR text <> '' OR recipients <> '[]' OR attachments <> '[]')",
    ),
    Store(
        table="findings",
        owner=f"project_id IN {_PROJECTS}",
        owner_places=1,
        moment="first_seen_at",
        texts=("code", "title", "page_url", "location"),
        json=(),
        before_all="",
        erase=_erase_findings,
    ),
    Store(
        table="page_results",
        owner=f"scan_run_id IN {_RUNS}",
        owner_places=1,
        moment="received_at",
        texts=("url", "normalized_url", "page_type", "screenshot_path"),
        json=("response_headers",),
        before_all=0,
        erase=_erase_pages,
    ),
    Store(
        table="attempts",
        owner="export_id IN (SELECT id FROM exports "  # noqa: S608 - our own names
        f"WHERE project_id IN {_PROJECTS} OR (project_id IS NULL AND account_id IN {_ACCOUNTS}))",
        owner_places=2,
        moment="started_at",
        texts=("answer",),
        json=(),
        before_all="",
        erase=_erase_answers,
        unless_empty="answer IS NOT NULL",
    ),
    # Last: what is left are tickets that say more than their source, and those made by hand.
    Store(
        table="exports",
        owner=f"project_id IN {_PROJECTS}",
        owner_places=1,
        moment="created_at",
        texts=("source_id", "provider_ticket_id", "provider_ticket_url"),
        json=("ticket",),
        before_all="",
        erase=_erase_exports,
        unless_empty="redacted_at IS NULL",
    ),
)

#: Exports that no project owns.
UNASSIGNED: Final = replace(STORES[-1], owner=f"(project_id IS NULL AND account_id IN {_ACCOUNTS})")

#: Those of an account that has this one shop and nothing else.
UNASSIGNED_OF_ONE_SHOP: Final = replace(
    UNASSIGNED,
    owner=f"{UNASSIGNED.owner} AND NOT EXISTS (SELECT 1 FROM projects p WHERE p.account_id = exports.account_id "  # noqa: S608 - our own names
    "AND (p.shop_domain IS NULL OR p.shop_domain <> ?))",
    owner_places=2,
)


def is_known(shop_domain: str) -> bool:
    """Tell whether anything here is a shop's."""
    return bool(
        rows("SELECT 1 FROM projects WHERE shop_domain = ? LIMIT 1", (shop_domain,))
        or rows("SELECT 1 FROM diagnostics WHERE shop_domain = ? LIMIT 1", (shop_domain,))
    )


def mentioning(store: Store, shop_domain: str, mentions: Mentions) -> Iterator[list[Found]]:
    """Search a shop's rows of a store; yields after each slice what was found in it, which may be nothing."""
    after: Any = store.before_all
    while slice_ := rows(*_slice(store, shop_domain, mentions, after)):
        after = slice_[-1][0]
        yield _confirmed(store, [row[0] for row in slice_ if row[1]], mentions)


def all_of(store: Store, shop_domain: str) -> Iterator[list[Any]]:
    """Yield the ids of a shop's rows of a store that say anything, slice by slice; each is asked for when it is wanted."""
    after: Any = store.before_all
    statement = (
        f"SELECT id FROM {store.table} WHERE {store.owner} AND {store.unless_empty} AND id > ? "  # noqa: S608 - our own names
        "ORDER BY id LIMIT ?"
    )
    while slice_ := rows(statement, (*[shop_domain] * store.owner_places, after, SLICE)):
        after = slice_[-1][0]
        yield [row[0] for row in slice_]


def answers_telling() -> Iterator[list[Answer]]:
    """Search the stored answers for those that tell of a redacted export; yields after each slice what was found in it."""
    after = 0
    statement = "SELECT id, key, response_body FROM idempotency_keys WHERE id > ? ORDER BY id LIMIT ?"
    while slice_ := rows(statement, (after, SLICE)):
        after = slice_[-1][0]
        named = {row[0]: set(_OURS.findall(row[2] or "")) for row in slice_}
        redacted = _redacted(sorted(set().union(*named.values())))
        yield [Answer(row[0], row[1]) for row in slice_ if named[row[0]] & redacted]


def redact_answers(answers: Sequence[Answer], mentions: Mentions | None, now: datetime, actor: str) -> Counter[str]:
    """Empty stored answers, and forget the client's key of those where it mentions; without `mentions`, of them all.

    A forgotten key makes a repeated request a new one, but it is the client's own text, and may hold anything.
    """
    if not answers:
        return Counter()
    telling = [answer.id for answer in answers if mentions is None or mentions.in_name(answer.key)]
    if telling:
        _forget_keys(telling, now, actor)
    return _empty_answers([answer.id for answer in answers], now, actor)


def erasable() -> frozenset[str]:
    """Return the names that `erase_again` takes."""
    return frozenset(_AGAIN)


def erase_again(table: str, ids: Sequence[str], now: datetime, actor: str) -> Counter[str]:
    """Do once more what the journal of another database tells of a table: the request `actor` erased these rows at `now`.

    Ids that the database counts up may mean another row by now: a row that is younger than its erasure is left alone.
    The caller holds the transaction.
    """
    moment, erase = _AGAIN[table]
    if moment is None:
        return erase(ids, now, actor)
    found = _not_younger(table.partition(".")[0], moment, [int(row_id) for row_id in ids], now)
    # What is not here may be in the next backup that is restored: it stays in the journal all the same.
    note(actor, table, [row_id for row_id in ids if int(row_id) not in found], now)
    return erase(sorted(found), now, actor) if found else Counter()


def _not_younger(table: str, moment: str, ids: Sequence[int], at: datetime) -> set[int]:
    within = values_list(len(ids), 1)
    statement = f"SELECT id FROM {table} WHERE id IN {within} AND {moment} <= ?"  # noqa: S608 - our own names
    return {row[0] for row in rows(statement, (*ids, to_ms(at + CLOCKS_APART)))}


def _empty_answers(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, "idempotency_keys", ids, now)
    within = values_list(len(ids), 1)
    execute(f"UPDATE idempotency_keys SET response_body = ? WHERE id IN {within}", (REDACTED_ANSWER, *ids))  # noqa: S608 - our own names
    return Counter({"idempotency_keys": len(ids)})


def _forget_keys(ids: Sequence[Any], now: datetime, actor: str) -> Counter[str]:
    note(actor, KEYS, ids, now)
    within = values_list(len(ids), 1)
    execute(f"UPDATE idempotency_keys SET key = 'redacted:' || id WHERE id IN {within}", ids)  # noqa: S608 - our own names
    return Counter()


#: How the tables of the journal are erased again; where ids are counted up, by the column that tells a row's age.
_AGAIN: Final[Mapping[str, tuple[str | None, Erase]]] = {
    **{store.table: (None if isinstance(store.before_all, str) else store.moment, store.erase) for store in STORES},
    "idempotency_keys": ("created_at", _empty_answers),
    KEYS: ("created_at", _forget_keys),
}


def revoke_access(shop_domain: str, now: datetime, actor: str) -> Counter[str]:
    """Delete the grants on a shop's projects and reports, and revoke the storefront tokens of users left without a grant.

    The caller holds the transaction.
    """
    of_shop = f"(project_id IN {_PROJECTS} OR report_id IN (SELECT id FROM reports WHERE project_id IN {_PROJECTS}))"  # noqa: S608 - our own names
    users = rows(f"SELECT DISTINCT user_id FROM grants WHERE {of_shop}", (shop_domain, shop_domain))  # noqa: S608 - our own names
    if not users:
        return Counter()
    grants = execute(f"DELETE FROM grants WHERE {of_shop}", (shop_domain, shop_domain))  # noqa: S608 - our own names
    user_ids = [row[0] for row in users]
    useless = rows(
        "SELECT id FROM tokens WHERE revoked_at IS NULL AND kind = ? AND abilities LIKE ? "  # noqa: S608 - our own names
        "AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.user_id = tokens.user_id) "
        f"AND user_id IN {values_list(len(user_ids), 1)}",
        (TokenKind.PLATFORM.value, f'%"{Ability.UPLOAD_STOREFRONT_DIAGNOSTICS.value}"%', *user_ids),
    )
    return Counter({"grants": grants, "tokens": _revoke([row[0] for row in useless], now, actor)})


def forget_shop(shop_domain: str) -> Counter[str]:
    """Take a shop's domain and name from its projects, and the titles from their reports; the caller holds the transaction.

    Nothing is found by the domain afterwards: this is the last step.
    """
    reports = execute(f"UPDATE reports SET title = 'Redacted report ' || id WHERE project_id IN {_PROJECTS}", (shop_domain,))  # noqa: S608 - our own names
    projects = execute(
        "UPDATE projects SET name = 'Redacted project ' || id, shop_domain = NULL WHERE shop_domain = ?", (shop_domain,)
    )
    return Counter({"reports": reports, "projects": projects})


def empty_log() -> None:
    """Take what was erased out of SQLite's write-ahead log as well.

    Others may keep the log busy; then whoever empties it next does. Needs a connection without a transaction.
    """
    if not is_sqlite():
        return
    rows(f"PRAGMA busy_timeout = {_LOG_WAIT_MS}")
    try:
        rows("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        rows(f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}")


def _slice(store: Store, shop_domain: str, mentions: Mentions, after: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that reads the ids of a slice, each with whether its row may mention."""
    patterns = mentions.patterns
    said = " || ' ' || ".join(f"COALESCE({column}, '')" for column in (*store.texts, *store.json))
    may_mention = "1 = 1" if patterns is None else " OR ".join(["said LIKE ?"] * len(patterns)) or "1 = 0"
    statement = (
        f"WITH slice AS MATERIALIZED (SELECT id, LOWER({said}) AS said FROM {store.table} "  # noqa: S608 - our own names
        f"WHERE {store.owner} AND {store.unless_empty} AND id > ? ORDER BY id LIMIT ?) "
        f"SELECT id, {may_mention} FROM slice ORDER BY id"
    )
    return statement, (*[shop_domain] * store.owner_places, after, SLICE, *(patterns or ()))


def _confirmed(store: Store, ids: Sequence[Any], mentions: Mentions) -> list[Found]:
    """Read the rows that may mention, and keep those that do."""
    if not ids:
        return []
    columns = (*store.texts, *store.json)
    statement = (
        f"SELECT id, {store.moment}, {', '.join(columns)} FROM {store.table} "  # noqa: S608 - our own names
        f"WHERE id IN {values_list(len(ids), 1)} ORDER BY id"
    )
    read = [_found(store, columns, row, mentions) for row in rows(statement, ids)]
    return [found for found in read if found.texts]


def _found(store: Store, columns: Sequence[str], row: tuple[Any, ...], mentions: Mentions) -> Found:
    texts: dict[str, str] = {}
    for column, value in zip(columns, row[2:], strict=True):
        texts |= mentions.in_value(column, _json.python_value(value) if column in store.json else value)
    return Found(store.table, row[0], from_ms(row[1]), texts)


def _redacted(ids: Sequence[str]) -> set[str]:
    """Return which of these exports, and of the exports of these emails, were redacted."""
    if not ids:
        return set()
    within = values_list(len(ids), 1)
    found = rows(
        f"SELECT id FROM exports WHERE redacted_at IS NOT NULL AND id IN {within} UNION ALL "  # noqa: S608 - our own names
        "SELECT i.id FROM inbound_emails i JOIN exports e ON e.id = i.export_id "
        f"WHERE e.redacted_at IS NOT NULL AND i.id IN {within}",
        (*ids, *ids),
    )
    return {row[0] for row in found}


def _revoke(token_ids: Sequence[int], now: datetime, actor: str) -> int:
    if not token_ids:
        return 0
    at = to_ms(now)
    revoked = execute(f"UPDATE tokens SET revoked_at = ? WHERE id IN {values_list(len(token_ids), 1)}", (at, *token_ids))  # noqa: S608 - our own names
    append_all([AuditEntry(at, actor, "revoke_token", f"token:{token_id}") for token_id in token_ids])
    return revoked
