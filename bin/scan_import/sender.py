"""Posts the pages of a scan to a local or remote RiskRelay; running the same import again resumes an interrupted one.

The Idempotency-Key of a page is derived from its content: a page that was accepted before gets its first response again.
A page that the service rejects is reported, and the others are still sent. A failure that applies to every page stops the
import.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from bin.api_client.retrying_session import (
    PAUSES_S,
    CannotSend,
    RetryingSession,
    TransientFailure,
    field_problems,
    is_transient,
    json_object,
    retry_after_s,
)
from schemas.report_files.pages import PagePostback

ROUTE: Final = "/api/scanner/results"
#: What an unexpected status means, and the fix.
_FIXES: Final = {
    401: "the scanner secret is wrong. If it was set with `riskrelay secret set scanner`, pass it with --secret-stdin.",
    404: f"it has no {ROUTE}. Check --to. In webhook-only mode, set EXTRA_ROUTE_FAMILIES=scanner there.",
    422: "the scan run is not registered, and DEFAULT_PROJECT_ID is not set. "
    "Run `riskrelay scan-run add --project ID --id N` there, then import with --scan-run N.",
}
_REDIRECT: Final = "redirects are not followed. Set --to to the URL that it redirects to."
#: Problems of a rejected page that are reported.
_MAX_PROBLEMS: Final = 5


@dataclass(frozen=True, slots=True)
class AcceptedPage:
    """The service accepted a page, now or, if `is_repeat`, in an earlier import."""

    new: int
    seen: int
    fixed: int
    ticket_exports: tuple[str, ...]
    is_repeat: bool


class ImportStopped(Exception):
    """No more pages can be sent; the message is the cause."""


@dataclass
class ImportSummary:
    """The counts and results of an import."""

    sent: int = 0
    sent_before: int = 0
    new: int = 0
    seen: int = 0
    fixed: int = 0
    ticket_exports: list[str] = field(default_factory=list)
    rejected: list[tuple[str, list[str]]] = field(default_factory=list)
    stopped: str | None = None

    def count(self, postback: PagePostback, result: AcceptedPage | list[str]) -> None:
        """Count a page, or its problems; tickets and fixed findings of a repeat count for the earlier import."""
        if isinstance(result, list):
            self.rejected.append((postback.url, result))
        elif result.is_repeat:
            self.sent_before += 1
            self.seen += result.new + result.seen
        else:
            self.sent += 1
            self.new += result.new
            self.seen += result.seen
            self.fixed += result.fixed
            self.ticket_exports += result.ticket_exports


class PostbackSender:
    """Sends postbacks to one RiskRelay."""

    def __init__(self, url: str, secret: bytes, *, is_dry_run: bool = False, pauses_s: Iterable[float] = PAUSES_S) -> None:
        self._path = ROUTE + ("?dry_run=true" if is_dry_run else "")
        self._accepts = requests.codes.ok if is_dry_run else requests.codes.accepted
        headers = {"X-Scanner-Secret": secret, "Content-Type": "application/json"}
        self._requests = RetryingSession(url, headers, pauses_s)

    def send(self, postback: PagePostback) -> AcceptedPage | list[str]:
        """Send one page, with retries, which takes at most a few minutes; return the problem with each field if rejected.

        Raises ImportStopped.
        """
        host, key = self._requests.host, {"Idempotency-Key": postback.key}
        try:
            response = self._requests.send("POST", self._path, data=postback.content, headers=key)
        except TransientFailure as failure:
            attempts = self._requests.attempts
            raise ImportStopped(f"{host} did not accept a page in {attempts} attempts: {failure}.") from None
        except CannotSend as failure:
            raise ImportStopped(f"Cannot send to {host}: {failure}.") from None
        if is_transient(response):
            raise ImportStopped(f"{host} responds {response.status_code} with Retry-After {retry_after_s(response):.0f} s.")
        return self._result(response)

    def _result(self, response: requests.Response) -> AcceptedPage | list[str]:
        host, status, body = self._requests.host, response.status_code, json_object(response)
        if status == self._accepts:
            if accepted := _accepted(response, body):
                return accepted
            raise ImportStopped(f"The response of {host} is not RiskRelay's; check --to.")
        problems = field_problems(body)[:_MAX_PROBLEMS]
        is_of_page = not any(each.startswith("/scanRunId") for each in problems)
        if status == requests.codes.unprocessable and is_of_page:
            return problems or ["rejected without a reason"]
        if status == requests.codes.request_entity_too_large:
            return ["larger than the service's MAX_BODY_BYTES"]
        fix = _REDIRECT if 300 <= status < 400 else _FIXES.get(status, "this is not a response of RiskRelay; check --to.")
        raise ImportStopped(f"{host} responds {status}: {fix}")


def send_all(
    postbacks: Iterable[PagePostback], sender: PostbackSender, on_done: Callable[[PagePostback], object]
) -> ImportSummary:
    """Send pages in order and return the summary; `on_done` is called after each."""
    summary = ImportSummary()
    try:
        for postback in postbacks:
            summary.count(postback, sender.send(postback))
            on_done(postback)
    except ImportStopped as stopped:
        summary.stopped = str(stopped)
    except KeyboardInterrupt:
        summary.stopped = "Stopped by Ctrl-C."
    # Pages that share a ticket each name it.
    summary.ticket_exports = [*dict.fromkeys(summary.ticket_exports)]
    return summary


def _accepted(response: requests.Response, body: dict[str, Any]) -> AcceptedPage | None:
    match body:
        case {"findings": {"new": int(new), "seen": int(seen), **more}, "ticket_exports": list(exports)}:
            reopened, fixed = (found if isinstance(found := more.get(name), int) else 0 for name in ("reopened", "fixed"))
            is_repeat = "Idempotency-Replayed" in response.headers
            return AcceptedPage(new, seen + reopened, fixed, tuple(map(str, exports)), is_repeat)
        case _:
            return None
