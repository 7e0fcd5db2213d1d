"""SARIF 2.1.0, which many scanners can write: results with a rule, a level and a location.

A result's page is the first of its locations, or its web request, that is an http or https address; one that lies in a file
has no page. Only what failed or is open is taken, and neither what was suppressed nor what is no longer there. Lines move
whenever a page changes, so what is on several lines of a page, by the same rule and with no other place, is one flaw.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urljoin

from bin.scan_import.document import Node, UnreadableReport
from bin.scan_import.issues import MAX_LOCATION, Flaw, evidence, impersonal, one_line, paragraphs, references

#: `level`, where the rule has no `security-severity`.
SEVERITIES: Final[Mapping[str, str]] = {"error": "high", "warning": "medium", "note": "low", "none": "info"}
#: A rule's or a result's `security-severity`: the words of the table, the least of it, the severity.
SCORES: Final = (
    ("security-severity from 9.0", 9.0, "critical"),
    ("security-severity from 7.0", 7.0, "high"),
    ("security-severity from 4.0", 4.0, "medium"),
    ("security-severity above 0", 0.1, "low"),
)

_DEFAULT_LEVEL: Final = "warning"
_KINDS: Final = frozenset({"", "fail", "open", "review"})
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
#: `{0}`: an argument of a message.
_OPEN: Final = re.compile(r"\{([0-9]{1,3})\}")
#: Bases may be relative to one another; one in a circle leads nowhere.
_MAX_BASES: Final = 8


def looks_so(value: Any) -> bool:
    """Tell whether a report is SARIF."""
    return isinstance(value, dict) and isinstance(value.get("runs"), list)


def flaws(report: Node) -> Iterator[Flaw]:
    """Yield the flaws of a report. Raises UnreadableReport."""
    for run in report.member("runs").entries():
        results = [*run.member("results").entries()]
        if not results:
            _require_success(run)
        rules, by_id = _rules(run)
        for result in filter(_counts, results):
            yield _flaw(run, result, _rule(result, rules, by_id))


def _require_success(run: Node) -> None:
    """A scan that failed has found nothing; that is not to be taken for a clean one."""
    for invocation in run.member("invocations").entries():
        if invocation.member("executionSuccessful").value is False:
            raise UnreadableReport(f"{invocation.place} says that the scan failed; its report holds no results.")


def _rules(run: Node) -> tuple[list[Node], dict[str, Node]]:
    """Return the tool's own rules, which go by number, and all rules by id; those of its extensions count as well."""
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
    """Return the rule of a result: by its id, which may have a sub-rule behind a slash, else by its number.

    Nuclei 3.3.10 writes numbers that are those of other rules.
    """
    told = result.member("rule")
    name = result.member("ruleId").text() or told.member("id").text()
    named = by_id.get(name) or by_id.get(name.rpartition("/")[0])
    numbers = (result.member("ruleIndex").value, told.member("index").value)
    numbered = (rules[index] for index in numbers if type(index) is int and 0 <= index < len(rules))
    return named or next(numbered, Node(None, result.place))


def _flaw(run: Node, result: Node, rule: Node) -> Flaw:
    tool = run.member("tool").member("driver").member("name").text()
    name = result.member("ruleId").text() or result.member("rule").member("id").text() or rule.member("id").text()
    message = _message(result.member("message"), rule)
    title = rule.member("shortDescription").member("text").text() or rule.member("name").text()
    return Flaw(
        url=_url(run, result),
        code=f"{_NO_NAME.sub('-', tool.lower()).strip('-') or 'sarif'}:{name or title or message}",
        title=title or message or name or "A result without a name",
        severity=_severity(result, rule),
        description=paragraphs(message, rule.member("fullDescription").member("text").text(), _help(rule)),
        location=_place(result),
        evidence=evidence(references=references(rule.member("helpUri").text())),
    )


def _severity(result: Node, rule: Node) -> str:
    for told in (result, rule):
        score = told.member("properties").member("security-severity").number()
        if score is not None and (found := [severity for _, least, severity in SCORES if score >= least]):
            return found[0]
    by_rule = rule.member("defaultConfiguration").member("level").text()
    return SEVERITIES.get(result.member("level").text() or by_rule or _DEFAULT_LEVEL, "info")


def _message(message: Node, rule: Node) -> str:
    """Return the words of a result, with what they leave open; its rule may hold them."""
    own = message.member("text").text()
    words = own or rule.member("messageStrings").member(message.member("id").text()).member("text").text()
    given = [argument.text() for argument in message.member("arguments").entries()]
    return impersonal(_OPEN.sub(lambda found: given[int(found[1])] if int(found[1]) < len(given) else found[0], words))


def _help(rule: Node) -> str:
    return rule.member("help").member("text").text()


def _url(run: Node, result: Node) -> str:
    """Return the first address of the web, else whatever stands there, for the reader to be told of."""
    locations = [each.member("physicalLocation") for each in result.member("locations").entries()]
    told = [_address(run, each.member("artifactLocation")) for each in locations]
    told.append(result.member("webRequest").member("target").text())
    return next((each for each in told if _WEB.match(each)), next(filter(None, told), ""))


def _address(run: Node, artifact: Node) -> str:
    """Return where an artifact is: by its own address, or by its number in the run's list, on the bases it counts from."""
    index = artifact.member("index").value
    listed = run.member("artifacts").value
    if not artifact.member("uri").text() and isinstance(listed, list) and type(index) is int and 0 <= index < len(listed):
        artifact = Node(listed[index], f"{run.place}/artifacts/{index}").member("location")
    bases, told = run.member("originalUriBaseIds"), artifact.member("uri").text()
    for _ in range(_MAX_BASES):
        base = artifact.member("uriBaseId").text()
        if not base or _WEB.match(told):
            break
        artifact = bases.member(base)
        told = _joined(artifact.member("uri").text(), told)
    return told


def _joined(base: str, relative: str) -> str:
    try:
        return urljoin(base, relative)
    except ValueError:  # brackets that hold no address
        return ""


def _place(result: Node) -> str:
    places = [place for each in result.member("locations").entries() for place in each.member("logicalLocations").entries()]
    named = (place.member("fullyQualifiedName").text() or place.member("name").text() for place in places)
    return next((one_line(name, MAX_LOCATION) for name in named if name), "page")
