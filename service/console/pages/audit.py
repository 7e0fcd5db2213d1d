"""`/console/audit`: the ledger, the newest line first; whose record it tells of, and which person, one question each."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import falcon

from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import from_ms
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, Page
from service.console.sessions import Visitor
from service.http.paging import next_page, read_numbered_page
from storage.accounts import accounts, audit_log
from storage.accounts.audit_log import AuditEntry, StoredEntry
from storage.db import identifiers

#: Where a record's page is, by the prefix of its id.
_PAGES: Final = {identifiers.EXPORT: "/exports/", identifiers.TARGET: "/targets/", identifiers.RECOVERY: "/recoveries/"}
#: What somebody who called by a token is called.
_USER: Final = re.compile(r"user:([1-9][0-9]{0,8})")
#: No record's id is as long.
_MAX_SUBJECT: Final = 200


class _Told(NamedTuple):
    """A line as it is shown: `who` is a person's email where there is one, `page` the subject's where it has one."""

    entry: AuditEntry
    at: Any
    who: str
    page: str | None


class Audit(Page):
    """Lists what happened, of the whole installation or of one record."""

    path = f"{CONSOLE}/audit"
    template = "audit.html"
    family = RouteFamily.CONSOLE
    is_operators = True

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the ledger."""
        page = read_numbered_page(req)
        subject = _subject(req)
        if subject is not None:
            page = replace(page, filters={"subject": subject})
        before = None if page.before is None else int(page.before)
        found = audit_log.list_page(page.fetch_limit, before, subject)
        return {
            "shown": _told(found[: page.limit], visitor.account_id),
            "subject": subject,
            "next": next_page(page, [str(line.id) for line in found]),
            "is_first": page.before is None,
        }


def _told(lines: Iterable[StoredEntry], account_id: int) -> list[_Told]:
    entries = [line.entry for line in lines]
    actors = {found for entry in entries if (found := _USER.fullmatch(entry.actor))}
    emails = accounts.emails_of({int(found[1]) for found in actors})
    people = {found[0]: emails.get(int(found[1]), found[0]) for found in actors}
    own = audit_log.ids_of_account(account_id, {entry.subject_id for entry in entries if _page_of(entry.subject_id)})
    return [
        _Told(
            entry,
            from_ms(entry.at_ms),
            people.get(entry.actor, entry.actor),
            _page_of(entry.subject_id) if entry.subject_id in own else None,
        )
        for entry in entries
    ]


def _page_of(subject_id: str) -> str | None:
    prefix = subject_id.partition("_")[0]
    is_record = prefix in _PAGES and identifiers.is_id(prefix, subject_id)
    return f"{_PAGES[prefix]}{subject_id}" if is_record else None


def _subject(req: falcon.Request) -> str | None:
    """Return whose lines are asked for. Raises ValidationFailed for what no id holds, which PostgreSQL may not take."""
    asked = req.params.get("subject", "")
    if not isinstance(asked, str) or len(asked) > _MAX_SUBJECT or not asked.isprintable():
        raise ValidationFailed(problem("/subject", "not_allowed"))
    return asked.strip() or None
