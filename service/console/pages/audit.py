"""`/console/audit`: the audit log, newest first, with the filters of `GET /api/audit` and of `audit list`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final

import falcon

from schemas.base.timestamps import from_ms, to_ms
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import NUMBERS, Matching, read_numbered_page
from storage.accounts import accounts, audit_log
from storage.accounts.audit_log import AuditEntry
from storage.accounts.audit_log_sql import AuditFilter
from storage.db import identifiers

#: Paths of records, by id prefix.
_PATHS: Final = {identifiers.EXPORT: "/exports/", identifiers.TARGET: "/targets/", identifiers.RECOVERY: "/recoveries/"}
#: The actor of a user's request.
_USER: Final = re.compile(r"user:([1-9][0-9]{0,8})")


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


#: Accepts every id and action, and email addresses of up to 200 characters, but no NUL, which PostgreSQL rejects.
_WORD: Final = Matching(lambda text: 0 < len(text) <= 200 and text.isprintable())
_FILTERS: Final = {
    **dict.fromkeys(("subject", "actor", "action"), _WORD),
    **dict.fromkeys(("first_day", "last_day"), Matching(_day, words="a day, such as 2026-03-01")),
    "account_id": NUMBERS,
}


class AuditPage(ConsolePage):
    """Lists the audit log of the installation."""

    path = f"{CONSOLE}/audit"
    template = "audit.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the log. Raises ValidationFailed."""
        page = read_numbered_page(req, _FILTERS)
        before = None if page.before is None else int(page.before)
        found = audit_log.list_matching(_filter(page.filters), page.fetch_limit, before)
        content = list_content(page, found, [str(line.id) for line in found])
        return {**content, "shown": _rows(found[: page.limit], user.account_id)}


def _filter(given: Mapping[str, str]) -> AuditFilter:
    """Return the filter that the fields describe; both days are whole days in UTC."""
    subject, actor, action = (given.get(name, "").strip() or None for name in ("subject", "actor", "action"))
    first, last = (_day(given.get(name, "")) for name in ("first_day", "last_day"))
    return AuditFilter(
        int(given["account_id"]) if "account_id" in given else None,
        subject,
        actor and _actor(actor),
        # The page shows actions with spaces, so both spellings are accepted.
        action and action.replace(" ", "_"),
        to_ms(datetime.combine(first, time.min, UTC)) if first else None,
        to_ms(datetime.combine(last, time.max, UTC)) + 1 if last else None,
    )


def _actor(text: str) -> str:
    """Return the actor for a text, which is an actor as in the log or the email address of a user."""
    users = accounts.users_by_email(text) if "@" in text else ()
    return f"user:{users[0].id}" if len(users) == 1 else text


def _rows(entries: Sequence[AuditEntry], account_id: int) -> list[dict[str, Any]]:
    """Return entries for display: the actor is an email if known, and the subject has a link if the account owns it."""
    people = emails_by_actor(entry.actor for entry in entries)
    own = audit_log.ids_of_account(account_id, {entry.subject_id for entry in entries if _path_of(entry.subject_id)})
    return [
        {
            "entry": entry,
            "at": from_ms(entry.at_ms),
            "actor": people.get(entry.actor, entry.actor),
            "path": _path_of(entry.subject_id) if entry.subject_id in own else None,
        }
        for entry in entries
    ]


def emails_by_actor(actors: Iterable[str]) -> dict[str, str]:
    """Return the known emails of the actors that are users. Makes one query."""
    ids = {found[0]: int(found[1]) for actor in actors if (found := _USER.fullmatch(actor))}
    emails = accounts.emails_of({*ids.values()})
    return {actor: emails[user_id] for actor, user_id in ids.items() if user_id in emails}


def _path_of(subject_id: str) -> str | None:
    prefix = subject_id.partition("_")[0]
    is_record = prefix in _PATHS and identifiers.is_id(prefix, subject_id)
    return f"{_PATHS[prefix]}{subject_id}" if is_record else None
