"""SARIF 2.1.0, which many scanners can write: results with a rule, a level and a location.

The page of a result is the first http or https URL of its locations or its web request; a result in a file has no page.
Only failed and open results are imported, without suppressed and absent ones. Line numbers change with every edit of a
page, so results of the same rule on several lines of a page, without another location, are one issue.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.report_files.document import Node, UnreadableReport, shortened
from schemas.report_files.issues import (
    MAX_LOCATION,
    ScanIssue,
    VisitedPages,
    evidence,
    one_line,
    paragraphs,
    references,
    without_personal_data,
)

#: The severity by `level`, if the rule has no `security-severity`.
SEVERITIES: Final[Mapping[str, str]] = {"error": "high", "warning": "medium", "note": "low", "none": "info"}
#: The severity by the `security-severity` of a rule or result: minimum, severity.
SCORES: Final = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.1, "low"))

_DEFAULT_LEVEL: Final = "warning"
_KINDS: Final = frozenset({"", "fail", "open", "review"})
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
#: `{0}`: a placeholder for an argument of a message.
_PLACEHOLDER: Final = re.compile(r"\{([0-9]{1,3})\}")
#: Maximum number of placeholders in a message: more, each with a long argument, would fill the memory.
_MAX_PLACEHOLDERS: Final = 50
#: Characters of a tool's name, which begins its codes; MAX_CODE has room for the rule's name, too.
_MAX_TOOL: Final = 100


def is_report(value: Any) -> bool:
    """Return whether a value is a SARIF report."""
    return isinstance(value, dict) and isinstance(value.get("runs"), list)


def read_issues(report: Node) -> Iterator[ScanIssue]:
    """Yield the issues of a report. Raises UnreadableReport."""
    for run in report.member("runs").entries():
        results = [*run.member("results").entries()]
        if not results:
            _require_success(run)
        rules, by_id = _rules(run)
        for result in filter(_counts, results):
            yield _issue(run, result, _rule(result, rules, by_id))


def visited(report: Node) -> VisitedPages:
    """Return all rules of the report's tools; which pages they visited is not known."""
    tools = {_tool(run) for run in report.member("runs").entries()}
    return VisitedPages(rules=tuple(f"{tool}:*" for tool in sorted(tools)))


def _require_success(run: Node) -> None:
    """Refuse the empty results of a failed scan: they must not pass for a page without issues."""
    for invocation in run.member("invocations").entries():
        if invocation.member("executionSuccessful").value is False:
            raise UnreadableReport(f"The scan failed according to {invocation.pointer}; the report contains no results.")


def _rules(run: Node) -> tuple[list[Node], dict[str, Node]]:
    """Return the tool's own rules, to find by index, and all rules by id, including those of its extensions."""
    tool = run.member("tool")
    rules = [*tool.member("driver").member("rules").entries()]
    added = [rule for extension in tool.member("extensions").entries() for rule in extension.member("rules").entries()]
    return rules, {rule.member("id").text(): rule for rule in (*added, *rules)}


def _counts(result: Node) -> bool:
    if result.member("kind").text() not in _KINDS or result.member("baselineState").text() == "absent":
        return False
    suppressed = [each.member("status").text() for each in result.member("suppressions").entries()]
    return all(status in {"rejected", "underReview"} for status in suppressed)


def _rule(result: Node, rules: list[Node], by_id: Mapping[str, Node]) -> Node:
    """Return the rule of a result: by its id, which may end in a sub-rule after a slash, otherwise by its index.

    Nuclei 3.3.10 writes indexes of other rules.
    """
    reference = result.member("rule")
    name = result.member("ruleId").text() or reference.member("id").text()
    named = by_id.get(name) or by_id.get(name.rpartition("/")[0])
    indexes = (result.member("ruleIndex").value, reference.member("index").value)
    indexed = (rules[index] for index in indexes if type(index) is int and 0 <= index < len(rules))
    return named or next(indexed, Node(None, result.pointer))


def _issue(run: Node, result: Node, rule: Node) -> ScanIssue:
    name = result.member("ruleId").text() or result.member("rule").member("id").text() or rule.member("id").text()
    message = _message(result.member("message"), rule)
    title = rule.member("shortDescription").member("text").text() or rule.member("name").text()
    return ScanIssue(
        url=_url(result),
        code=f"{_tool(run)}:{name or title or message}",
        title=title or message or name or "A result without a name",
        severity=_severity(result, rule),
        description=paragraphs(
            message, rule.member("fullDescription").member("text").text(), rule.member("help").member("text").text()
        ),
        location=_location(result),
        evidence=evidence(references=references(rule.member("helpUri").text())),
    )


def _tool(run: Node) -> str:
    """Return the beginning of the codes of a tool's rules."""
    name = run.member("tool").member("driver").member("name").text()
    return _NO_NAME.sub("-", name.lower()[:_MAX_TOOL]).strip("-") or "sarif"


def _severity(result: Node, rule: Node) -> str:
    for node in (result, rule):
        score = node.member("properties").member("security-severity").number()
        if score is not None and (found := [severity for minimum, severity in SCORES if score >= minimum]):
            return found[0]
    by_rule = rule.member("defaultConfiguration").member("level").text()
    return SEVERITIES.get(result.member("level").text() or by_rule or _DEFAULT_LEVEL, "info")


def _message(message: Node, rule: Node) -> str:
    """Return the message of a result or of its rule, with arguments inserted and personal data removed."""
    own = message.member("text").text()
    text = own or rule.member("messageStrings").member(message.member("id").text()).member("text").text()
    arguments = [argument.text() for argument in message.member("arguments").entries()]

    def argument_of(placeholder: re.Match[str]) -> str:
        number = int(placeholder[1])
        return arguments[number] if number < len(arguments) else placeholder[0]

    return without_personal_data(shortened(_PLACEHOLDER.sub(argument_of, text, count=_MAX_PLACEHOLDERS)))


def _url(result: Node) -> str:
    """Return the first http or https URL, otherwise the first location, which is reported as skipped."""
    locations = [each.member("physicalLocation").member("artifactLocation") for each in result.member("locations").entries()]
    uris = [*(each.member("uri").text() for each in locations), result.member("webRequest").member("target").text()]
    return next((each for each in uris if _WEB.match(each)), next(filter(None, uris), ""))


def _location(result: Node) -> str:
    nodes = [node for each in result.member("locations").entries() for node in each.member("logicalLocations").entries()]
    names = (node.member("fullyQualifiedName").text() or node.member("name").text() for node in nodes)
    return next((one_line(name, MAX_LOCATION) for name in names if name), "page")
