"""Reports of scanners, whole, strange and damaged, as the postbacks that are made of them."""

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bin.scan_import.document import MAX_REPORT_BYTES, UnreadableReport
from bin.scan_import.formats import FORMATS, flaws_in, severity_table
from bin.scan_import.issues import Flaw
from bin.scan_import.pages import MAX_POSTBACK_BYTES, Import, page_address, prepare, run_number
from schemas.content_policy.rules import find
from schemas.intake.fingerprint import by_fingerprint
from schemas.intake.scanner import MAX_ISSUES, PostbackForm
from tests.support.scan_reports import FILES, REPORTS, SHOP, imported

ROOT: Final = Path(__file__).resolve().parents[3]
#: What each report says, as JSON.
VALUES: Final[dict[str, Any]] = {
    name: [json.loads(line) for line in path.read_text().splitlines()] if name == "nuclei" else json.loads(path.read_text())
    for name, path in FILES.items()
}
LOCAL_SHOP: Final = "http://shop.example/"


def told(found: Import) -> list[tuple[str, str, str, str]]:
    """Say of each issue: page, severity, code, location."""
    return [
        (each.url, issue["severity"], issue["code"], issue["location"])
        for each in found.postbacks
        for issue in each.body["issues"]
    ]


def marks(found: Import) -> set[str]:
    """Return the fingerprints that the service computes."""
    form: Any = PostbackForm()
    read = [form.read(each.body) for each in found.postbacks]
    return {mark for postback in read for mark in by_fingerprint(postback.page, postback.issues)}


# ── what becomes of a report ───────────────────────────────────────────────

BECOMES: Final = {
    "zap": [
        # the payload of the attack is not a page's address
        (f"{SHOP}search?q=", "high", "zap:40012", "parameter q"),
        (f"{SHOP}subscribe", "high", "zap:40012", "POST request, parameter email"),
        (SHOP, "medium", "zap:10038-1", "page"),
        (SHOP, "info", "zap:10096", "page"),
        # plain values tell products apart
        (f"{SHOP}product?id=12&colour=blue", "medium", "zap:10038-1", "page"),
        # a session does not
        (f"{SHOP}cart?sid=", "low", "zap:10010", "parameter session"),
    ],
    "nuclei": [
        (f"{LOCAL_SHOP}.git/config", "medium", "nuclei:git-config", "page"),
        (f"{LOCAL_SHOP}.git/config", "low", "nuclei:git-config-version", "format"),
        (LOCAL_SHOP, "info", "nuclei:missing-headers", "permissions-policy"),
        (LOCAL_SHOP, "info", "nuclei:missing-headers", "referrer-policy"),
        # the payload ends in a number of its own in each scan
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
        # an address that counts from a base
        (f"{SHOP}product?id=12", "low", "shop-scan:SS002", "main > img.hero"),
        # by its number in the list of artifacts; the rule's security-severity counts for more than the level
        (f"{SHOP}cart", "critical", "shop-scan:SS003", "page"),
    ],
}


@pytest.mark.parametrize("name", BECOMES)
def test_a_report_becomes_issues_by_page(name: str) -> None:
    assert sorted(told(imported(name))) == sorted(BECOMES[name])


def test_lighthouse_tells_elements_of_accessibility_and_the_page_of_anything_else() -> None:
    found = told(imported("lighthouse"))
    assert {url for url, *_ in found} == {LOCAL_SHOP}
    by_place = {(code, place): severity for _, severity, code, place in found}
    assert by_place["lighthouse:image-alt", "body > img.hero"] == "critical"
    assert by_place["lighthouse:color-contrast", "body > p"] == "high"
    # a score of 0, and one of 0.84
    assert by_place["lighthouse:meta-description", "page"] == "medium"
    assert by_place["lighthouse:total-blocking-time", "page"] == "low"
    codes = {code for code, _ in by_place}
    # passed, not applicable, and shown by another audit
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
def test_what_a_scanner_sent_and_got_is_not_taken_over(name: str, canaries: list[str]) -> None:
    whole = FILES[name].read_text()
    content = b"".join(each.content for each in imported(name).postbacks).decode()
    assert [each for each in canaries if each not in whole] == []
    assert [each for each in canaries if each in content] == []


def test_what_has_no_page_is_told() -> None:
    assert imported("nuclei").left_out == (
        "1 without the http or https address of a page, the first by the rule nuclei:open-port",
    )
    files = prepare(flaws_in((REPORTS / "files.sarif").read_bytes(), "sarif"), 7)
    assert files.postbacks == ()
    assert "2 without" in files.left_out[0]
    # Nuclei's own SARIF has no addresses.
    lost = prepare(flaws_in((REPORTS / "nuclei.sarif").read_bytes(), "sarif"), 7)
    assert (lost.postbacks, lost.left_out[0].partition(" ")[0]) == ((), "5")


def test_a_rule_is_found_by_its_id_since_its_number_may_be_of_another() -> None:
    value = json.loads((REPORTS / "nuclei.sarif").read_text())
    wrong = [each for each in value["runs"][0]["results"] if each.get("ruleIndex") == 2]
    assert {each["ruleId"] for each in wrong} == {"git-config"}
    titles = {each.code: each.title for each in flaws_in(json.dumps(value).encode(), "sarif")}
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
def test_what_nuclei_tells_of_a_certificate_or_a_name_is_the_sites(kind: str, at: str, url: str | None) -> None:
    match = {"template-id": "a", "type": kind, "matched-at": at}
    [flaw] = flaws_in(json.dumps([match]).encode(), "nuclei")
    assert page_address(flaw.url) == url


@pytest.mark.parametrize(
    ("match", "url"),
    [
        ({"matched-at": f"{SHOP}a", "url": f"{SHOP}b", "host": "shop.example"}, f"{SHOP}a"),
        ({"url": f"{SHOP}b", "host": "shop.example"}, f"{SHOP}b"),
        ({"host": SHOP}, SHOP),
    ],
)
def test_nuclei_tells_where_it_matched_else_what_it_asked(match: dict[str, str], url: str) -> None:
    [flaw] = flaws_in(json.dumps({"template-id": "a", **match}).encode(), "nuclei")
    assert flaw.url == url


def test_wapiti_tells_in_three_sections_and_of_some_things_without_a_page() -> None:
    value = {"infos": {"target": SHOP}, "vulnerabilities": {"One": [{"path": "/a"}]}, "anomalies": {"Two": [{"path": "b"}]}}
    value["additionals"] = {"Three": [{"path": "http://["}, {"path": "/c"}]}
    found = imported("wapiti", json.dumps(value).encode())
    assert [(url, code) for url, _, code, _ in told(found)] == [
        (f"{SHOP}a", "wapiti:one"),
        (f"{SHOP}b", "wapiti:two"),
        (f"{SHOP}c", "wapiti:three"),
    ]
    assert found.left_out == ("1 without the http or https address of a page, the first by the rule wapiti:three",)


#: What Wapiti says of a flaw that is none of a parameter, and what of it is the place.
SAID: Final = [
    ("X-Frame-Options is not set", "X-Frame-Options is not set"),
    # what it quotes may be another text in the next scan
    ("The page answers with: 'w3x9q'", "The page answers with"),
    ("Backup file https://shop.example/a.bak found", "Backup file"),
    ("Answered after 15023 ms", "Answered after"),
    # a technology, whose version changes
    ('{"name": "nginx", "versions": ["1.25.3"], "categories": ["Web servers"]}', "nginx"),
    ("", "page"),
    ("[" * 100_000, "page"),
]


@pytest.mark.parametrize(("info", "place"), SAID, ids=range(len(SAID)))
def test_what_wapiti_says_is_a_place_up_to_where_it_quotes(info: str, place: str) -> None:
    value = copy.deepcopy(VALUES["wapiti"])
    csp(value)["info"] = info
    assert (LOCAL_SHOP, "low", "wapiti:content-security-policy-configuration", place) in told(
        imported("wapiti", json.dumps(value).encode())
    )


#: A result of SARIF that says no more of a flaw than that there is none.
NO_FLAW: Final[list[dict[str, Any]]] = [
    {"kind": "pass"},
    {"kind": "notApplicable"},
    {"baselineState": "absent"},
    {"suppressions": [{"kind": "inSource"}]},
    {"suppressions": [{"kind": "external", "status": "accepted"}]},
]
A_FLAW: Final[list[dict[str, Any]]] = [
    {"kind": "open"},
    {"baselineState": "unchanged"},
    {"suppressions": []},
    {"suppressions": [{"kind": "external", "status": "rejected"}]},
    {"locations": [], "webRequest": {"target": SHOP}},
]


@pytest.mark.parametrize("change", [*NO_FLAW, *A_FLAW], ids=str)
def test_a_result_that_passed_or_was_suppressed_is_none(change: dict[str, Any]) -> None:
    value = copy.deepcopy(VALUES["sarif"])
    value["runs"][0]["results"][0].update(change)
    found = told(imported("sarif", json.dumps(value).encode()))
    assert ((SHOP, "medium", "shop-scan:SS001", "page") in found) == (change in A_FLAW)


def test_a_rule_may_be_one_of_an_extension_of_the_tool() -> None:
    """CodeQL's are, where it groups them by pack; a number is one of the tool's own list."""
    rule = {"id": "js/xss", "name": "Markup from outside", "properties": {"security-severity": "9.1"}}
    at = [{"physicalLocation": {"artifactLocation": {"uri": SHOP}}}]
    result = {"ruleId": "js/xss", "message": {"text": "Seen."}, "locations": at}
    run = {"tool": {"driver": {"name": "Any"}, "extensions": [{"rules": [rule]}]}, "results": [result]}
    [found] = flaws_in(json.dumps({"runs": [run]}).encode(), "sarif")
    assert (found.title, found.severity) == ("Markup from outside", "critical")


def test_a_part_of_a_rule_behind_a_slash_has_the_words_of_the_rule() -> None:
    run = {"tool": {"driver": {"rules": [{"id": "CA2101", "name": "Whole"}]}}, "results": [{"ruleId": "CA2101/part"}]}
    [found] = flaws_in(json.dumps({"runs": [run]}).encode(), "sarif")
    assert (found.title, found.code) == ("Whole", "sarif:CA2101/part")


#: What SARIF says of a result, what it gives with it, the description that becomes of it.
MESSAGES: Final = [
    ("The {0} has no {1}, {2} nor {x}.", ["form", "label"], "The form has no label, {2} nor {x}."),
    # what a visit leaves in a sentence
    (f"{SHOP}a?token=8c1f0b6e#/b answers 500.", [], f"{SHOP}a answers 500."),
    ("(https://ann:hunter22@shop.example/)", [], f"({SHOP})"),
    ("{0} is shown.", ["ann.b+c@mail.example"], "@mail.example is shown."),
    ("Use @media, a@b or 1 @ 2.", [], "Use @media, a@b or 1 @ 2."),
]


@pytest.mark.parametrize(("said", "given", "becomes"), MESSAGES, ids=range(len(MESSAGES)))
def test_a_message_of_sarif_is_made_whole_but_for_what_is_a_visitors(said: str, given: list[str], becomes: str) -> None:
    result = {"ruleId": "a", "message": {"text": said, "arguments": given}}
    [found] = flaws_in(json.dumps({"runs": [{"results": [result]}]}).encode(), "sarif")
    assert found.description == becomes


@pytest.mark.parametrize("mode", ["informative", "manual", "notApplicable", "not-applicable", "error"])
def test_an_audit_that_judges_nothing_is_no_flaw_whatever_its_score(mode: str) -> None:
    value = copy.deepcopy(VALUES["lighthouse"])
    assert "lighthouse:image-alt" in {code for _, _, code, _ in told(imported("lighthouse"))}
    value["audits"]["image-alt"].update(scoreDisplayMode=mode)
    assert "lighthouse:image-alt" not in {code for _, _, code, _ in told(imported("lighthouse", json.dumps(value).encode()))}


def test_markup_of_zap_becomes_text() -> None:
    value = copy.deepcopy(VALUES["zap"])
    xss(value).update(desc="<p>One &amp; two.</p><p>Three.</p>", solution="<p>Escape it.</p>")
    found = {each.code: each.description for each in flaws_in(json.dumps(value).encode(), "zap")}
    assert found["zap:40012"].split() == ["One", "&", "two.", "Three.", "Escape", "it."]


def test_a_number_that_says_nothing_is_no_weakness() -> None:
    value = copy.deepcopy(VALUES["zap"])
    xss(value).update(cweid="-1", wascid="8")
    evidence = {each.code: each.evidence for each in flaws_in(json.dumps(value).encode(), "zap")}["zap:40012"]
    assert ("cwe" in evidence, evidence["wasc"]) == (False, "WASC-8")


def test_an_alert_without_instances_is_one_of_the_site() -> None:
    value = copy.deepcopy(VALUES["zap"])
    del xss(value)["instances"]
    assert (SHOP, "high", "zap:40012", "page") in told(imported("zap", json.dumps(value).encode()))


@pytest.mark.parametrize("name", FORMATS)
def test_every_severity_of_a_format_becomes_one_of_ours(name: str) -> None:
    assert {to for _, to in FORMATS[name].severities} <= {"critical", "high", "medium", "low", "info"}


def test_the_document_shows_the_table_of_severities() -> None:
    assert severity_table() in (ROOT / "docs" / "scanners.md").read_text()


#: Each severity as a report has it.
SEVERITIES: Final = [
    (
        "zap",
        lambda value, said: value["site"][0]["alerts"][0].update(riskcode=said),
        {"3": "high", "0": "info", "9": "info"},
    ),
    ("zap", lambda value, said: value["site"][0]["alerts"][0].update(riskcode=int(said)), {"2": "medium", "1": "low"}),
    (
        "nuclei",
        lambda value, said: value[0]["info"].update(severity=said),
        {"critical": "critical", "High": "high", "unknown": "info"},
    ),
    (
        "wapiti",
        lambda value, said: csp(value).update(level=said),
        {4: "critical", 3: "high", 2: "medium", 1: "low", 0: "info"},
    ),
    ("sarif", lambda value, said: value["runs"][0]["results"][0].update(level=said), {"error": "high", "none": "info"}),
    (
        "sarif",
        lambda value, said: value["runs"][0]["results"][0].update(properties={"security-severity": said}),
        # nothing above 0 leaves the level of the rule
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
    for said, becomes in expected.items():
        value = copy.deepcopy(VALUES[name])
        change(value, said)
        found = told(imported(name, json.dumps(value).encode()))
        code = codes.get(name, "wapiti:content-security-policy-configuration")
        assert {severity for _, severity, each, _ in found if each == code} == {becomes}


#: An address of a report, the parameter that was attacked, what is kept of it.
ADDRESSES: Final = [
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
    # a query may be a token alone, and a word or a number may be somebody's
    (f"{SHOP}?8c1f0b6e4d2a4f7c9b3e", "", SHOP),
    (f"{SHOP}?otp=123456&zip=12345&shipping=fast", "", f"{SHOP}?otp=&zip=&shipping=fast"),
    # servers' sessions
    (f"{SHOP}cart;jsessionid=8C1F0B6E4D2A?id=1", "", f"{SHOP}cart?id=1"),
    (f"{SHOP}(S(abcdefghijklmnopqrstuvwx))/cart;token=a/b", "", f"{SHOP}cart/b"),
    # who has a mailbox, also escaped; a name of a user alone is no mailbox
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


@pytest.mark.parametrize(("url", "parameter", "kept"), ADDRESSES)
def test_an_address_is_made_fit_to_be_kept(url: str, parameter: str, kept: str | None) -> None:
    assert page_address(url, parameter) == kept


# ── the same flaws are the same findings ───────────────────────────────────


def test_the_next_scan_with_the_same_flaws_has_the_same_fingerprints() -> None:
    """Other ids, moments, payloads and addresses of the visit; the same flaws."""
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
        assert marks(imported(name, after.encode())) == marks(imported(name)), name


def test_the_same_file_is_the_same_run_and_the_same_keys() -> None:
    content = FILES["zap"].read_bytes()
    assert run_number(content) == run_number(content) != run_number(content + b" ")
    assert len(str(run_number(content))) == 12
    assert [each.key for each in imported("zap").postbacks] == [each.key for each in imported("zap").postbacks]
    other_run = prepare(flaws_in(content, "zap"), 8)
    assert {each.key for each in other_run.postbacks}.isdisjoint(each.key for each in imported("zap").postbacks)


def test_the_next_report_is_no_repeat_though_it_finds_the_same_in_the_same_run() -> None:
    """Else its findings would not count as seen again."""
    content = FILES["zap"].read_bytes()
    tonight, tomorrow = (prepare(flaws_in(each, "zap"), 8, each) for each in (content, content + b"\n"))
    assert [each.body for each in tonight.postbacks] == [each.body for each in tomorrow.postbacks]
    assert {each.key for each in tonight.postbacks}.isdisjoint(each.key for each in tomorrow.postbacks)


def flaw(code: str, location: str, description: str = "") -> Flaw:
    return Flaw(SHOP, code, "A flaw", "low", description, location)


def test_a_page_with_more_flaws_than_a_postback_takes_loses_none() -> None:
    flaws = [flaw(f"rule-{number}", "page") for number in range(2 * MAX_ISSUES + 200)]
    found = prepare(flaws, 7)
    assert [len(each.body["issues"]) for each in found.postbacks] == [MAX_ISSUES, MAX_ISSUES, 200]
    assert (found.pages, found.flaws, found.left_out, len(marks(found))) == (1, len(flaws), (), len(flaws))


def test_flaws_that_only_their_order_tells_apart_share_a_postback() -> None:
    """The service numbers what looks alike, such as generated names, within a postback."""
    others = [flaw(f"rule-{number}", "page") for number in range(MAX_ISSUES - 5)]
    alike = [flaw("contrast", f"#ember{number}") for number in range(1000, 1010)]
    found = prepare([alike[0], *others, *alike[1:]], 7)
    assert len(marks(found)) == found.flaws == len(others) + len(alike)
    too_many = prepare([flaw("contrast", f"#ember{number}") for number in range(1000, 1000 + MAX_ISSUES + 3)], 7)
    assert (too_many.flaws, len(marks(too_many))) == (MAX_ISSUES, MAX_ISSUES)
    assert too_many.left_out[0].startswith("3 that only their order")


def test_a_postback_stays_small() -> None:
    found = prepare([flaw(f"rule-{number}", "page", f"{number}" + "é" * 1900) for number in range(400)], 7)
    assert len(found.postbacks) > 1
    assert max(len(each.content) for each in found.postbacks) < MAX_POSTBACK_BYTES + 1000


def test_a_text_that_the_service_would_refuse_is_left_out_and_the_flaw_goes() -> None:
    leaky = flaw("leak", "page", "Seen: Authorization: Bearer 8c1f0b6e4d2a4f7c9b3e5a7d1c0f2e4b")
    [postback] = prepare([leaky, flaw("other", "page", "Harmless.")], 7).postbacks
    assert [issue.get("description") for issue in postback.body["issues"]] == [None, "Harmless."]
    assert find(postback.body, frozenset()) == ()


# ── damaged reports ────────────────────────────────────────────────────────

#: A report, the format it is taken for, what is said of it.
UNREADABLE: Final = [
    (b"", "zap", "The report is empty; did the scan end well?"),
    (b" \n", "sarif", "The report is empty"),
    (b"{", "zap", "ends too soon, after line 1, column 2"),
    (FILES["zap"].read_bytes()[:700], "zap", "ends too soon"),
    (b'{"site": [}', "zap", "not JSON at line 1, column 11"),
    (b"<html></html>", "zap", "HTML or XML; let the scanner write JSON"),
    (b"\x1f\x8b\x08", "zap", "compressed; unpack it first"),
    (b'{"site": "\xff"}', "zap", "no text from byte 11 on"),
    (b"[" * 200_000, "zap", "nested too deeply"),
    (b'{"site": ' + b"9" * 5000 + b"}", "zap", "a number with thousands of digits"),
    (b"{}\n{}", "zap", "not JSON at line 2, column 1: Extra data"),
    (b'{"template-id": "a"}\n{"template-id": ', "nuclei", "ends too soon, after line 2, column"),
    (b'{"template-id": "a"}\n\n{]', "nuclei", "not JSON at line 3, column 2"),
    (b"null", "lighthouse", "does not look like a Lighthouse report, nor like any other that is read"),
    (b"[]", "zap", "does not look like a ZAP report"),
    (FILES["sarif"].read_bytes(), "zap", "looks like a SARIF report: --format sarif"),
    (FILES["nuclei"].read_bytes().splitlines()[0], "wapiti", "looks like a Nuclei report: --format nuclei"),
    (FILES["zap"].read_bytes(), "nuclei", "looks like a ZAP report: --format zap"),
    (b'{"@version": "2", "site": [{"alerts": 1}]}', "zap", "/site/0/alerts is not an array."),
    (
        b'{"@version": "2", "site": [{"alerts": [{"instances": [7]}]}]}',
        "zap",
        "/alerts/0/instances/0 is not an object.",
    ),
    (b'[{"template-id": ["a"]}]', "nuclei", "/0/template-id is not a text."),
    (b'{"runs": [{"results": [{"message": "no"}]}]}', "sarif", "/runs/0/results/0/message is not an object."),
    (b'{"lighthouseVersion": "12", "audits": {"a/b": 1}}', "lighthouse", "/audits/a~1b is not an object."),
    (
        b'{"lighthouseVersion": "12", "audits": {}, "runtimeError": {"code": "NO_FCP"}}',
        "lighthouse",
        "load the page (NO_FCP)",
    ),
    # scans that failed are not clean
    (
        b'{"lighthouseVersion": "12", "audits": {"a": {"scoreDisplayMode": "error"}, "b": {"scoreDisplayMode": "manual"}}}',
        "lighthouse",
        "could make none of its audits",
    ),
    (
        b'{"runs": [{"invocations": [{"executionSuccessful": true}, {"executionSuccessful": false}], "results": null}]}',
        "sarif",
        "/runs/0/invocations/1 says that the scan failed",
    ),
]


@pytest.mark.parametrize(("content", "name", "said"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_damaged_report_is_told_in_one_line_with_its_place(content: bytes, name: str, said: str) -> None:
    with pytest.raises(UnreadableReport) as refused:
        flaws_in(content, name)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_report_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(UnreadableReport, match="over 64 MiB"):
        flaws_in(b" " * (MAX_REPORT_BYTES + 1), "zap")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_reports_of_windows_are_read(encoding: str) -> None:
    for name, path in FILES.items():
        assert told(imported(name, path.read_text().replace("\n", "\r\n").encode(encoding))) == told(imported(name))


def test_an_array_of_nuclei_says_the_same_as_its_lines() -> None:
    assert told(imported("nuclei", json.dumps(VALUES["nuclei"]).encode())) == told(imported("nuclei"))


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
def test_a_report_without_flaws_is_one(name: str, content: bytes) -> None:
    assert imported(name, content).postbacks == ()


#: What stands where something else is expected.
STRANGE: Final = st.one_of(
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
    """Return every container of a value with each of its keys."""
    found, waiting = [], [value]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*FILES]), st.lists(st.tuples(st.integers(0, 10**6), STRANGE), min_size=1, max_size=4))
@example("sarif", [(0, {"driver": []})])
def test_a_mangled_report_is_refused_or_makes_postbacks_that_the_service_takes(
    name: str, changes: list[tuple[int, Any]]
) -> None:
    value = copy.deepcopy(VALUES[name])
    for number, strange in changes:
        at = places(value)
        if at:
            node, key = at[number % len(at)]
            node[key] = strange
    form: Any = PostbackForm()
    with contextlib.suppress(UnreadableReport):
        for postback in imported(name, json.dumps(value).encode()).postbacks:
            form.read(json.loads(postback.content))
            assert find(postback.body, frozenset()) == ()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*FILES]), st.integers(0, 10**6), st.binary(max_size=8))
def test_a_report_with_other_bytes_in_it_is_read_or_refused(name: str, at: int, other: bytes) -> None:
    content = FILES[name].read_bytes()
    at %= len(content)
    with contextlib.suppress(UnreadableReport):
        imported(name, content[:at] + other + content[at + len(other) + 1 :])
