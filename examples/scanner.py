#!/usr/bin/env python3
"""Example scanner: check a web page for externally visible issues and post them to RiskRelay.

    SCANNER_SHARED_SECRET=… .venv/bin/python examples/scanner.py https://shop.example/ --to http://127.0.0.1:8000

Prints one line per issue, then one export id per line (`… | grep ^exp_`). Needs only requests, which .venv has.
Exit codes: 0 accepted; 1 page or RiskRelay unreachable, or results rejected; 2 wrong usage.
"""

import argparse
import hashlib
import os
import re
import sys
import time
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import requests

MAX_PAGE_BYTES, TIMEOUT_S = 2 * 1024 * 1024, 20  # ten times a usual page; limits each read and the whole page
LOADING = {"script", "img", "iframe", "audio", "video", "source", "stylesheet", "icon", "preload", "manifest"}
RULES = {
    "missing-content-security-policy": ("No Content-Security-Policy", "medium", "Injected scripts run freely."),
    "missing-strict-transport-security": ("No Strict-Transport-Security", "medium", "The first request may use http."),
    "missing-x-content-type-options": ("No X-Content-Type-Options", "low", "Browsers may run other files as scripts."),
    "missing-referrer-policy": ("No Referrer-Policy", "low", "Page addresses may leak to other sites."),
    "missing-frame-protection": ("No protection from frames", "medium", "Another site can capture clicks in a frame."),
    "mixed-content": ("Loaded over http by an https page", "high", "An attacker on the network can replace it."),
    "insecure-subresource": ("Loaded over http from another host", "high", "An attacker on the network can replace it."),
    "html-lang-missing": ("The page names no language", "low", "Screen readers guess the pronunciation."),
    "title-missing": ("The page has no title", "low", "Tabs, bookmarks and search results show its address."),
    "img-alt-missing": ("An image has no alt text", "medium", "Screen readers cannot describe it."),
}


class PageParser(HTMLParser):
    """Collects rule violations of elements in `found` and features of the whole page in `has`."""

    def __init__(self, url: str, html: str) -> None:
        super().__init__()
        self.url, self.has, self.found = url, set[str](), list[tuple[str, str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: (value or "").strip() for name, value in attrs}
        source = given.get("href" if tag == "link" else "src", "")
        location = f"{tag} {source.partition('?')[0][:200]!a}"  # without the query, which may contain secrets
        if tag == "html" and given.get("lang"):
            self.has.add("lang")
        if tag == "meta":
            self.has |= {given.get("http-equiv", "").lower(), given.get("name", "").lower()}
        if tag == "img" and "alt" not in given and given.get("role") not in ("presentation", "none"):
            self.found.append(("img-alt-missing", location))
        if LOADING & {tag, *given.get("rel", "").lower().split()}:
            # An https page must load nothing over http. An http page is unencrypted itself, so only a
            # subresource from another host is an issue: an attacker can impersonate that host, too.
            page, origin = urlsplit(self.url), re.match(r"(?i)(http:)?//(\[[^]]*\]|[^/:?#]*)", source)
            if origin and (origin[1] if page.scheme == "https" else origin[2].lower().strip("[]") != page.hostname):
                self.found.append(("mixed-content" if page.scheme == "https" else "insecure-subresource", location))


def find_issues(url: str, headers: Any, html: str) -> list[dict[str, str]]:
    """Return the distinct issues as entries of `issues`; `headers` must be case-insensitive."""
    page, policy = PageParser(url, html), headers.get("Content-Security-Policy", "").lower()
    missing = {
        "missing-content-security-policy": not (policy or "content-security-policy" in page.has),
        "missing-strict-transport-security": url[:5] == "https" and "Strict-Transport-Security" not in headers,
        "missing-x-content-type-options": headers.get("X-Content-Type-Options", "").lower() != "nosniff",
        "missing-referrer-policy": not ("Referrer-Policy" in headers or "referrer" in page.has),
        "missing-frame-protection": not ("X-Frame-Options" in headers or "frame-ancestors" in policy),
        "html-lang-missing": html and "lang" not in page.has,
        "title-missing": html and not re.search(r"<title[^>]*>\s*[^<\s]", html, re.IGNORECASE),
    }
    found = dict.fromkeys([(code, "page") for code, is_missing in missing.items() if is_missing] + page.found)
    names = ("code", "location", "url", "title", "severity", "description")
    return [dict(zip(names, (code, location, url, *RULES[code]), strict=True)) for code, location in found]


def scan(url: str, scan_run: int) -> dict[str, Any]:
    """Fetch a page, with limits; return a postback about RULES only, without cookies and date, so that repeats are equal."""
    body, deadline = b"", time.monotonic() + TIMEOUT_S
    with requests.get(url, stream=True, timeout=TIMEOUT_S) as response:
        for chunk in response.iter_content(65536):
            body += chunk
            if len(body) > MAX_PAGE_BYTES or time.monotonic() > deadline:
                sys.exit(f"Not scanned: {url} is over {MAX_PAGE_BYTES} bytes or takes over {TIMEOUT_S} s.")
    page_url, html = response.url.partition("#")[0], body.decode(errors="replace")
    issues = find_issues(page_url, response.headers, html if "html" in response.headers.get("Content-Type", "") else "")
    kept = {name: value for name, value in response.headers.items() if not re.search("(?i)cookie|^date$", name)}
    page = {"url": page_url, "normalizedUrl": page_url, "statusCode": response.status_code, "responseHeaders": kept}
    page |= {"rules": list(RULES), "pageType": "home" if urlsplit(page_url).path == "/" else "page"}
    return {"scanRunId": scan_run, "status": "completed", "page": page, "artifacts": {}, "issues": issues}


def main() -> None:
    parser = argparse.ArgumentParser(description="Scan a web page and post the issues to RiskRelay.")
    parser.add_argument("url", help="the page; http or https")
    parser.add_argument("--to", default="http://127.0.0.1:8000", help="URL of RiskRelay (%(default)s)")
    parser.add_argument("--scan-run", type=int, default=int(time.time()), help="number of the scan run (default: unix time)")
    parser.add_argument("--json", action="store_true", help="print only RiskRelay's response")
    arguments = parser.parse_args()
    secret = os.environ.get("SCANNER_SHARED_SECRET") or sys.exit("Set SCANNER_SHARED_SECRET to RiskRelay's secret.")
    postback, to = scan(arguments.url, arguments.scan_run), arguments.to.rstrip("/") + "/api/scanner/results"
    key = hashlib.sha256(repr(postback).encode()).hexdigest()  # the hash of scan run, page and issues
    headers = {"X-Scanner-Secret": secret.encode(), "Idempotency-Key": key.encode(), "Accept": b"application/json"}
    response = requests.post(to, json=postback, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    if response.status_code != requests.codes.accepted:  # a redirect, too: it could send the secret to another host
        sys.exit(f"{to} rejected the postback with {response.status_code}: {response.text[:500]}")
    lines = [f"{issue['severity']:8}{issue['title']} ({issue['location']})" for issue in postback["issues"]]
    print(response.text if arguments.json else "\n".join([*lines, *response.json().get("ticket_exports", [])]))


if __name__ == "__main__":
    try:
        main()
    except (requests.RequestException, ValueError, AssertionError) as error:  # AssertionError: html.parser failed
        sys.exit(f"Failed: {type(error).__name__}: {error}")
