"""The documentation site builds without warnings, loads nothing from other hosts, and supports navigation and search."""

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml
from playwright.sync_api import Browser, Page, sync_playwright

from docs.hooks import in_site
from tests.docs.snippets import read_page
from tests.support.servers.runtimes import runtime

ROOT: Final = Path(__file__).resolve().parents[2]

#: `rel` values of links that a browser fetches.
FETCHED: Final = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class MkDocsLoader(yaml.SafeLoader):
    """Loads mkdocs.yml and ignores the tags of mkdocs."""


MkDocsLoader.add_multi_constructor("", lambda _loader, _tag, _node: None)
NAV: Final[list[dict[str, Any]]] = yaml.load((ROOT / "mkdocs.yml").read_text(), MkDocsLoader)["nav"]  # noqa: S506 - a SafeLoader


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by `make docs`: a broken link or a page missing in the navigation fails."""
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # Without --quiet, which would suppress the warnings that --strict counts.
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_broken_link_or_navigation_entry_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n[a](nothing.md) [b](#no-place) [c](../examples/nothing.py)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# Another\n")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "hooks": [str(ROOT / "docs" / "hooks.py")], "docs_dir": "docs"}
    config = tmp_path / "mkdocs.yml"
    config.write_text(yaml.safe_dump({**settings, "nav": ["index.md", "missing.md"]}))
    built = build(config, tmp_path / "site")
    assert built.returncode != 0
    warnings = [
        line for line in built.stderr.split("WARNING") if "forgotten.md" in line or "index.md" in line or "missing" in line
    ]
    for words in ("'nothing.md'", "'#no-place'", "'../examples/nothing.py'", "'missing.md'", "forgotten.md"):
        assert words in "".join(warnings)


class ResourceParser(HTMLParser):
    """Collects the resources that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.found += [given[name] for name in ("src", "srcset", "poster", "data") if name in given]
        if tag == "link" and FETCHED & {*given.get("rel", "").split()}:
            self.found.append(given.get("href", ""))


def test_pages_load_no_resources_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        loads = ResourceParser()
        loads.feed(page.read_text())
        assert len(loads.found) > 3
        assert [link for link in loads.found if urlsplit(link).netloc] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()) == [], style


def test_a_page_shows_tables_code_and_links_as_github_does(site: Path) -> None:
    commands = (site / "commands.html").read_text()
    assert "<td>" in commands
    assert r"\|" in (ROOT / "docs" / "commands.md").read_text()
    assert r"\|" not in re.sub(r"<[^>]+>", "", commands.partition("<table>")[2])
    assert 'href="source/tests/test_deploy.py"' in (site / "security.html").read_text()
    assert (site / "source" / "tests" / "test_deploy.py").read_bytes() == (ROOT / "tests" / "test_deploy.py").read_bytes()
    assert 'id="openapi-description"' in (site / "api.html").read_text()


@pytest.mark.parametrize(
    ("page", "link", "in_the_site"),
    [
        ("api.md", "delivery.md", "delivery.md"),
        ("senders/email.md", "../api.md", "../api.md"),
        # documents outside docs/ become pages
        ("api.md", "../README.md", "readme.md"),
        ("senders/email.md", "../../SECURITY.md", "../report-a-vulnerability.md"),
        # and their links are relative to the repository root
        ("readme.md", "docs/api.md", "api.md"),
        # other files are copied
        ("readme.md", "LICENSE", "source/LICENSE"),
        ("senders/email.md", "../../examples/scanner.py", "../source/examples/scanner.py"),
        # a folder gets a list of its files
        ("readme.md", "deploy/nginx/", "source/deploy/nginx/contents.md"),
        # a missing file is reported by the strict build
        ("api.md", "../examples/nothing.py", "../examples/nothing.py"),
    ],
)
def test_a_link_is_converted_to_its_path_in_the_site(page: str, link: str, in_the_site: str) -> None:
    assert in_site(page, link) == in_the_site


class SilentFileHandler(SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The URL of the site, served below a path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SilentFileHandler, directory=str(site.parent))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{site.name}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The Chromium of this machine."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(runtime("chromium-headless-shell")), args=["--no-sandbox"])
        yield browser
        browser.close()


def collect_errors(page: Page, home: str) -> list[str]:
    """Return a list that collects the page's errors, failed requests and requests to other hosts."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Leaving a page aborts what it still loads, such as its icon.
    page.on("requestfailed", lambda request: errors.append(request.url) if request.failure != "net::ERR_ABORTED" else None)
    page.on(
        "response", lambda response: errors.append(f"{response.status} {response.url}") if response.status >= 400 else None
    )
    page.on("request", lambda request: errors.append(request.url) if not is_own_url(request.url, home) else None)
    return errors


def is_own_url(url: str, home: str) -> bool:
    return url.startswith((home, "data:", "blob:"))


def search_results(page: Page, words: str) -> str:
    """Return the links of the search results."""
    page.locator(".md-search__input").first.fill(words)
    # The search reacts to key events.
    page.keyboard.press("End")
    found = page.locator(".md-search-result__link")
    found.first.wait_for()
    return " ".join(link.get_attribute("href") or "" for link in found.all())


def test_navigation_and_search_work(served: str, chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    errors = collect_errors(page, served)
    page.goto(f"{served}/index.html")
    for section in NAV:
        [(name, pages)] = section.items()
        page.locator(".md-tabs__link", has_text=re.compile(rf"^\s*{name}\s*$")).click()
        page.wait_for_url(f"{served}/{first_of(pages)}")
        assert page.locator("article h1").count() == 1
    assert "error-codes.html" in search_results(page, "WEBHOOK_SIGNATURE_INVALID")
    assert errors == []


def test_search_and_copying_work_on_a_phone_from_a_local_disk(site: Path, chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    errors = collect_errors(page, site.as_uri())
    page.goto((site / "senders" / "email.html").as_uri())
    # Wide blocks and tables scroll inside the page.
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # The copied text is exactly the block.
    [first, *_] = [each.text for each in read_page(ROOT / "docs" / "senders" / "email.md").snippets]
    assert page.locator("article .highlight code").first.text_content() == first
    page.locator("label[for=__search]").first.click()
    assert "error-codes.html" in search_results(page, "WEBHOOK_SIGNATURE_INVALID")
    assert errors == []


def first_of(pages: str | list[Any]) -> str:
    """Return the file of the first page of a section."""
    first: Any = pages
    while not isinstance(first, str):
        first = first[0] if isinstance(first, list) else next(iter(first.values()))
    return str(first).removesuffix(".md") + ".html"
