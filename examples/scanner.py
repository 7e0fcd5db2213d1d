#!/usr/bin/env python3
"""Scan one web page for flaws that can be seen from outside, and post them to RiskRelay.

    SCANNER_SHARED_SECRET=… examples/scanner.py https://shop.example/ --to http://127.0.0.1:8000

Prints a line for each flaw, then each ticket export prepared, its id alone on a line (`… | grep ^exp_`).
Exit code 0: accepted, 1: page or RiskRelay unreachable, or refused, 2: wrong usage. Needs requests alone.
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

MAX_PAGE_BYTES, TIMEOUT_S = 2 * 1024 * 1024, 20  # ten times what a page has; for a read, and for the whole page
LOADING = {"script", "img", "iframe", "audio", "video", "source", "stylesheet", "icon", "preload", "manifest"}
RULES = {
    "missing-content-security-policy": ("No Content-Security-Policy", "medium", "Injected scripts run freely."),
    "missing-strict-transport-security": ("No Strict-Transport-Security", "medium", "A visit may begin on http."),
    "missing-x-content-type-options": ("No X-Content-Type-Options", "low", "A file may be run as a script."),
    "missing-referrer-policy": ("No Referrer-Policy", "low", "Addresses of pages may leak to other sites."),
    "missing-frame-protection": ("No protection from frames", "medium", "Another site can steal clicks."),
    "mixed-content": ("Loaded over http by an https page", "high", "Whoever is on the way can replace it."),
    "insecure-subresource": ("Loaded over http from another host", "high", "Whoever is on the way can replace it."),
    "html-lang-missing": ("The page names no language", "low", "Screen readers guess how to pronounce it."),
    "title-missing": ("The page has no title", "low", "Tabs, bookmarks and search results show its address."),
    "img-alt-missing": ("An image has no alt text", "medium", "Who cannot see it learns nothing of it."),
}


class Page(HTMLParser):
    """Notes in `found` which rule an element breaks, and in `has` what the page as a whole has."""

    def __init__(self, url: str, html: str) -> None:
        super().__init__()
        self.url, self.has, self.found = url, set[str](), list[tuple[str, str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: (value or "").strip() for name, value in attrs}
        source = given.get("href" if tag == "link" else "src", "")
        place = f"{tag} {source.partition('?')[0][:200]!a}"  # a query may hold what concerns nobody
        if tag == "html" and given.get("lang"):
            self.has.add("lang")
        if tag == "meta":
            self.has |= {given.get("http-equiv", "").lower(), given.get("name", "").lower()}
        if tag == "img" and "alt" not in given and given.get("role") not in ("presentation", "none"):
            self.found.append(("img-alt-missing", place))
        if LOADING & {tag, *given.get("rel", "").lower().split()}:
            # An https page may load nothing over http. A page on http is in the clear itself, so there only
            # what another host sends is a flaw of its own: one more host that somebody can pose as.
            page, far = urlsplit(self.url), re.match(r"(?i)(http:)?//(\[[^]]*\]|[^/:?#]*)", source)
            if far and (far[1] if page.scheme == "https" else far[2].lower().strip("[]") != page.hostname):
                self.found.append(("mixed-content" if page.scheme == "https" else "insecure-subresource", place))


def find_flaws(url: str, headers: Any, html: str) -> list[dict[str, str]]:
    """Return the flaws as entries of `issues`, each once; `headers` finds a name in any case."""
    page, policy = Page(url, html), headers.get("Content-Security-Policy", "").lower()
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
    return [dict(zip(names, (code, place, url, *RULES[code]), strict=True)) for code, place in found]


def scan(url: str, scan_run: int) -> dict[str, Any]:
    """Fetch a page, within bounds, and return a postback: no cookies, and no date, so that a repeat is the same."""
    body, deadline = b"", time.monotonic() + TIMEOUT_S
    with requests.get(url, stream=True, timeout=TIMEOUT_S) as got:
        for chunk in got.iter_content(65536):
            body += chunk
            if len(body) > MAX_PAGE_BYTES or time.monotonic() > deadline:
                sys.exit(f"Not scanned: {url} is over {MAX_PAGE_BYTES} bytes or takes over {TIMEOUT_S} s.")
    at, html = got.url.partition("#")[0], body.decode(errors="replace")
    flaws = find_flaws(at, got.headers, html if "html" in got.headers.get("Content-Type", "") else "")
    kept = {name: value for name, value in got.headers.items() if not re.search("(?i)cookie|^date$", name)}
    page = {"url": at, "normalizedUrl": at, "statusCode": got.status_code, "responseHeaders": kept}
    page["pageType"] = "home" if urlsplit(at).path == "/" else "page"
    return {"scanRunId": scan_run, "status": "completed", "page": page, "artifacts": {}, "issues": flaws}


def main() -> None:
    parser = argparse.ArgumentParser(description="Scan a web page and post what was found to RiskRelay.")
    parser.add_argument("url", help="the page; http or https")
    parser.add_argument("--to", default="http://127.0.0.1:8000", help="where RiskRelay is (%(default)s)")
    parser.add_argument("--scan-run", type=int, default=int(time.time()), help="its number (the time in seconds)")
    parser.add_argument("--json", action="store_true", help="print the answer of RiskRelay alone")
    asked = parser.parse_args()
    secret = os.environ.get("SCANNER_SHARED_SECRET") or sys.exit("Set SCANNER_SHARED_SECRET to RiskRelay's secret.")
    postback, to = scan(asked.url, asked.scan_run), asked.to.rstrip("/") + "/api/scanner/results"
    key = hashlib.sha256(repr(postback).encode()).hexdigest()  # of scan run, page and findings
    headers = {"X-Scanner-Secret": secret.encode(), "Idempotency-Key": key.encode(), "Accept": b"application/json"}
    got = requests.post(to, json=postback, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    if got.status_code != requests.codes.accepted:  # a redirect neither: it would carry the secret elsewhere
        sys.exit(f"{to} refused it with {got.status_code}: {got.text[:500]}")
    found = [f"{flaw['severity']:8}{flaw['title']} ({flaw['location']})" for flaw in postback["issues"]]
    print(got.text if asked.json else "\n".join([*found, *got.json().get("ticket_exports", [])]))


if __name__ == "__main__":
    try:
        main()
    except (requests.RequestException, ValueError, AssertionError) as error:  # what html.parser gives up on, too
        sys.exit(f"Failed: {type(error).__name__}: {error}")
