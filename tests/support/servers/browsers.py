"""Starts the installed Chromium, and records requests, messages and errors of its pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, BrowserContext, Dialog, Request, expect, sync_playwright

from tests.support.servers.runtimes import runtime

#: On a busy machine, a browser needs several seconds to load a script of 1.5 MB.
PATIENCE_MS: Final = 30_000
expect.set_options(timeout=PATIENCE_MS)
#: Logs violations of a page's content security policy to the console; runs before the page's own scripts.
_REPORT_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`violation: ${event.effectiveDirective} ${event.blockedURI}`);
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the installed Chromium, and close it at the end of the block."""
    path = runtime("chromium-headless-shell")
    with sync_playwright() as driver:
        # Some tests compare screenshots. In one, a card's corner had another shade, perhaps after a partial redraw.
        words = ["--no-sandbox", "--disable-gpu", "--disable-partial-raster"]
        launched = driver.chromium.launch(executable_path=path, args=words)
        yield launched
        launched.close()


@dataclass
class Watch:
    """Events in the pages of one browser context; `complaints` returns those that must not happen."""

    #: Messages in the browser's console, errors, and violations of a page's content security policy.
    console: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    #: Requests without a response, or with an error status.
    failed: list[str] = field(default_factory=list)

    def outside(self, home: str) -> list[str]:
        """Return the requested URLs that are neither below `home` nor `data:` URLs."""
        return [requested for requested in self.requested if not requested.startswith((f"{home}/", "data:"))]

    def complaints(self, home: str) -> list[str]:
        """Return every event that must not happen, including requests to URLs that are not below `home`."""
        return [*self.console, *self.dialogs, *self.failed, *self.outside(home)]


def watch(context: BrowserContext) -> Watch:
    """Record the events in every page of a browser context from now on."""
    seen = Watch()

    def dismiss(dialog: Dialog) -> None:
        seen.dialogs.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def failed(request: Request) -> None:
        # Leaving a page before it is complete aborts its pending requests.
        if request.failure != "net::ERR_ABORTED":
            seen.failed.append(f"{request.failure} {request.url}")

    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_REPORT_VIOLATIONS)
    context.on("dialog", dismiss)
    context.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: seen.console.append(str(error.error)))
    context.on("request", lambda request: seen.requested.append(request.url))
    context.on("requestfailed", failed)
    context.on(
        "response", lambda answer: seen.failed.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )
    return seen
