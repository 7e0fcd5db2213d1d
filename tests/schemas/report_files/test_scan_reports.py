"""Valid, unusual and damaged scanner reports, and the resulting postbacks."""

import contextlib
import copy
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.content_policy.rules import find
from schemas.findings.life_cycle import CheckedRules
from schemas.intake.fingerprint import by_fingerprint
from schemas.intake.scanner import MAX_ISSUES, PostbackForm
from schemas.report_files import lighthouse, nuclei, sarif, wapiti, zap
from schemas.report_files.document import MAX_REPORT_BYTES, UnreadableReport
from schemas.report_files.formats import FORMATS, read_report
from schemas.report_files.issues import ScanIssue
from schemas.report_files.pages import MAX_POSTBACK_BYTES, PreparedImport, clean_url, prepare, run_number
from tests.support.scan_reports import FILES, REPORTS, SHOP, imported, prepared, read_issues

ROOT: Final = Path(__file__).resolve().parents[3]
#: Each report as a JSON value.
VALUES: Final[dict[str, Any]] = {
    name: [json.loads(line) for line in path.read_text().splitlines()] if name == "nuclei" else json.loads(path.read_text())
    for name, path in FILES.items()
}
LOCAL_SHOP: Final = "http://shop.example/"


def summary(found: PreparedImport) -> list[tuple[str, str, str, str]]:
    """Return the page, severity, code and location of each issue."""
    return [
        (each.url, issue["severity"], issue["code"], issue["location"])
        for each in found.postbacks
        for issue in each.body["issues"]
    ]


def fingerprints(found: PreparedImport) -> set[str]:
    """Return the fingerprints that the service computes."""
    form: Any = PostbackForm()
    read = [form.read(each.body) for each in found.postbacks]
    return {each for postback in read for each in by_fingerprint(postback.page, postback.issues)}


# ── issues of a report ─────────────────────────────────────────────────────

EXPECTED: Final = {
    "zap": [
        # without the payload of the attack
        (f"{SHOP}search?q=", "high", "zap:40012", "parameter q"),
        (f"{SHOP}subscribe", "high", "zap:40012", "POST request, parameter email"),
        (SHOP, "medium", "zap:10038-1", "page"),
        (SHOP, "info", "zap:10096", "page"),
        # simple values identify products
        (f"{SHOP}product?id=12&colour=blue", "medium", "zap:10038-1", "page"),
        # without the session
        (f"{SHOP}cart?sid=", "low", "zap:10010", "parameter session"),
    ],
    "nuclei": [
        (f"{LOCAL_SHOP}.git/config", "medium", "nuclei:git-config", "page"),
        (f"{LOCAL_SHOP}.git/config", "low", "nuclei:git-config-version", "format"),
        (LOCAL_SHOP, "info", "nuclei:missing-headers", "permissions-policy"),
        (LOCAL_SHOP, "info", "nuclei:missing-headers", "referrer-policy"),
        # the payload ends with a number generated for each scan
        (f"{LOCAL_SHOP}search?q=", "high", "nuclei:reflected-markup", "parameter q"),
    ],
    "wapiti": [
        (LOCAL_SHOP, "low", "wapiti:content-security-policy-configuration", "CSP is not set"),
        (LOCAL_SHOP, "low", "wapiti:clickjacking-protection", "X-Frame-Options is not set"),
        (LOCAL_SHOP, "low", "wapiti:mime-type-confusion", "X-Content-Type-Options is not set"),
        (LOCAL_SHOP, "low", "wapiti:httponly-flag-cookie", "HttpOnly flag is not set in the cookie : session"),
        (LOCAL_SHOP, "low", "wapiti:secure-flag-cookie", "Secure flag is not set in the cookie : session"),
        (f"{LOCAL_SHOP}product", "medium", "wapiti:reflected-cross-site-scripting", "parameter colour"),
        (f"{LOCAL_SHOP}search", "medium", "wapiti:reflected-cross-site-scripting", "parameter q"),
        (f"{LOCAL_SHOP}subscribe", "medium", "wapiti:reflected-cross-site-scripting", "parameter email"),
    ],
    "sarif": [
        (SHOP, "medium", "shop-scan:SS001", "page"),
        (f"{SHOP}product?id=12", "low", "shop-scan:SS002", "main > img.hero"),
        # the rule's security-severity overrides the level
        (f"{SHOP}cart", "critical", "shop-scan:SS003", "page"),
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_becomes_issues_by_page(name: str) -> None:
    assert sorted(summary(imported(name))) == sorted(EXPECTED[name])


def test_accessibility_audits_of_lighthouse_become_issues_of_elements_and_others_of_the_page() -> None:
    found = summary(imported("lighthouse"))
    assert {url for url, *_ in found} == {LOCAL_SHOP}
    by_location = {(code, location): severity for _, severity, code, location in found}
    assert by_location["lighthouse:image-alt", "body > img.hero"] == "critical"
    assert by_location["lighthouse:color-contrast", "body > p"] == "high"
    # a score of 0, and one of 0.84
    assert by_location["lighthouse:meta-description", "page"] == "medium"
    assert by_location["lighthouse:total-blocking-time", "page"] == "low"
    codes = {code for code, _ in by_location}
    # passed, not applicable, and duplicates of another audit
    assert codes.isdisjoint({"lighthouse:is-on-https", "lighthouse:video-caption", "lighthouse:cache-insight"})


@pytest.mark.parametrize(
    ("name", "canaries"),
    [
        ("zap", ["scrIpt", "8c1f0b6e", "9f8e7d6c", "1700000000"]),
        ("nuclei", ["8c1f0b6e", "Bearer", "203.0.113.7", "HTTP/1.1", "9967"]),
        ("wapiti", ["ScRiPt", "HTTP/1.1", "curl"]),
        ("lighthouse", ["<p style", "snippet"]),
    ],
)
def test_requests_and_responses_of_a_scanner_are_not_copied(name: str, canaries: list[str]) -> None:
    whole = FILES[name].read_text()
    content = b"".join(each.content for each in imported(name).postbacks).decode()
    assert [each for each in canaries if each not in whole] == []
    assert [each for each in canaries if each in content] == []


def test_issues_without_a_page_are_reported_as_skipped() -> None:
    assert imported("nuclei").skipped == ("1 issue without a valid http or https URL",)
    files = prepared(read_issues((REPORTS / "files.sarif").read_bytes(), "sarif"), 7)
    assert files.postbacks == ()
    assert "2 issues without" in files.skipped[0]
    # Nuclei's own SARIF has no URLs.
    without_urls = prepared(read_issues((REPORTS / "nuclei.sarif").read_bytes(), "sarif"), 7)
    assert (without_urls.postbacks, without_urls.skipped[0].partition(" ")[0]) == ((), "5")


def test_a_rule_is_found_by_its_id_even_if_its_index_is_wrong() -> None:
    value = json.loads((REPORTS / "nuclei.sarif").read_text())
    wrong = [each for each in value["runs"][0]["results"] if each.get("ruleIndex") == 2]
    assert {each["ruleId"] for each in wrong} == {"git-config"}
    titles = {each.code: each.title for each in read_issues(json.dumps(value).encode(), "sarif")}
    assert titles["nuclei:git-config"].startswith("Git configuration in the open")


@pytest.mark.parametrize(
    ("kind", "at", "url"),
    [
        ("ssl", "shop.example:443", "https://shop.example:443/"),
        ("dns", "shop.example", "https://shop.example/"),
        ("ssl", "shop example", None),
        ("tcp", "shop.example:6379", None),
    ],
)
def test_a_result_of_nuclei_about_a_certificate_or_dns_name_is_an_issue_of_the_website(
    kind: str, at: str, url: str | None
) -> None:
    match = {"template-id": "a", "type": kind, "matched-at": at}
    [issue] = read_issues(json.dumps([match]).encode(), "nuclei")
    assert clean_url(issue.url) == url


@pytest.mark.parametrize(
    ("match", "url"),
    [
        ({"matched-at": f"{SHOP}a", "url": f"{SHOP}b", "host": "shop.example"}, f"{SHOP}a"),
        ({"url": f"{SHOP}b", "host": "shop.example"}, f"{SHOP}b"),
        ({"host": SHOP}, SHOP),
    ],
)
def test_the_url_of_a_nuclei_issue_is_the_matched_one_or_else_the_requested_one(match: dict[str, str], url: str) -> None:
    [issue] = read_issues(json.dumps({"template-id": "a", **match}).encode(), "nuclei")
    assert issue.url == url


def test_wapiti_has_three_sections_and_issues_without_a_page() -> None:
    value = {"infos": {"target": SHOP}, "vulnerabilities": {"One": [{"path": "/a"}]}, "anomalies": {"Two": [{"path": "b"}]}}
    value["additionals"] = {"Three": [{"path": "http://["}, {"path": "/c"}]}
    found = imported("wapiti", json.dumps(value).encode())
    assert [(url, code) for url, _, code, _ in summary(found)] == [
        (f"{SHOP}a", "wapiti:one"),
        (f"{SHOP}b", "wapiti:two"),
        (f"{SHOP}c", "wapiti:three"),
    ]
    assert found.skipped == ("1 issue without a valid http or https URL",)


def test_a_page_whose_host_has_an_underscore_is_imported() -> None:
    match = {"template-id": "a", "matched-at": "https://my_shop.example/a_b", "info": {"name": "x"}}
    found = imported("nuclei", json.dumps(match).encode())
    assert [url for url, *_ in summary(found)] == ["https://my_shop.example/a_b"]
    assert found.skipped == ()


def test_categories_of_wapiti_in_another_script_are_issues_of_their_own() -> None:
    value = {"infos": {"target": SHOP}, "vulnerabilities": {"注入": [{"path": "/a"}], "跨站脚本": [{"path": "/a"}]}}
    found = imported("wapiti", json.dumps(value).encode())
    assert [code for _, _, code, _ in summary(found)] == ["wapiti:注入", "wapiti:跨站脚本"]


#: Columns: Wapiti's message about an issue without a parameter; the location.
MESSAGE_LOCATIONS: Final = [
    ("X-Frame-Options is not set", "X-Frame-Options is not set"),
    # a quotation may differ in the next scan
    ("The page answers with: 'w3x9q'", "The page answers with"),
    ("Backup file https://shop.example/a.bak found", "Backup file"),
    ("Answered after 15023 ms", "Answered after"),
    # a technology, without its version
    ('{"name": "nginx", "versions": ["1.25.3"], "categories": ["Web servers"]}', "nginx"),
    ("", "page"),
    ("[" * 100_000, "page"),
]


@pytest.mark.parametrize(("info", "location"), MESSAGE_LOCATIONS, ids=range(len(MESSAGE_LOCATIONS)))
def test_the_message_of_wapiti_is_the_location_up_to_a_quotation(info: str, location: str) -> None:
    value = copy.deepcopy(VALUES["wapiti"])
    csp(value)["info"] = info
    assert (LOCAL_SHOP, "low", "wapiti:content-security-policy-configuration", location) in summary(
        imported("wapiti", json.dumps(value).encode())
    )


#: Changes to a SARIF result that make it not an issue.
IGNORED: Final[list[dict[str, Any]]] = [
    {"kind": "pass"},
    {"kind": "notApplicable"},
    {"baselineState": "absent"},
    {"suppressions": [{"kind": "inSource"}]},
    {"suppressions": [{"kind": "external", "status": "accepted"}]},
]
#: Changes that leave it an issue.
IMPORTED: Final[list[dict[str, Any]]] = [
    {"kind": "open"},
    {"baselineState": "unchanged"},
    {"suppressions": []},
    {"suppressions": [{"kind": "external", "status": "rejected"}]},
    {"locations": [], "webRequest": {"target": SHOP}},
]


@pytest.mark.parametrize("change", [*IGNORED, *IMPORTED], ids=str)
def test_a_result_that_passed_or_was_suppressed_is_ignored(change: dict[str, Any]) -> None:
    value = copy.deepcopy(VALUES["sarif"])
    value["runs"][0]["results"][0].update(change)
    found = summary(imported("sarif", json.dumps(value).encode()))
    assert ((SHOP, "medium", "shop-scan:SS001", "page") in found) == (change in IMPORTED)


def test_a_rule_may_be_defined_by_an_extension_of_the_tool() -> None:
    """CodeQL groups rules into packs; an index refers to the tool's own list."""
    rule = {"id": "js/xss", "name": "Markup from outside", "properties": {"security-severity": "9.1"}}
    at = [{"physicalLocation": {"artifactLocation": {"uri": SHOP}}}]
    result = {"ruleId": "js/xss", "message": {"text": "Seen."}, "locations": at}
    run = {"tool": {"driver": {"name": "Any"}, "extensions": [{"rules": [rule]}]}, "results": [result]}
    [found] = read_issues(json.dumps({"runs": [run]}).encode(), "sarif")
    assert (found.title, found.severity) == ("Markup from outside", "critical")


def test_a_sub_rule_after_a_slash_has_the_title_of_the_rule() -> None:
    run = {"tool": {"driver": {"rules": [{"id": "CA2101", "name": "Whole"}]}}, "results": [{"ruleId": "CA2101/part"}]}
    [found] = read_issues(json.dumps({"runs": [run]}).encode(), "sarif")
    assert (found.title, found.code) == ("Whole", "sarif:CA2101/part")


#: Columns: a SARIF message; its arguments; the description.
MESSAGES: Final = [
    ("The {0} has no {1}, {2} nor {x}.", ["form", "label"], "The form has no label, {2} nor {x}."),
    # personal data in a sentence
    (f"{SHOP}a?token=8c1f0b6e#/b answers 500.", [], f"{SHOP}a answers 500."),
    ("(https://ann:hunter22@shop.example/)", [], f"({SHOP})"),
    ("{0} is shown.", ["ann.b+c@mail.example"], "@mail.example is shown."),
    ("Use @media, a@b or 1 @ 2.", [], "Use @media, a@b or 1 @ 2."),
]


@pytest.mark.parametrize(("text", "arguments", "description"), MESSAGES, ids=range(len(MESSAGES)))
def test_a_message_of_sarif_gets_its_arguments_and_loses_personal_data(
    text: str, arguments: list[str], description: str
) -> None:
    result = {"ruleId": "a", "message": {"text": text, "arguments": arguments}}
    [found] = read_issues(json.dumps({"runs": [{"results": [result]}]}).encode(), "sarif")
    assert found.description == description


def test_invalid_characters_are_removed_from_names_of_fields() -> None:
    value = copy.deepcopy(VALUES["lighthouse"])
    value["categories"] = {f"{name}\0\ud800": category for name, category in value["categories"].items()}
    [*found] = read_issues(json.dumps(value).encode(), "lighthouse")
    assert found == [*read_issues(json.dumps(VALUES["lighthouse"]).encode(), "lighthouse")]


@pytest.mark.parametrize("mode", ["informative", "manual", "notApplicable", "not-applicable", "error"])
def test_an_audit_without_a_result_is_not_an_issue_whatever_its_score(mode: str) -> None:
    value = copy.deepcopy(VALUES["lighthouse"])
    assert "lighthouse:image-alt" in {code for _, _, code, _ in summary(imported("lighthouse"))}
    value["audits"]["image-alt"].update(scoreDisplayMode=mode)
    assert "lighthouse:image-alt" not in {
        code for _, _, code, _ in summary(imported("lighthouse", json.dumps(value).encode()))
    }


def test_markup_of_zap_becomes_text() -> None:
    value = copy.deepcopy(VALUES["zap"])
    xss(value).update(desc="<p>One &amp; two.</p><p>Three.</p>", solution="<p>Escape it.</p>")
    found = {each.code: each.description for each in read_issues(json.dumps(value).encode(), "zap")}
    assert found["zap:40012"].split() == ["One", "&", "two.", "Three.", "Escape", "it."]


def test_a_placeholder_number_is_not_a_cwe() -> None:
    value = copy.deepcopy(VALUES["zap"])
    xss(value).update(cweid="-1", wascid="8")
    evidence = {each.code: each.evidence for each in read_issues(json.dumps(value).encode(), "zap")}["zap:40012"]
    assert ("cwe" in evidence, evidence["wasc"]) == (False, "WASC-8")


def test_an_alert_without_instances_is_an_issue_of_the_site() -> None:
    value = copy.deepcopy(VALUES["zap"])
    del xss(value)["instances"]
    assert (SHOP, "high", "zap:40012", "page") in summary(imported("zap", json.dumps(value).encode()))


#: The severities of each format, in the order of the document.
LISTED: Final[dict[str, list[tuple[str, str]]]] = {
    "ZAP": [(f"riskcode {value}", severity) for value, severity in zap.SEVERITIES.items()],
    "Lighthouse": [
        *((f"impact {value}", severity) for value, severity in lighthouse.SEVERITIES.items()),
        *zip(("score below 0.5", "score from 0.5 to 0.9"), (each for _, each in lighthouse.SCORES), strict=True),
    ],
    "Nuclei": [*nuclei.SEVERITIES.items()],
    "Wapiti": [(f"level {value}", severity) for value, severity in wapiti.SEVERITIES.items()],
    "SARIF": [
        *(
            (f"security-severity {'above 0' if least < 1 else f'from {least}'}", severity)
            for least, severity in sarif.SCORES
        ),
        *((f"level {value}", severity) for value, severity in sarif.SEVERITIES.items()),
    ],
}


@pytest.mark.parametrize("title", LISTED)
def test_every_severity_of_a_format_is_mapped_to_one_of_the_five_severities(title: str) -> None:
    assert {severity for _, severity in LISTED[title]} <= {"critical", "high", "medium", "low", "info"}


def test_the_document_shows_the_table_of_severities() -> None:
    assert [*LISTED] == [each.title for each in FORMATS.values()]
    rows = [f"| {title} | {value} | {severity} |" for title, listed in LISTED.items() for value, severity in listed]
    table = "\n".join(["| report | value | the ticket's severity |", "|---|---|---|", *rows])
    assert table in (ROOT / "docs" / "scanners.md").read_text()


#: A function that changes the severity in a report, and our severity for each of its values.
SEVERITIES: Final = [
    (
        "zap",
        lambda value, text: value["site"][0]["alerts"][0].update(riskcode=text),
        {"3": "high", "0": "info", "9": "info"},
    ),
    ("zap", lambda value, text: value["site"][0]["alerts"][0].update(riskcode=int(text)), {"2": "medium", "1": "low"}),
    (
        "nuclei",
        lambda value, text: value[0]["info"].update(severity=text),
        {"critical": "critical", "High": "high", "unknown": "info"},
    ),
    (
        "wapiti",
        lambda value, text: csp(value).update(level=text),
        {4: "critical", 3: "high", 2: "medium", 1: "low", 0: "info"},
    ),
    ("sarif", lambda value, text: value["runs"][0]["results"][0].update(level=text), {"error": "high", "none": "info"}),
    (
        "sarif",
        lambda value, text: value["runs"][0]["results"][0].update(properties={"security-severity": text}),
        # 0 and non-numbers: the level of the rule applies
        {"9.0": "critical", "8.9": "high", "4": "medium", 0.1: "low", "0.0": "medium", "high": "medium"},
    ),
]


def xss(value: Any) -> dict[str, Any]:
    alert: dict[str, Any] = value["site"][0]["alerts"][0]
    return alert


def csp(value: Any) -> dict[str, Any]:
    entry: dict[str, Any] = value["vulnerabilities"]["Content Security Policy Configuration"][0]
    return entry


@pytest.mark.parametrize(("name", "change", "expected"), SEVERITIES)
def test_severities_follow_the_table(name: str, change: Callable[[Any, Any], None], expected: dict[Any, str]) -> None:
    codes = {"zap": "zap:40012", "nuclei": "nuclei:git-config", "sarif": "shop-scan:SS001"}
    for text, becomes in expected.items():
        value = copy.deepcopy(VALUES[name])
        change(value, text)
        found = summary(imported(name, json.dumps(value).encode()))
        code = codes.get(name, "wapiti:content-security-policy-configuration")
        assert {severity for _, severity, each, _ in found if each == code} == {becomes}


#: Columns: a URL of a report; the attacked parameter; the clean URL.
URLS: Final = [
    ("https://shop.example", "", SHOP),
    ("https://admin:hunter22@shop.example/a", "", f"{SHOP}a"),
    ("https://SHOP.example:8443/a#top", "", "https://shop.example:8443/a"),
    ("http://[::1]:8080/a", "", "http://[::1]:8080/a"),
    (f"{SHOP}?page=cart&id=7", "", f"{SHOP}?page=cart&id=7"),
    (f"{SHOP}?page=cart", "page", f"{SHOP}?page="),
    (f"{SHOP}?q=%3Cscript%3E&token=abc&email=me", "", f"{SHOP}?q=&token=&email="),
    (f"{SHOP}?%3Cscript%3E=1&filter%5Bsize%5D=1", "", f"{SHOP}?filter%5Bsize%5D=1"),
    (f"{SHOP}?<b>=1&a=1", "", f"{SHOP}?a=1"),
    (f"{SHOP}#!/cart", "", f"{SHOP}#!/cart"),
    (f"{SHOP}#access_token=8c1f0b6e", "", SHOP),
    # A query may be just a token, and words or numbers may be personal.
    (f"{SHOP}?8c1f0b6e4d2a4f7c9b3e", "", SHOP),
    (f"{SHOP}?otp=123456&zip=12345&shipping=fast", "", f"{SHOP}?otp=&zip=&shipping=fast"),
    # sessions in paths
    (f"{SHOP}cart;jsessionid=8C1F0B6E4D2A?id=1", "", f"{SHOP}cart?id=1"),
    (f"{SHOP}(S(abcdefghijklmnopqrstuvwx))/cart;token=a/b", "", f"{SHOP}cart/b"),
    # email addresses, also escaped; a user name without a domain is kept
    (f"{SHOP}u/john.d@mail.example/", "", f"{SHOP}u/@mail.example/"),
    (f"{SHOP}u/john%40mail.example/@john", "", f"{SHOP}u/%40mail.example/@john"),
    ("shop.example:443", "", None),
    ("ftp://shop.example/", "", None),
    ("file:///srv/shop/app.py", "", None),
    ("https://[::1/", "", None),
    ("https://shop.example:99999/", "", None),
    ("https:///a", "", None),
    (f"{SHOP}\x1b[31m", "", None),
    ("", "", None),
    (f"{SHOP}{'a' * 3000}", "", None),
]


@pytest.mark.parametrize(("url", "parameter", "expected"), URLS)
def test_secrets_and_personal_data_are_removed_from_a_url(url: str, parameter: str, expected: str | None) -> None:
    assert clean_url(url, parameter) == expected


# ── stable fingerprints ────────────────────────────────────────────────────


def test_another_scan_with_the_same_issues_has_the_same_fingerprints() -> None:
    """The IDs, times, payloads and requests differ, but the issues are the same."""
    changes = {
        "zap": [
            ("%3CscrIpt%3Ealert%281%29", "%3Cimg+src%3Dx%3E"),
            ("9f8e7d6c5b4a", "0a1b2c3d4e5f"),
            ('"id": "3"', '"id": "31"'),
        ],
        "nuclei": [("2026-11-22T04", "2026-11-23T05"), ("8c1f0b6e", "99999999"), ("99678330", "99671234")],
        "wapiti": [("Sun, 22 Nov 2026", "Mon, 23 Nov 2026"), ("Firefox", "Chrome")],
        "lighthouse": [("2026-11-22T03", "2026-11-23T04"), ("1-3-IMG", "2-9-IMG")],
        "sarif": [('"startLine": 4', '"startLine": 40'), ('"1.0"', '"1.1"')],
    }
    for name, path in FILES.items():
        before, after = path.read_text(), path.read_text()
        for old, new in changes[name]:
            after = after.replace(old, new)
        assert after != before, name
        assert fingerprints(imported(name, after.encode())) == fingerprints(imported(name)), name


def test_the_same_file_is_the_same_run_and_the_same_keys() -> None:
    content = FILES["zap"].read_bytes()
    assert run_number(content) == run_number(content) != run_number(content + b" ")
    assert len(str(run_number(content))) == 12
    assert [each.key for each in imported("zap").postbacks] == [each.key for each in imported("zap").postbacks]
    other_run = prepared(read_issues(content, "zap"), 8)
    assert {each.key for each in other_run.postbacks}.isdisjoint(each.key for each in imported("zap").postbacks)


def test_another_report_with_the_same_issues_in_the_same_run_is_not_a_repeat() -> None:
    """Otherwise its findings would not count as seen again."""
    content = FILES["zap"].read_bytes()
    first, second = (prepared(read_issues(each, "zap"), 8, each) for each in (content, content + b"\n"))
    assert [each.body for each in first.postbacks] == [each.body for each in second.postbacks]
    assert {each.key for each in first.postbacks}.isdisjoint(each.key for each in second.postbacks)


def issue(code: str, location: str, description: str = "") -> ScanIssue:
    return ScanIssue(SHOP, code, "An issue", "low", description, location)


@pytest.mark.parametrize("severities", [("low", "high"), ("high", "low")])
def test_an_issue_that_is_reported_twice_has_the_higher_severity(severities: tuple[str, str]) -> None:
    found = [ScanIssue(SHOP, "rule", each, each, location="page") for each in severities]
    [postback] = prepared(found, 7).postbacks
    assert [(each["title"], each["severity"]) for each in postback.body["issues"]] == [(severities[0], "high")]


def test_a_page_with_more_issues_than_fit_into_a_postback_loses_none() -> None:
    issues = [issue(f"rule-{number}", "page") for number in range(2 * MAX_ISSUES + 200)]
    found = prepared(issues, 7)
    assert [len(each.body["issues"]) for each in found.postbacks] == [MAX_ISSUES, MAX_ISSUES, 200]
    assert (found.pages, found.issues, found.skipped, len(fingerprints(found))) == (1, len(issues), (), len(issues))


def test_issues_that_differ_only_in_order_share_a_postback() -> None:
    """The service numbers issues with similar locations, such as generated names, within a postback."""
    others = [issue(f"rule-{number}", "page") for number in range(MAX_ISSUES - 5)]
    similar = [issue("contrast", f"#ember{number}") for number in range(1000, 1010)]
    found = prepared([similar[0], *others, *similar[1:]], 7)
    assert len(fingerprints(found)) == found.issues == len(others) + len(similar)
    too_many = prepared([issue("contrast", f"#ember{number}") for number in range(1000, 1000 + MAX_ISSUES + 3)], 7)
    assert (too_many.issues, len(fingerprints(too_many))) == (MAX_ISSUES, MAX_ISSUES)
    assert too_many.skipped[0].startswith("3 issues that differ from others on their page only in order")


def test_the_size_of_a_postback_is_limited() -> None:
    found = prepared([issue(f"rule-{number}", "page", f"{number}" + "é" * 1900) for number in range(400)], 7)
    assert len(found.postbacks) > 1
    assert max(len(each.content) for each in found.postbacks) < MAX_POSTBACK_BYTES + 1000


def test_forbidden_content_is_removed_and_the_issue_is_imported() -> None:
    leaky = issue("leak", "page", "Seen: Authorization: Bearer 8c1f0b6e4d2a4f7c9b3e5a7d1c0f2e4b")
    [postback] = prepared([leaky, issue("other", "page", "Harmless.")], 7).postbacks
    assert [each.get("description") for each in postback.body["issues"]] == [None, "Harmless."]
    assert find(postback.body, frozenset()) == ()


# ── damaged reports ────────────────────────────────────────────────────────

#: Columns: a report; the selected format; a part of the message.
UNREADABLE: Final = [
    (b"", "zap", "The report is empty; check whether the scan succeeded."),
    (b" \n", "sarif", "The report is empty"),
    (b"{", "zap", "truncated at line 1, column 2"),
    (FILES["zap"].read_bytes()[:700], "zap", "truncated at line"),
    (b'{"site": [}', "zap", "not JSON at line 1, column 11"),
    (b"<html></html>", "zap", "HTML or XML; configure the scanner to write JSON"),
    (b"\x1f\x8b\x08", "zap", "not valid utf-8 at byte 2"),
    # Entities, which would be expanded without a use.
    (b'<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a>&c;</a>', "zap", "HTML or XML"),
    ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'.encode("utf-16"), "zap", "HTML or XML"),
    (b'{"site": "\xff"}', "zap", "not valid utf-8 at byte 11"),
    (b"[" * 200_000, "zap", "nested too deeply"),
    (b'{"site": ' + b"9" * 5000 + b"}", "zap", "a number with thousands of digits"),
    (b"{}\n{}", "zap", "not JSON at line 2, column 1: Extra data"),
    (b'{"template-id": "a"}\n{"template-id": ', "nuclei", "truncated at line 2, column"),
    (b'{"template-id": "a"}\n\n{]', "nuclei", "not JSON at line 3, column 2"),
    (b"null", "lighthouse", "not a Lighthouse report, nor a report of another supported format"),
    (b"[]", "zap", "not a ZAP report"),
    (FILES["sarif"].read_bytes(), "zap", "is a SARIF report; use --format sarif"),
    (FILES["nuclei"].read_bytes().splitlines()[0], "wapiti", "is a Nuclei report; use --format nuclei"),
    (FILES["zap"].read_bytes(), "nuclei", "is a ZAP report; use --format zap"),
    (b'{"@version": "2", "site": [{"alerts": 1}]}', "zap", "/site/0/alerts is not an array."),
    (b'{"@version": "2", "site": [{"alerts": [{"instances": [7]}]}]}', "zap", "/alerts/0/instances/0 is not an object."),
    (b'[{"template-id": ["a"]}]', "nuclei", "/0/template-id is not a string."),
    (b'{"runs": [{"results": [{"message": "no"}]}]}', "sarif", "/runs/0/results/0/message is not an object."),
    (b'{"lighthouseVersion": "12", "audits": {"a/b": 1}}', "lighthouse", "/audits/a~1b is not an object."),
    (
        b'{"lighthouseVersion": "12", "audits": {}, "runtimeError": {"code": "NO_FCP"}}',
        "lighthouse",
        "load the page (NO_FCP)",
    ),
    # failed scans
    (
        b'{"lighthouseVersion": "12", "audits": {"a": {"scoreDisplayMode": "error"}, "b": {"scoreDisplayMode": "manual"}}}',
        "lighthouse",
        "Every audit of Lighthouse ended in an error",
    ),
    (
        b'{"runs": [{"invocations": [{"executionSuccessful": true}, {"executionSuccessful": false}], "results": null}]}',
        "sarif",
        "The scan failed according to /runs/0/invocations/1",
    ),
]


@pytest.mark.parametrize(("content", "name", "message"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_damaged_report_is_refused_in_one_line_with_the_position(content: bytes, name: str, message: str) -> None:
    with pytest.raises(UnreadableReport) as refused:
        read_issues(content, name)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def sarif_of(results: list[dict[str, Any]], **rule: Any) -> bytes:
    """Return a SARIF report whose results, each on a different page, have one rule."""
    for number, result in enumerate(results):
        uri = {"uri": f"https://shop.example/{number}"}
        result |= {"ruleId": "r", "locations": [{"physicalLocation": {"artifactLocation": uri}}]}
    return json.dumps({"runs": [{"tool": {"driver": {"rules": [{"id": "r", **rule}]}}, "results": results}]}).encode()


#: Small reports that expand, or parts of which are read again for each of many results: the format; the report.
LARGE_INSIDE: Final = {
    "a message of placeholders": ("sarif", sarif_of([{"message": {"text": "{0}" * 20_000, "arguments": ["x" * 20_000]}}])),
    "a message of a rule": (
        "sarif",
        sarif_of([{"message": {"id": "m"}} for _ in range(100)], messageStrings={"m": {"text": "word@ " * 100_000}}),
    ),
}


@pytest.mark.parametrize("case", LARGE_INSIDE)
def test_reports_that_expand_to_huge_content_take_bounded_time_and_memory(case: str) -> None:
    name, content = LARGE_INSIDE[case]
    began = time.process_time()
    issues = [*read_issues(content, name)]
    assert time.process_time() - began < 3.0
    assert issues
    assert max(len(str(each)) for each in issues) < 20_000


#: Small reports whose issues together would need too much memory: the format; the report.
_LONG: Final = "x" * 4000
LARGE_TOGETHER: Final = {
    "instances": ("zap", {"@": "", "site": [{"alerts": [{"name": _LONG, "alertRef": _LONG, "instances": [{}] * 50_000}]}]}),
    "results": (
        "sarif",
        {"runs": [{"tool": {"driver": {"rules": [{"id": _LONG}]}}, "results": [{"ruleIndex": 0}] * 50_000}]},
    ),
    "a category": ("wapiti", {"infos": {}, "vulnerabilities": {"x" * 1_000_000: [{}] * 50_000}}),
}


@pytest.mark.parametrize("case", LARGE_TOGETHER)
def test_a_small_report_of_many_issues_that_repeat_long_texts_is_refused(case: str) -> None:
    name, report = LARGE_TOGETHER[case]
    tracemalloc.start()
    with pytest.raises(UnreadableReport, match="need too much memory"):
        read_report(json.dumps(report).encode(), name)
    assert tracemalloc.get_traced_memory()[1] < 350_000_000
    tracemalloc.stop()


def test_a_shortened_text_ends_with_a_whole_word() -> None:
    # Without its query the URL is short enough, and the text after it is included.
    url = "https://shop.example/?q=".ljust(3981, "x")
    [found] = read_issues(sarif_of([{"message": {"text": f"{url} ada.lovelace@mail.example"}}]), "sarif")
    assert found.description == "https://shop.example/"


def test_a_report_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(UnreadableReport, match="larger than 64 MiB"):
        read_issues(b" " * (MAX_REPORT_BYTES + 1), "zap")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_reports_with_windows_encodings_and_line_ends_are_read(encoding: str) -> None:
    for name, path in FILES.items():
        assert summary(imported(name, path.read_text().replace("\n", "\r\n").encode(encoding))) == summary(imported(name))


def test_an_array_of_nuclei_is_read_like_its_json_lines() -> None:
    assert summary(imported("nuclei", json.dumps(VALUES["nuclei"]).encode())) == summary(imported("nuclei"))


NOTHING_FOUND: Final = [
    ("zap", b'{"@version": "2.16.1", "site": []}'),
    ("zap", b'{"@version": "2.16.1", "site": {"alerts": []}}'),
    ("lighthouse", b'{"lighthouseVersion": "12", "audits": {}, "categories": {}}'),
    # nuclei writes an empty file
    ("nuclei", b""),
    ("nuclei", b"[]"),
    ("wapiti", b'{"vulnerabilities": {"SQL Injection": []}, "infos": {}}'),
    ("sarif", b'{"version": "2.1.0", "runs": [{"results": null}]}'),
]


@pytest.mark.parametrize(("name", "content"), NOTHING_FOUND)
def test_a_report_without_issues_is_valid(name: str, content: bytes) -> None:
    assert imported(name, content).postbacks == ()


def a_clean_lighthouse_report(**modes: str) -> bytes:
    value = copy.deepcopy(VALUES["lighthouse"])
    for name, audit in value["audits"].items():
        audit |= {"score": 1, "scoreDisplayMode": modes.get(name.replace("-", "_"), "binary")}
    return json.dumps(value).encode()


def test_a_page_without_lighthouse_issues_is_posted_without_issues() -> None:
    found = imported("lighthouse", a_clean_lighthouse_report())
    [postback] = found.postbacks
    assert postback.body == {
        "scanRunId": 7,
        "status": "completed",
        "page": {"url": "http://shop.example/", "pageType": "home", "rules": ["lighthouse:*"]},
        "issues": [],
    }
    assert (found.pages, found.issues, found.skipped) == (1, 0, ())


def test_an_audit_of_lighthouse_that_failed_has_not_checked_the_page() -> None:
    """It is unknown what the audit would have found, so its findings do not count as missing."""
    [postback] = imported("lighthouse", a_clean_lighthouse_report(image_alt="error")).postbacks
    checked = CheckedRules(postback.body["page"]["rules"])
    assert "lighthouse:label" in checked
    assert "lighthouse:image-alt" not in checked


def test_a_tool_of_a_report_of_several_has_not_checked_the_pages_of_another() -> None:
    def run(tool: str, path: str) -> dict[str, Any]:
        place = {"physicalLocation": {"artifactLocation": {"uri": f"{SHOP}{path}"}}}
        return {"tool": {"driver": {"name": tool}}, "results": [{"ruleId": "r", "locations": [place]}]}

    content = json.dumps({"version": "2.1.0", "runs": [run("One", "a"), run("Two", "b"), run("Two", "c")]}).encode()
    report = read_report(content, "sarif")
    found = prepare(report.issues, 7, content, replace(report.visited, urls=(f"{SHOP}b", f"{SHOP}d")))
    # The caller lists the second and the last page as visited.
    assert [(each.url.removeprefix(SHOP), each.body["page"]["rules"]) for each in found.postbacks] == [
        ("a", ["one:*"]),
        ("b", ["one:*", "two:*"]),
        ("c", ["two:*"]),
        ("d", ["one:*", "two:*"]),
    ]


def test_a_visited_page_with_issues_has_no_second_postback() -> None:
    [postback] = imported("lighthouse").postbacks
    assert len(postback.body["issues"]) == imported("lighthouse").issues > 0


#: Unexpected values.
UNEXPECTED: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(["\x00", "\ud800", "https://[", f"https://u:p@shop.example/?t={'a1' * 20}", "9" * 300, "é" * 9000]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container in a value with each of its keys."""
    found, waiting = [], [value]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*FILES]), st.lists(st.tuples(st.integers(0, 10**6), UNEXPECTED), min_size=1, max_size=4))
@example("sarif", [(0, {"driver": []})])
def test_a_mangled_report_is_refused_or_becomes_postbacks_that_the_service_accepts(
    name: str, changes: list[tuple[int, Any]]
) -> None:
    value = copy.deepcopy(VALUES[name])
    for number, unexpected in changes:
        at = places(value)
        if at:
            node, key = at[number % len(at)]
            node[key] = unexpected
    form: Any = PostbackForm()
    with contextlib.suppress(UnreadableReport):
        for postback in imported(name, json.dumps(value).encode()).postbacks:
            form.read(json.loads(postback.content))
            assert find(postback.body, frozenset()) == ()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*FILES]), st.integers(0, 10**6), st.binary(max_size=8))
def test_a_report_with_changed_bytes_is_imported_or_refused(name: str, at: int, other: bytes) -> None:
    content = FILES[name].read_bytes()
    at %= len(content)
    with contextlib.suppress(UnreadableReport):
        imported(name, content[:at] + other + content[at + len(other) + 1 :])
