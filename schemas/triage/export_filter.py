"""Which exports a list has, in which order, and where its next page begins.

All callers use the same filters: `query_from` reads the parameters of a URL, `ExportFilterForm` a JSON object.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

from marshmallow import ValidationError

from schemas.base.fields import RecordForm, Text, Timestamp
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES
from schemas.triage.search_words import folded, words_in

#: Maximum number of values of one filter: each may be a part of the query.
MAX_VALUES: Final = 20
#: The largest id of a project, with nine digits.
MAX_PROJECT_ID: Final = 999_999_999

#: Maximum length of a search, in characters.
MAX_SEARCH: Final = 500

PROJECT_ID: Final = re.compile(r"[1-9][0-9]{0,8}")
_ULID: Final = "[0-9A-HJKMNP-TV-Z]{26}"
_TARGET_ID: Final = re.compile(f"tgt_{_ULID}")
#: PostgreSQL's text has no NUL. Rule codes have up to 500 characters.
_ANY_TEXT: Final = re.compile(r"[^\0]{1,500}")
_SEPARATOR: Final = re.compile(r"(?<!\\),")
_FINGERPRINT_DIGITS: Final = 12
#: A version, the fingerprint of filters and order, a rank and an id.
_CURSOR: Final = re.compile(f"2:([0-9a-f]{{{_FINGERPRINT_DIGITS}}}):([0-9]{{1,9}}):((?:exp|fnd)_{_ULID})")


class ExportSort(StrEnum):
    """The orders of a list; equal entries are sorted newest first."""

    NEWEST = "-created_at"
    OLDEST = "created_at"
    SEVERITY = "-severity"
    FINDINGS = "-findings"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters of a list: an entry matches one value of each member, and all `words`. An empty member has no effect."""

    #: None for the operator, who sees the exports of every account; a list of findings always has an account.
    account_id: int | None = None
    severities: tuple[str, ...] = ()
    project_ids: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    #: The words of a search, as `schemas.triage.search_words` forms them.
    words: tuple[str, ...] = ()
    #: The projects of a caller whose roles are in single projects; None: all.
    visible_projects: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExportQuery(ListQuery):
    """The filters of a list of exports."""

    statuses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    target_ids: tuple[str, ...] = ()
    #: The first moment of a range, and the first moment after it.
    created_after: datetime | None = None
    created_before: datetime | None = None
    #: Whether an export is snoozed at `now`, and whether all its findings are fixed; for the console.
    is_snoozed: bool | None = None
    now: datetime | None = None
    is_fixed: bool | None = None

    def waiting_for_decision(self, now: datetime) -> "ExportQuery":
        """Return the query of exports that wait for a person at `now`: prepared, neither snoozed nor entirely fixed."""
        return replace(self, statuses=(ExportStatus.PREPARED.value,), is_snoozed=False, now=now, is_fixed=False)


@dataclass(frozen=True, slots=True)
class ListPosition:
    """The end of a page: the id of its last export, and the rank of this export in an order that is not by time."""

    id: str
    rank: int = 0


def split_values(text: str) -> list[str]:
    """Return the values of a filter, which commas separate; a comma within a value is written `\\,`."""
    return [each.replace("\\,", ",") for each in _SEPARATOR.split(text)]


def join_values(values: Iterable[str]) -> str:
    """Return the text that `split_values` splits into these values."""
    return ",".join(each.replace(",", "\\,") for each in values)


class OneOrMore(Text):
    """Values separated by commas, or a list of them; read as a sorted tuple without repeats, for a member of the query."""

    at_most = MAX_VALUES
    #: The JSON type of an entry of a list.
    json_type: ClassVar[str | list[str]] = "string"

    def __init__(
        self, member: str, description: str, allowed: Iterable[str] = (), form: re.Pattern[str] = _ANY_TEXT
    ) -> None:
        super().__init__(attribute=member, metadata={"description": description})
        self.allowed = tuple(allowed)
        self._form = form

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values in a JSON object."""
        value = {"type": self.json_type} | ({"enum": [*map(str, self.allowed)]} if self.allowed else {})
        one = {"type": "string", "description": "One value, or several separated by commas."}
        return {"anyOf": [one, {"type": "array", "minItems": 1, "maxItems": self._most, "items": value}]}

    @property
    def _most(self) -> int:
        return max(len(self.allowed), self.at_most)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        given = split_values(value) if isinstance(value, str) else value
        if not isinstance(given, list):
            raise ValidationError("invalid_type")
        if not given:
            # A filter without a value would have no effect, and a bulk decision would affect every export.
            raise ValidationError("too_short")
        if len(given) > self._most:
            raise ValidationError(f"too_many: {self.at_most}")
        return tuple(sorted({self._read(each) for each in given}))

    def _read(self, each: Any) -> Any:
        if not isinstance(each, str):
            raise ValidationError("invalid_type")
        if not (each in self.allowed if self.allowed else self._form.fullmatch(each)):
            raise ValidationError(f"not_allowed: {', '.join(self.allowed)}")
        return each


class ProjectIdValues(OneOrMore):
    """Ids of projects: digits, or whole numbers in a JSON list."""

    json_type = ["integer", "string"]  # noqa: RUF012 - never changed

    def _read(self, each: Any) -> int:
        return int(super()._read(str(each) if type(each) is int else each))


class Hosts(OneOrMore):
    """Hosts of URLs, in any case."""

    def _read(self, each: Any) -> str:
        return str(super()._read(each)).lower()


class SearchText(Text):
    """A text whose words are searched; a text without a word is refused, because it would find everything."""

    def __init__(self, description: str, fold: Callable[[str], str] = folded, at_most: int = MAX_VALUES) -> None:
        super().__init__(max_length=MAX_SEARCH, attribute="words", metadata={"description": description})
        self._fold = fold
        self._at_most = at_most

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        text = super()._deserialize(value, attr, data, **kwargs)
        if len(text) > self.max_length:
            raise ValidationError(f"too_long: {self.max_length} characters")
        words = words_in(text, self._fold)
        if not words:
            raise ValidationError("no_word" if text else "too_short")
        if len(words) > self._at_most:
            raise ValidationError(f"too_many: {self._at_most}")
        return tuple(sorted(words))


class ExportFilterForm(RecordForm):
    """The filters of a list of exports; each value is a text with commas, or a list."""

    makes = ExportQuery
    status = OneOrMore("statuses", "Only exports with these statuses.", ExportStatus)
    severity = OneOrMore("severities", "Only exports with these severities.", SEVERITIES)
    project_id = ProjectIdValues("project_ids", "Only exports of these projects.", form=PROJECT_ID)
    source = OneOrMore("sources", "Only exports from these kinds of source.", SOURCE_TYPES)
    rule = OneOrMore("rules", "Only exports with exactly these rule codes; write a comma in a code as `\\,`.")
    target_id = OneOrMore("target_ids", "Only exports for these targets.", form=_TARGET_ID)
    host = Hosts("hosts", "Only exports with a page on one of these hosts; for a group, any of its pages counts.")
    q = SearchText(
        "Only exports whose title, description and URLs contain all these words: whole words, "
        "up to 20, in upper or lower case."
    )
    created_after = Timestamp(metadata={"description": "Only exports prepared at this time or later."})
    created_before = Timestamp(metadata={"description": "Only exports prepared before this time."})


_FORM: Final = ExportFilterForm()
#: The names of the parameters that are filters.
FILTERS: Final = tuple(_FORM.fields)


def query_from(parameters: Mapping[str, Any], account_id: int | None) -> ExportQuery:
    """Return the query of an account from the parameters of a URL, or from the members of a JSON object.

    Names that are not filters are ignored. Raises ValidationFailed with every problem, on `/<filter>`.
    """
    query: ExportQuery = _FORM.read({name: parameters[name] for name in FILTERS if name in parameters})
    return replace(query, account_id=account_id)


def encode_cursor(query: ListQuery, sort: ExportSort, position: ListPosition) -> str:
    """Return the cursor of the page that follows `position`."""
    text = f"2:{_fingerprint(query, sort)}:{position.rank}:{position.id}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(query: ListQuery, sort: ExportSort, cursor: str) -> ListPosition | None:
    """Return the position that a cursor of this list contains; None for any other text."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        return None
    read = _CURSOR.fullmatch(text)
    position = ListPosition(read[3], int(read[2])) if read else None
    # A cursor with another encoding, or of another list, was not created here.
    return position if position and encode_cursor(query, sort, position) == cursor else None


def _fingerprint(query: ListQuery, sort: ExportSort) -> str:
    # Without `now`, which differs from page to page, and without the account: a cursor gives no access to another account.
    filters = repr(({**asdict(query), "account_id": None, "now": None}, sort.value))
    return hashlib.sha256(filters.encode()).hexdigest()[:_FINGERPRINT_DIGITS]
