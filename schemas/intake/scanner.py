"""A scanner's postback: one page of one scan run and the issues found on it.

Unknown fields are ignored and never stored, except those of an issue, which are kept as evidence up to a limit. Text that is
too long and too many issues are rejected, never truncated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from marshmallow import INCLUDE, fields, post_load, pre_load
from marshmallow.exceptions import ValidationError

from schemas.base.fields import (
    MAX_URL,
    AnyObject,
    Array,
    Integer,
    LenientForm,
    PageUrl,
    RecordForm,
    Text,
    described,
    is_page_url,
    optional,
    required,
)
from schemas.base.strict_json import canonical

MAX_ISSUES: Final = 500
#: Enough for the rules of a scanner with all its templates; an entry with `*` stands for many rules.
MAX_RULES: Final = 20_000
#: Cached help links: rules have few of them, and each postback repeats them.
_MAX_HELP_URLS: Final = 1024
#: Enough for a snippet, a selector and some measurements; a page dump does not fit.
MAX_EVIDENCE_BYTES: Final = 8 * 1024

RUN_STATUSES: Final = ("running", "completed", "partial", "failed", "cancelled")
#: Only in these runs do issues become findings.
STATUSES_WITH_FINDINGS: Final = frozenset({"completed", "partial"})

SEVERITIES: Final = ("info", "low", "medium", "high", "critical")
#: RiskRelay's severities, and the names that scanners use for them.
SEVERITY_SYNONYMS: Final[Mapping[str, str]] = {
    **{name: name for name in SEVERITIES},
    **dict.fromkeys(("informational", "information", "notice", "note", "none"), "info"),
    **dict.fromkeys(("minor", "trivial"), "low"),
    **dict.fromkeys(("moderate", "warning", "warn"), "medium"),
    **dict.fromkeys(("serious", "major", "error"), "high"),
    **dict.fromkeys(("severe", "blocker", "fatal"), "critical"),
}

#: RiskRelay's name of an issue's field, and its aliases in order of preference.
ISSUE_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "code": ("rule", "type", "id"),
    "title": ("message",),
    "location": ("selector",),
}
#: Names of the link to a scanner's page about the rule, in lower case without `_` and `-`.
_HELP_NAMES: Final = frozenset({"helpurl", "helpuri", "helplink", "documentationurl", "docsurl", "infourl", "moreinfourl"})
#: The name of that link in a ticket's evidence; the list that may contain such links, and how many of its entries are read.
HELP_URL: Final = "help_url"
_REFERENCES: Final = "references"
_MAX_REFERENCES: Final = 20


@dataclass(frozen=True, slots=True)
class Issue:
    """One issue on a page, with RiskRelay's field names."""

    code: str
    title: str
    severity: str
    description: str
    location: str
    url: str | None
    evidence: dict[str, Any]
    #: The scanner's page about the rule.
    help_url: str | None = None


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """The scanned page."""

    url: str
    normalized_url: str | None
    status_code: int | None
    page_type: str | None
    response_headers: dict[str, Any]
    #: The codes of the rules that were checked, or their beginnings with `*`; None: every rule.
    rules: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScanPostback:
    """One valid postback."""

    scan_run_id: int
    status: str
    page: ScannedPage
    screenshot_path: str | None
    issues: tuple[Issue, ...]
    #: The URL of the screenshot; None if it is unknown.
    screenshot_url: str | None = None

    @property
    def screenshot(self) -> str | None:
        """The screenshot in tickets: its URL, or else its path."""
        return self.screenshot_url or self.screenshot_path


class _IssueForm(LenientForm):
    class Meta:
        unknown = INCLUDE

    code = Text(max_length=200, **described("The code of the rule that the page breaks; a code or a title is required."))
    title = Text(max_length=500, **described("The issue in one line."))
    severity = Text(
        max_length=100,
        **described("The severity, in the scanner's own words; an unknown word becomes `info`.", allow_none=True),
    )
    description = Text(**described("The issue in full.", allow_none=True))
    location = Text(max_length=2000, **described("The location on the page.", allow_none=True))
    url = PageUrl(**described("The URL of the page, if it differs from the postback's.", allow_none=True))

    @pre_load
    def _fold_aliases(self, entry: Any, **_: Any) -> Any:
        """Rename aliases of members to the names of the schema."""
        if not isinstance(entry, dict):
            return entry
        folded = dict(entry)
        for name, aliases in ISSUE_ALIASES.items():
            value = folded.pop(name, None)
            if _is_missing(value):
                given = next((alias for alias in aliases if not _is_missing(folded.get(alias))), None)
                value = value if given is None else folded.pop(given)
            if value is not None:
                folded[name] = str(value) if type(value) is int else value
        return folded

    @post_load(pass_original=True)
    def _make(self, entry: dict[str, Any], submitted: dict[str, Any], **_: Any) -> Issue:
        if not (_text_or_none(entry.get("code")) or _text_or_none(entry.get("title"))):
            raise ValidationError("required", "title")
        named = {name: entry.pop(name, None) for name in ("code", "title", "severity", "description", "location", "url")}
        # marshmallow passes unknown fields in no fixed order; the sender's order decides which ones fit.
        evidence = {name: entry[name] for name in submitted if name in entry}
        severity = SEVERITY_SYNONYMS.get((named["severity"] or "").strip().lower())
        if severity is None and named["severity"]:
            evidence = {"severity": named["severity"], **evidence}
        help_url = _help_url(evidence)
        # In the evidence, this name is reserved for a link that was checked.
        evidence.pop(HELP_URL, None)
        return Issue(
            code=_text_or_none(named["code"]) or named["title"],
            title=_text_or_none(named["title"]) or named["code"],
            severity=severity or "info",
            description=named["description"] or "",
            location=named["location"] or "",
            url=named["url"],
            evidence=_within_limit(evidence),
            help_url=help_url,
        )


class _PageForm(LenientForm, RecordForm):
    makes = ScannedPage
    url = PageUrl(**required("The URL of the scanned page."))
    normalized_url = PageUrl(data_key="normalizedUrl", **optional("The URL of the page as the scanner normalizes it."))
    status_code = Integer(data_key="statusCode", minimum=100, maximum=999, **optional("The page's HTTP status."))
    page_type = Text(data_key="pageType", max_length=100, **optional("The kind of page."))
    response_headers = AnyObject(
        data_key="responseHeaders",
        **described("The page's response headers; the scanner must remove `Set-Cookie`.", load_default=dict),
    )
    rules = Array(
        Text(max_length=500),
        at_most=MAX_RULES,
        post_load=tuple,
        **optional(
            "The codes of the rules that the run checked on this page; a code that ends in `*` stands for all codes with "
            "the same beginning. This run does not fix findings of other rules. Default: all rules."
        ),
    )


class _ArtifactsForm(LenientForm):
    screenshot_path = Text(
        data_key="screenshotPath", max_length=1000, **optional("The path of the screenshot in the scanner's storage.")
    )

    @post_load
    def _path(self, artifacts: dict[str, Any], **_: Any) -> str | None:
        path: str | None = artifacts["screenshot_path"]
        return path


class PostbackForm(LenientForm, RecordForm):
    """The body of `POST /api/scanner/results`."""

    makes = ScanPostback
    scan_run_id = Integer(
        data_key="scanRunId",
        minimum=1,
        **required("The id of the scan run; an unregistered scan run belongs to the default project."),
    )
    status = Text(
        allowed=RUN_STATUSES, **required("The status of the scan run; only `completed` and `partial` create findings.")
    )
    page = fields.Nested(_PageForm, **required("The scanned page."))
    artifacts = fields.Nested(
        _ArtifactsForm,
        attribute="screenshot_path",
        **described("References to artifacts of the scanner.", load_default=None, allow_none=False),
    )
    issues = Array(
        _IssueForm, at_most=MAX_ISSUES, post_load=tuple, **described("The issues found on the page.", load_default=tuple)
    )


def _is_missing(value: Any) -> bool:
    """Return whether a value is null or a blank text."""
    return value is None or (isinstance(value, str) and not value.strip())


def _text_or_none(text: str | None) -> str | None:
    """Return a text, or None if it is blank."""
    return text if text and text.strip() else None


def _help_url(members: Mapping[str, Any]) -> str | None:
    """Return the first web URL among the fields that name a page about the rule, or else among the references."""
    for name, value in members.items():
        # Most names begin with another letter: folding every name would take a tenth of the time to read an issue.
        if name[:1] in "hdimHDIM" and name.lower().replace("_", "").replace("-", "") in _HELP_NAMES and _is_web_url(value):
            return str(value)
    references = members.get(_REFERENCES)
    listed = references[:_MAX_REFERENCES] if isinstance(references, list) else ()
    return next(filter(_is_web_url, listed), None)


def _is_web_url(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_URL and _is_web_address(value)


@lru_cache(maxsize=_MAX_HELP_URLS)
def _is_web_address(text: str) -> bool:
    """Return whether a text is an http or https URL without a user, of characters that are printed."""
    return text.isprintable() and is_page_url(text) and "@" not in urlsplit(text).netloc


def _within_limit(members: dict[str, Any]) -> dict[str, Any]:
    """Keep fields in the sender's order while they fit in MAX_EVIDENCE_BYTES of JSON; drop the rest."""
    # Fields that fit together are serialized once: one by one, 90,000 fields take a tenth of a second.
    if len(canonical(members)) <= MAX_EVIDENCE_BYTES:
        return members
    kept: dict[str, Any] = {}
    size = len("{}")
    for name, value in members.items():
        # Alone, each field has braces of its own; together, commas separate them.
        size += len(canonical({name: value})) - len("{}") + len("," if kept else "")
        if size > MAX_EVIDENCE_BYTES:
            break
        kept[name] = value
    return kept
