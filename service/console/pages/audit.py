"""`/console/audit`: the audit log, newest first, optionally of one record."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import from_ms
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_numbered_page
from storage.accounts import accounts, audit_log
from storage.accounts.audit_log import AuditEntry, StoredEntry
from storage.db import identifiers

#: Paths of records, by the prefix of their ids.
_PATHS: Final = {identifiers.EXPORT: "/exports/", identifiers.TARGET: "/targets/", identifiers.RECOVERY: "/recoveries/"}
#: The actor of a request with a token.
_USER: Final = re.compile(r"user:([1-9][0-9]{0,8})")
#: Longer than any record's id.
_MAX_SUBJECT: Final = 200


class AuditRow(NamedTuple):
    """An entry as shown: `actor` is the user's email if known, `path` the page of the subject if the account owns it."""

    entry: AuditEntry
    at: datetime
    actor: str
    path: str | None


class AuditPage(ConsolePage):
    """Lists the audit log of the installation, or of one record."""

    path = f"{CONSOLE}/audit"
    template = "audit.html"
    is_for_operator = True

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the log."""
        page, subject = read_numbered_page(req), _subject(req)
        if subject is not None:
            page = replace(page, filters={"subject": subject})
        found = audit_log.list_page(page.fetch_limit, None if page.before is None else int(page.before), subject)
        content = list_content(page, found, [str(line.id) for line in found])
        return {**content, "shown": _rows(found[: page.limit], user.account_id)}


def _rows(lines: Iterable[StoredEntry], account_id: int) -> list[AuditRow]:
    entries = [line.entry for line in lines]
    people = emails_by_actor(entry.actor for entry in entries)
    own = audit_log.ids_of_account(account_id, {entry.subject_id for entry in entries if _path_of(entry.subject_id)})
    return [
        AuditRow(
            entry,
            from_ms(entry.at_ms),
            people.get(entry.actor, entry.actor),
            _path_of(entry.subject_id) if entry.subject_id in own else None,
        )
        for entry in entries
    ]


def emails_by_actor(actors: Iterable[str]) -> dict[str, str]:
    """Return the emails of those actors that are users, as far as they are known; one query."""
    ids = {found[0]: int(found[1]) for actor in actors if (found := _USER.fullmatch(actor))}
    emails = accounts.emails_of({*ids.values()})
    return {actor: emails[user_id] for actor, user_id in ids.items() if user_id in emails}


def _path_of(subject_id: str) -> str | None:
    prefix = subject_id.partition("_")[0]
    is_record = prefix in _PATHS and identifiers.is_id(prefix, subject_id)
    return f"{_PATHS[prefix]}{subject_id}" if is_record else None


def _subject(req: falcon.Request) -> str | None:
    """Return the requested subject. Raises ValidationFailed for text that is no id; PostgreSQL rejects NUL characters."""
    subject = req.params.get("subject", "")
    if not isinstance(subject, str) or len(subject) > _MAX_SUBJECT or not subject.isprintable():
        raise ValidationFailed(problem("/subject", "not_allowed"))
    return subject.strip() or None
