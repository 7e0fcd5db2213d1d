"""Posts the pages of a scan to a local or remote RiskRelay; running the same import again resumes an interrupted one.

The Idempotency-Key of a page is derived from its content: a page that was accepted before gets its first response again.
A page that the service rejects is reported, and the others are still sent. A failure that applies to every page stops the
import.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import requests

from bin.api_client.retrying_session import (
    PAUSES_S,
    RetryingSession,
    TransientFailure,
    field_problems,
    is_transient,
    json_object,
    retry_after_s,
)
from bin.cli.output import Refused
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

    def count(self, response: requests.Response) -> bool:
        """Count an accepted page; return False for a response that is not RiskRelay's.

        Tickets and fixed findings of a repeat count for the earlier import.
        """
        body = json_object(response)
        match body:
            case {"findings": {"new": int(), "seen": int()}, "ticket_exports": list(exports)}:
                # An older version may leave out the others.
                found = Counter[str](body["findings"])
                seen = found["seen"] + found["reopened"]
                if "Idempotency-Replayed" in response.headers:
                    self.sent_before += 1
                    self.seen += found["new"] + seen
                else:
                    self.sent += 1
                    self.new += found["new"]
                    self.seen += seen
                    self.fixed += found["fixed"]
                    self.ticket_exports += exports
                return True
        return False


class PostbackSender:
    """Sends postbacks to one RiskRelay."""

    def __init__(self, url: str, secret: bytes, *, is_dry_run: bool = False, pauses_s: Iterable[float] = PAUSES_S) -> None:
        self._path = ROUTE + ("?dry_run=true" if is_dry_run else "")
        self._accepts = requests.codes.ok if is_dry_run else requests.codes.accepted
        headers = {"X-Scanner-Secret": secret, "Content-Type": "application/json"}
        self._requests = RetryingSession(url, headers, pauses_s)

    def send(self, postback: PagePostback, summary: ImportSummary) -> None:
        """Send one page, with retries, which takes at most a few minutes, and count the result.

        Raises Refused if no more pages can be sent.
        """
        host, key = self._requests.host, {"Idempotency-Key": postback.key}
        try:
            response = self._requests.send("POST", self._path, data=postback.content, headers=key)
        except TransientFailure as failure:
            attempts = self._requests.attempts
            raise Refused(f"{host} did not accept a page in {attempts} attempts: {failure}.") from None
        status = response.status_code
        if is_transient(response):
            raise Refused(f"{host} responds {status} with Retry-After {retry_after_s(response):.0f} s.")
        problems = field_problems(json_object(response))[:_MAX_PROBLEMS]
        is_of_page = not any(each.startswith("/scanRunId") for each in problems)
        if status == self._accepts:
            if not summary.count(response):
                raise Refused(f"The response of {host} is not RiskRelay's; check --to.")
        elif status == requests.codes.unprocessable and is_of_page:
            summary.rejected.append((postback.url, problems or ["rejected without a reason"]))
        elif status == requests.codes.request_entity_too_large:
            summary.rejected.append((postback.url, ["larger than the service's MAX_BODY_BYTES"]))
        else:
            unknown = "this is not a response of RiskRelay; check --to."
            fix = _REDIRECT if 300 <= status < 400 else _FIXES.get(status, unknown)
            raise Refused(f"{host} responds {status}: {fix}")


def send_all(
    postbacks: Iterable[PagePostback], sender: PostbackSender, on_done: Callable[[PagePostback], object]
) -> ImportSummary:
    """Send pages in order and return the summary; `on_done` is called after each."""
    summary = ImportSummary()
    try:
        for postback in postbacks:
            sender.send(postback, summary)
            on_done(postback)
    except Refused as stopped:
        summary.stopped = stopped.message
    except KeyboardInterrupt:
        summary.stopped = "Stopped by Ctrl-C."
    # Pages that share a ticket each name it.
    summary.ticket_exports = [*dict.fromkeys(summary.ticket_exports)]
    return summary
