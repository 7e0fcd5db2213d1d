"""Reports of a project's findings in one file: HTML to read, CSV, JSON, and SARIF for code scanning.

Findings are read in batches, most severe first, so that a large project needs no more memory than a small one.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from schemas.api.findings import FindingResponse
from schemas.api.response_fields import dump
from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.printable import printable
from schemas.base.timestamps import format_rfc3339
from schemas.findings.life_cycle import FindingState
from schemas.findings.sarif import LEVELS, logical_locations, path_of, sarif_log, sarif_rule
from schemas.intake.scanner import SEVERITIES
from storage.accounts.projects import Project
from storage.intake import finding_list
from storage.intake.finding_list import Finding

#: Number of findings that are read at once.
_BATCH: Final = 1_000
#: Maximum number of findings in an HTML page; browsers are slow with more, and nobody reads them.
MAX_IN_HTML: Final = 5_000
#: Maximum number of findings of one severity in SARIF: GitHub shows at most this many results of one run.
MAX_IN_RUN: Final = 5_000
_WORST_FIRST: Final = SEVERITIES[::-1]
#: States of findings that code scanning must not show.
_CLOSED: Final = frozenset({FindingState.FIXED, FindingState.DISMISSED})
#: A spreadsheet interprets a cell that begins with one of these as a formula.
_FORMULA: Final = re.compile(r"[\t\r\n ]*[=+\-@|%\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
#: A URL that every browser parses the same way: without userinfo, and with printable ASCII characters only.
_PLAIN_URL: Final = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?([/?#][!-~]*)?")


class ReportFormat(StrEnum):
    """The form of a report."""

    HTML = "html"
    CSV = "csv"
    JSON = "json"
    SARIF = "sarif"


#: The media type of each format.
MEDIA_TYPES: Final[Mapping[ReportFormat, str]] = {
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.CSV: "text/csv; charset=utf-8",
    ReportFormat.JSON: "application/json",
    ReportFormat.SARIF: "application/sarif+json",
}


def report(project: Project, wanted: ReportFormat, now: datetime, most: int | None = None) -> Iterator[str]:
    """Yield the parts of a report of a project's findings at `now`.

    CSV and JSON list every finding. For more than `most` findings they raise ValidationFailed on `/format` before the first
    part.
    """
    is_whole = wanted in {ReportFormat.CSV, ReportFormat.JSON}
    if is_whole and most is not None and sum(finding_list.totals(project.id, now).values()) > most:
        advice = "Choose HTML or SARIF, or run `riskrelay report` on the server."
        message = f"This project has more than {most:,} findings. {advice}"
        raise ValidationFailed(FieldProblem("/format", "too_many", message))
    return _WRITERS[wanted](project, now)


def _html(project: Project, now: datetime) -> Iterator[str]:
    totals = finding_list.totals(project.id, now)
    counts = {severity: [totals.get((severity, state), 0) for state in FindingState] for severity in _WORST_FIRST}
    total = sum(totals.values())
    # If the page omits some findings, it shows the open ones first, not those that were fixed long ago.
    stream = _template().stream(
        project=project,
        at=now,
        states=[state.value for state in FindingState],
        counts=counts,
        total=total,
        left_out=max(0, total - MAX_IN_HTML),
        findings=islice(chain(*(_walk(project, now, _WORST_FIRST, is_fixed=each) for each in (False, True))), MAX_IN_HTML),
    )
    # Without a buffer, every table cell would be yielded separately.
    stream.enable_buffering(_BATCH)
    return iter(stream)


def _csv(project: Project, now: datetime) -> Iterator[str]:
    # A byte order mark: without it, some spreadsheets read the file in another encoding.
    yield "\N{ZERO WIDTH NO-BREAK SPACE}" + _line(FindingResponse().fields)
    for each in _walk(project, now, _WORST_FIRST):
        yield _line(_cell(value) for value in dump(FindingResponse, each).values())


def _json(project: Project, now: datetime) -> Iterator[str]:
    counts: dict[str, dict[str, int]] = {severity: {} for severity in _WORST_FIRST}
    for (severity, state), number in finding_list.totals(project.id, now).items():
        counts[severity][state.value] = number
    head = {"project": {"id": project.id, "name": project.name}, "created_at": format_rfc3339(now), "counts": counts}
    yield json.dumps(head, ensure_ascii=False).removesuffix("}") + ', "findings": ['
    between = "\n"
    for each in _walk(project, now, _WORST_FIRST):
        yield between + json.dumps(dump(FindingResponse, each), ensure_ascii=False)
        between = ",\n"
    yield "\n]}\n"


def _sarif(project: Project, now: datetime) -> Iterator[str]:
    head, _, tail = json.dumps(sarif_log([])).rpartition("]")
    between = "\n"
    for severity in _WORST_FIRST:
        shown = (each for each in _walk(project, now, (severity,)) if each.state not in _CLOSED)
        yield head + between + json.dumps(_run(project, severity, islice(shown, MAX_IN_RUN)), ensure_ascii=False)
        head, between = "", ",\n"
    yield f"\n]{tail}\n"


def _run(project: Project, severity: str, found: Iterable[Finding]) -> dict[str, Any]:
    """Return the SARIF run of one severity; an empty run closes the alerts of its category."""
    rules: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    indexes: dict[str, int] = {}
    for each in found:
        if each.rule not in indexes:
            indexes[each.rule] = len(rules)
            rules.append(_rule(each))
        results.append(_result(each, indexes[each.rule]))
    return {
        "tool": {"driver": {"name": "RiskRelay", "rules": rules}},
        # GitHub's category of the run is the part before the last slash.
        "automationDetails": {"id": f"riskrelay/project-{project.id}/{severity}/"},
        "results": results,
    }


def _rule(finding: Finding) -> dict[str, Any]:
    return {**sarif_rule(finding.rule, finding.title, finding.title, finding.severity), "help": {"text": finding.title}}


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    # GitHub requires a line, but a page has none.
    region = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    physical = {"artifactLocation": {"uri": path_of(finding.url)}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.title} at {finding.url}"},
        "locations": [{"physicalLocation": physical, **logical_locations(finding.location)}],
        "partialFingerprints": {"primaryLocationLineHash": finding.fingerprint},
        "properties": {"id": finding.id, "state": finding.state.value, "url": finding.url},
    }


def _walk(project: Project, now: datetime, severities: Sequence[str], *, is_fixed: bool | None = None) -> Iterator[Finding]:
    for severity in severities:
        last: str | None = None
        while found := finding_list.list_severity(project.id, severity, now, _BATCH, last, is_fixed=is_fixed):
            yield from found
            if len(found) < _BATCH:
                break
            last = found[-1].id


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _template() -> Template:
    folder = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(visible=printable, is_plain_url=lambda url: _PLAIN_URL.fullmatch(url) is not None)
    return made.get_template("finding_report.html")


_WRITERS: Final[Mapping[ReportFormat, Callable[[Project, datetime], Iterator[str]]]] = {
    ReportFormat.HTML: _html,
    ReportFormat.CSV: _csv,
    ReportFormat.JSON: _json,
    ReportFormat.SARIF: _sarif,
}
