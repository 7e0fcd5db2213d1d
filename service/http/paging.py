"""Lists in pages, newest first.

Requests have `?limit=` and `?cursor=`; responses have `{"items": …, "next_cursor": …}` and `Link: rel="next"`.

A cursor contains the last id of the page, and a version, so that its format can change; it reveals nothing new to its owner.
The next page starts after that id, even if records were added or removed in the meantime. Invalid parameters are rejected,
and their values are never repeated in the response.
"""

import base64
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import falcon

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import MAX_ID, problem
from storage.db import identifiers

DEFAULT_LIMIT: Final = 50
#: Maximum number of entries on a page. A page of this many exports is a few hundred kilobytes.
MAX_LIMIT: Final = 200


_VERSION: Final = "1:"
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")
#: A longer number is always over the limit, and may be too long for int().
_MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class Matching:
    """A container of every text that meets a condition; `words` describe these texts.

    It contains the allowed values of a filter that has too many values to list.
    """

    condition: Callable[[str], object]
    #: The problem code for any other text.
    code: str = "not_allowed"
    words: str = ""

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and bool(self.condition(text))


#: Accepts the ids of rows; a larger number does not fit into the database's integer.
NUMBERS: Final = Matching(lambda text: _NUMBER.fullmatch(text) and int(text) <= MAX_ID, words="a number, such as 7")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested part of a list: at most `limit` entries older than the entry with the id `before`."""

    limit: int = DEFAULT_LIMIT
    before: str | None = None
    #: The filters in the request, by name.
    filters: Mapping[str, str] = field(default_factory=dict)

    @property
    def fetch_limit(self) -> int:
        """How many entries to query: one more than the page shows, to find out whether there is a next page."""
        return self.limit + 1


def read_page(req: falcon.Request, prefix: str, filters: Mapping[str, Container[str]] | None = None) -> PageRequest:
    """Read the requested page of a list whose ids have the prefix `prefix`.

    `filters` contains further parameters with their allowed values. Raises ValidationFailed with every problem, on `/limit`,
    `/cursor` or `/<filter>`.
    """
    return _page(req, lambda last_id: identifiers.is_id(prefix, last_id), filters)


def read_numbered_page(req: falcon.Request, filters: Mapping[str, Container[str]] | None = None) -> PageRequest:
    """Read the requested page of a list whose ids are numbers, as `read_page` does."""
    return _page(req, lambda last_id: last_id in NUMBERS, filters)


def send_page(resp: falcon.Response, url: str, page: PageRequest, records: Sequence[Mapping[str, Any]]) -> None:
    """Send a page of the list at `url`; `records` are up to `page.fetch_limit` records, each with its `id`."""
    ids = [record["id"] for record in records]
    query, cursor = next_page(page, ids), None
    if query is not None:
        cursor = _cursor(ids[page.limit - 1])
        resp.set_header("Link", f'<{url}?{query}>; rel="next"')
    send_record(resp, {"items": records[: page.limit], "next_cursor": cursor})


def send_record(resp: falcon.Response, record: Mapping[str, Any]) -> None:
    """Send a record as a JSON object."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = json.dumps(record, ensure_ascii=False).encode()


def next_page(page: PageRequest, ids: Sequence[str]) -> str | None:
    """Return the query of the next page, given the ids of up to `page.fetch_limit` entries; None if there is none."""
    if len(ids) <= page.limit:
        return None
    return urlencode({**page.filters, "limit": page.limit, "cursor": _cursor(ids[page.limit - 1])})


def read_limit(req: falcon.Request, problems: list[FieldProblem]) -> int:
    """Return `?limit=`, or the default; add a problem to `problems` if the parameter is invalid."""
    text = read_text(req, "limit")
    if text is None:
        return DEFAULT_LIMIT
    if _WHOLE_NUMBER.fullmatch(text) is None:
        problems.append(problem("/limit", "invalid_type"))
    elif len(text) > _MAX_DIGITS or not 1 <= int(text) <= MAX_LIMIT:
        problems.append(problem("/limit", "out_of_range", f"1 to {MAX_LIMIT}"))
    else:
        return int(text)
    return DEFAULT_LIMIT


def read_text(req: falcon.Request, name: str) -> str | None:
    """Return a parameter's value, or None if it is absent. For a repeated parameter, return "", which no filter allows."""
    value = req.params.get(name)
    return "" if isinstance(value, list) else value


def _page(req: falcon.Request, is_id: Callable[[str], bool], filters: Mapping[str, Container[str]] | None) -> PageRequest:
    problems: list[FieldProblem] = []
    limit = read_limit(req, problems)
    before = _before(req, is_id, problems)
    chosen = {name: _choice(req, name, allowed, problems) for name, allowed in (filters or {}).items()}
    if problems:
        raise ValidationFailed(*problems)
    return PageRequest(limit, before, {name: value for name, value in chosen.items() if value is not None})


def _before(req: falcon.Request, is_id: Callable[[str], bool], problems: list[FieldProblem]) -> str | None:
    text = read_text(req, "cursor")
    if text is None:
        return None
    last_id = _id_in(text)
    # Another encoding of the same id was not created by this service.
    if not is_id(last_id) or _cursor(last_id) != text:
        problems.append(problem("/cursor", "invalid_cursor"))
    return last_id


def _choice(req: falcon.Request, name: str, allowed: Container[str], problems: list[FieldProblem]) -> str | None:
    text = read_text(req, name)
    if text is not None and text not in allowed:
        if isinstance(allowed, Matching):
            code, words = allowed.code, allowed.words
        else:
            code, words = "not_allowed", ", ".join(sorted(allowed)) if isinstance(allowed, Iterable) else ""
        problems.append(problem(f"/{name}", code, words))
    return text


def _cursor(last_id: str) -> str:
    return base64.urlsafe_b64encode(f"{_VERSION}{last_id}".encode()).decode().rstrip("=")


def _id_in(cursor: str) -> str:
    """Return the id in a cursor, or an empty string for an invalid cursor."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        return ""
    return text.removeprefix(_VERSION) if text.startswith(_VERSION) else ""
