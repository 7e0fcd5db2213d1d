"""Approval rules: what an account's exports must match, and what is done with matching exports when they are prepared.

A glob supports `*` (any characters, `/` included) and `?` (one character), and no other special characters; it matches the
whole text and is case-sensitive.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from marshmallow import ValidationError, fields, post_load

from schemas.base.fields import Array, Boolean, ChangeForm, Form, Integer, RecordForm, Text, described, optional, required
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import id_text, label_list
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES

#: Maximum number of rules of one account: each is compared with each export that is prepared.
MAX_RULES: Final = 100
MAX_NAME: Final = 200
#: Maximum length of a glob, in characters.
MAX_GLOB: Final = 200
#: How far back the test of a rule reads, and at most how many exports, the newest first.
TESTED_AGE: Final = timedelta(days=30)
MAX_TESTED: Final = 50_000
MAX_EXAMPLES: Final = 20


class RuleActionType(StrEnum):
    """What a rule does, with the values of the API."""

    APPROVE = "approve"
    DISMISS = "dismiss"
    LABEL = "label"


class StoppedReason(StrEnum):
    """Why a rule stopped by itself, with the values of the API."""

    AUTHOR_LOST_ABILITY = "author_lost_ability"
    AUTHOR_DISABLED = "author_disabled"
    TARGET_REMOVED = "target_removed"


#: The member that belongs to each action.
_MEMBERS: Final = {RuleActionType.APPROVE: "target_id", RuleActionType.DISMISS: "reason", RuleActionType.LABEL: "labels"}


class RuleSubject(NamedTuple):
    """What a rule compares of an export; `page_urls` are those of all its places."""

    project_id: int | None
    severity_rank: int
    source_type: str
    rule: str | None
    page_urls: Collection[str]


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """What an export must match: every member that is not None."""

    project_id: int | None = None
    severity_at_least: str | None = None
    sources: tuple[str, ...] | None = None
    rule: str | None = None
    page_path: str | None = None

    @property
    def severity_rank(self) -> int:
        """The minimum severity as a number; 0, the lowest, if none is set."""
        return 0 if self.severity_at_least is None else SEVERITIES.index(self.severity_at_least)

    def matches(self, subject: RuleSubject) -> bool:
        """Return whether an export matches; one without a page never matches a `page_path`."""
        return (
            self.project_id in {None, subject.project_id}
            and subject.severity_rank >= self.severity_rank
            and (self.sources is None or subject.source_type in self.sources)
            and (self.rule is None or (subject.rule is not None and glob_matches(self.rule, subject.rule)))
            and (self.page_path is None or self._has_paths(self.page_path, subject.page_urls))
        )

    def record(self) -> dict[str, Any]:
        """Return the match as JSON, without the members that are None."""
        members = {**asdict(self), "sources": None if self.sources is None else list(self.sources)}
        return {name: value for name, value in members.items() if value is not None}

    def _has_paths(self, glob: str, page_urls: Collection[str]) -> bool:
        return bool(page_urls) and all(glob_matches(glob, path_of(url)) for url in page_urls)


@dataclass(frozen=True, slots=True)
class RuleAction:
    """What a rule does with an export: one of the members belongs to its type, the others are None."""

    type: RuleActionType
    target_id: str | None = None
    reason: DismissalReason | None = None
    labels: tuple[str, ...] | None = None

    def record(self) -> dict[str, Any]:
        """Return the action as JSON."""
        value = getattr(self, _MEMBERS[self.type])
        return {"type": self.type.value, _MEMBERS[self.type]: list(value) if self.type is RuleActionType.LABEL else value}


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """A stored rule; `author` is the address of the user who last decided what the rule does."""

    id: str
    account_id: int
    name: str
    enabled: bool
    match: RuleMatch
    action: RuleAction
    author_id: int
    author: str
    stopped_reason: StoppedReason | None
    created_at: datetime
    updated_at: datetime

    @property
    def actor(self) -> str:
        """The actor of the rule's actions, as audit entries name it."""
        return f"rule:{self.id}"


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """A new rule."""

    name: str
    enabled: bool
    match: RuleMatch
    action: RuleAction


@dataclass(frozen=True, slots=True)
class RuleChange:
    """Changes of a rule; None leaves a member as it is."""

    name: str | None = None
    enabled: bool | None = None
    match: RuleMatch | None = None
    action: RuleAction | None = None

    @property
    def decides_anew(self) -> bool:
        """Whether the change affects what the rule does, or enables it: its user then becomes the rule's author."""
        return self.match is not None or self.action is not None or self.enabled is True


@dataclass(frozen=True, slots=True)
class RuleTestResult:
    """How many of the `examined` exports a rule matches, and the newest of them."""

    matched: int
    examined: int
    examples: Sequence[str]


class _MatchForm(Form):
    project_id = Integer(minimum=1, **optional("The id of the export's project, which belongs to the account."))
    severity_at_least = Text(allowed=SEVERITIES, **optional("The lowest severity that matches."))
    sources = Array(
        Text(allowed=SOURCE_TYPES), at_least=1, at_most=len(SOURCE_TYPES), **optional("The kinds of source that match.")
    )
    rule = Text(min_length=1, max_length=MAX_GLOB, **optional("A pattern for the rule code; `*` and `?` are wildcards."))
    page_path = Text(
        min_length=1,
        max_length=MAX_GLOB,
        **optional(
            "A pattern for the path of the page's URL, such as `/checkout/*`; `*` and `?` are "
            "wildcards. Every page of a group must match."
        ),
    )

    @post_load
    def _make(self, match: dict[str, Any], **_: Any) -> RuleMatch:
        if all(value is None for value in match.values()):
            raise ValidationError("empty_match")
        path = match["page_path"]
        if path is not None and path[0] not in "/*?":
            raise ValidationError({"page_path": ["not_a_path"]})
        return match_from(match)


class _ActionForm(Form):
    type = Text(allowed=RuleActionType, **required("What the rule does with an export that matches."))
    target_id = id_text(**described("With `approve`, required: the id of a target of the account."))
    reason = Text(allowed=DismissalReason, **described("With `dismiss`, required: the reason."))
    labels = label_list(at_least=1, **described("With `label`, required: the labels that are added."))

    @post_load
    def _make(self, action: dict[str, Any], **_: Any) -> RuleAction:
        wanted = _MEMBERS[RuleActionType(action["type"])]
        problems = {name: ["not_of_this_action"] for name in action if name not in {"type", wanted}}
        if wanted not in action:
            problems[wanted] = ["required"]
        if problems:
            raise ValidationError(problems)
        return action_from(action)


_MATCH: Final = "What an export must match: all fields that are present, at least one."
_ACTION: Final = "What the rule does with an export that matches."


class RuleForm(RecordForm):
    """The body of `POST /api/approval-rules`."""

    makes = RuleRequest
    name = Text(min_length=1, max_length=MAX_NAME, **required("The name of the rule."))
    enabled = Boolean(**described("Whether the rule is on.", load_default=True))
    match = fields.Nested(_MatchForm, **required(_MATCH))
    action = fields.Nested(_ActionForm, **required(_ACTION))


class RuleChangeForm(RecordForm, ChangeForm):
    """The body of `PATCH /api/approval-rules/<id>`; `match` and `action` are replaced as a whole."""

    makes = RuleChange
    name = Text(min_length=1, max_length=MAX_NAME, **described("The name of the rule."))
    enabled = Boolean(**described("Whether the rule is on; true also turns on a rule that stopped, with you as its author."))
    match = fields.Nested(_MatchForm, **described(_MATCH))
    action = fields.Nested(_ActionForm, **described(_ACTION))


def match_from(record: Mapping[str, Any]) -> RuleMatch:
    """Return the match of a request body, or of a record that `RuleMatch.record` wrote; each source once."""
    sources = record.get("sources")
    return RuleMatch(**{**record, "sources": None if sources is None else tuple(dict.fromkeys(sources))})


def action_from(record: Mapping[str, Any]) -> RuleAction:
    """Return the action of a request body, or of a record that `RuleAction.record` wrote; each label once."""
    kind = RuleActionType(record["type"])
    value = record[_MEMBERS[kind]]
    if kind is RuleActionType.DISMISS:
        return RuleAction(kind, reason=DismissalReason(value))
    if kind is RuleActionType.LABEL:
        return RuleAction(kind, labels=tuple(dict.fromkeys(value)))
    return RuleAction(kind, target_id=value)


def path_of(url: str) -> str:
    """Return the path of a page's URL: `/` if the URL has none, "" for a text that is no URL."""
    try:
        return urlsplit(url).path or "/"
    except ValueError:
        # The text of an email may contain URLs of any form.
        return ""


def glob_matches(glob: str, text: str) -> bool:
    """Return whether a glob matches a whole text; no glob makes this slow, since `fnmatch` never backtracks."""
    # Brackets have a meaning only there.
    return fnmatchcase(text, glob.replace("[", "[[]"))


def glob_of(text: str) -> str:
    """Return a glob that matches a text and few others: no character can be escaped, so `?` replaces `*`."""
    glob = text.replace("*", "?")
    return glob if len(glob) <= MAX_GLOB else f"{glob[: MAX_GLOB - 1]}*"
