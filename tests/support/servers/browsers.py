"""The machine's own Chromium, and a watch over what goes on in its pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, BrowserContext, Dialog, Request, expect, sync_playwright

from tests.support.servers.runtimes import runtime

#: A browser on a busy machine takes a script of 1.5 MB up in several seconds.
PATIENCE_MS: Final = 30_000
expect.set_options(timeout=PATIENCE_MS)
#: Says what a page was not allowed to do; it runs before anything of the page.
_TELL: Final = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`violation: ${event.effectiveDirective} ${event.blockedURI}`);
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the machine's own; it ends with the block."""
    path = runtime("chromium-headless-shell")
    with sync_playwright() as driver:
        # Screenshots are compared: one had another shade in the corner of a card, which was perhaps drawn anew in part.
        words = ["--no-sandbox", "--disable-gpu", "--disable-partial-raster"]
        launched = driver.chromium.launch(executable_path=path, args=words)
        yield launched
        launched.close()


@dataclass
class Watch:
    """What happened in the pages of one context; `complaints` has what must not happen."""

    #: Messages of the console, errors, and violations of a page's content security policy.
    console: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    #: Requests without a response, or with an error.
    failed: list[str] = field(default_factory=list)

    def outside(self, home: str) -> list[str]:
        """Return the requests to URLs that are neither below `home` nor data of the page itself."""
        return [asked for asked in self.asked if not asked.startswith((f"{home}/", "data:"))]

    def complaints(self, home: str) -> list[str]:
        """Return everything that must not happen, requests to URLs that are not below `home` included."""
        return [*self.console, *self.dialogs, *self.failed, *self.outside(home)]


def watch(context: BrowserContext) -> Watch:
    """Record what happens in every page of a context from now on."""
    seen = Watch()

    def dismiss(dialog: Dialog) -> None:
        seen.dialogs.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def failed(request: Request) -> None:
        # Who leaves a page before it is complete aborts the rest of it.
        if request.failure != "net::ERR_ABORTED":
            seen.failed.append(f"{request.failure} {request.url}")

    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_TELL)
    context.on("dialog", dismiss)
    context.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: seen.console.append(str(error.error)))
    context.on("request", lambda request: seen.asked.append(request.url))
    context.on("requestfailed", failed)
    context.on(
        "response", lambda answer: seen.failed.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )
    return seen
