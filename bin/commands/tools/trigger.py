"""`trigger`: send a signed sample ticket to a receiver like a delivery, and print what a worker would do next.

For authors of receivers: it needs no database and no running installation, only the shared secret. On loopback every port is
allowed; elsewhere the target policy of deliveries applies. `--event` sends an event of a ticket. `--case`, `--all` and
`--events` also send invalid and repeated requests; `--replay` sends a request that `listen --save` saved.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bin.checks.machine import is_loopback
from bin.cli.installation import checked_settings
from bin.cli.output import Refused, echo, echo_styled
from bin.cli.records import json_option, print_record
from bin.cli.terminal import secret_or_setting
from bin.receiver_kit import cases, saved_requests
from bin.receiver_kit.receiver import DEFAULT_PORT
from bin.receiver_kit.saved_requests import SavedRequest
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from schemas.base.printable import printable
from schemas.base.strict_json import MalformedJson, canonical, parse
from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import format_rfc3339
from schemas.exports.delivery import DELIVERED, Outcome, Verdict
from schemas.exports.response_excerpt import response_excerpt
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body
from schemas.settings.definitions import Settings
from schemas.targets.error_help import help_for
from schemas.url_policy.policy import TargetPolicy, parse_networks, parse_ports
from storage.db import identifiers
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from worker.composition import compose_client
from worker.delivery.outcomes import Schedule, Try, decide_outcome
from worker.http.client import HttpClient
from worker.http.signed_request import Message, SignedPost, new_nonce
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

_MAX_SHOWN_CHARS: Final = 200

_LOCALHOST: Final = re.compile("^(https?://)localhost(?![^:/?#])", re.IGNORECASE)

_EVENTS: Final = {kind.removeprefix("ticket."): kind for kind in TicketEventType}

_SAMPLE: Final = Ticket(
    title="Image without alternative text on /",
    description="Screen readers cannot tell what the picture shows.\n\nPage: https://shop.example/\nWhere: main > img.hero",
    severity="medium",
    page_url="https://shop.example/",
    labels=("website-risk", "severity:medium", "page:home"),
    evidence={"rule": "img-alt", "location": "main > img.hero"},
)


@click.command()
@click.option("--to", "url", default=f"http://127.0.0.1:{DEFAULT_PORT}/", show_default=True, help="The receiver's URL.")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATH:VALUE",
    help="Set a field of the body: a dotted path, and JSON or plain text; may be repeated.",
)
@click.option("--event", type=click.Choice(tuple(_EVENTS)), help="Send an event of a ticket instead of a ticket.")
@click.option(
    "--ticket",
    metavar="EXPORT_ID",
    help="The event's ticket: the idempotency_key of an earlier `trigger`. Default: a ticket that the "
    "receiver has never received.",
)
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice((*cases.NAMES, *cases.EVENT_NAMES)),
    help="Run one case; may be repeated.",
)
@click.option("--all", "is_all", is_flag=True, help="Run all cases except those for events.")
@click.option(
    "--events",
    "has_events",
    is_flag=True,
    help="Run the cases for events, alone or with --all. Only receivers whose target subscribes to events must pass them.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Send a request that `listen --save` saved, byte for byte; a correct receiver rejects its nonce.",
)
@click.option("--resign", is_flag=True, help="Sign the replayed request with a new timestamp and nonce.")
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input, not WEBHOOK_SECRET.")
@json_option
def trigger(
    url: str,
    overrides: tuple[str, ...],
    event: str | None,
    ticket: str | None,
    names: tuple[str, ...],
    is_all: bool,
    has_events: bool,
    replay: Path | None,
    resign: bool,
    secret_stdin: bool,
    as_json: bool,
) -> None:
    """Send a signed sample ticket, or an event of a ticket, to a receiver and explain its response.

    --all, --events and --case send valid, invalid and repeated requests, and report which responses are correct. They need
    no running installation; the receiver creates a few sample tickets.

    Example:
      riskrelay trigger --to http://127.0.0.1:9000/ --override ticket.title:Hello
      printf %s "$SECRET" | riskrelay trigger --secret-stdin --override 'ticket.labels:["a", "b"]'
      riskrelay trigger --event fixed --ticket exp_01JAM5T4Q7Y6N0V3B9C2D8E1F4
      riskrelay trigger --all --events
      riskrelay trigger --replay requests/20260131T120000.000000Z-exp_1.http

    Exit codes:
      0  the receiver accepted the ticket or event; with cases: every case passed
      1  rejected or not delivered; with cases: a case failed
      2  wrong usage or configuration
    """
    chosen = (
        *(case for case in cases.CASES if is_all or case.name in names),
        *(case for case in cases.EVENT_CASES if has_events or case.name in names),
    )
    if sum(map(bool, (overrides or event, chosen, replay))) > 1 or (resign and not replay) or (ticket and not event):
        raise click.UsageError(
            "Use only one of --override and --event, the cases (--case, --all, --events), and --replay. --resign requires "
            "--replay, --ticket requires --event."
        )
    settings = checked_settings()
    read_secret = partial(secret_or_setting, secret_stdin, settings.webhook_secret, "WEBHOOK_SECRET")
    if _is_local(url):
        # The URL policy refuses the name `localhost`, which every host has.
        url = _LOCALHOST.sub(r"\g<1>127.0.0.1", url)
    client = _ReceiverClient(settings, url)
    if chosen:
        sample = cases.SampleRequests(lambda: _message(url), read_secret())
        has_passed = _run_cases(client, chosen, sample, as_json)
    elif replay:
        has_passed = _replay(client, replay, read_secret() if resign else None, as_json)
    else:
        message = _message(url) if event is None else cases.sample_event(_message(url), _EVENTS[event], ticket)
        has_passed = _deliver(client, _changed(message, overrides), read_secret(), as_json)
    if not has_passed:
        raise SystemExit(1)


class _ReceiverClient:
    """Posts to one receiver, and evaluates its responses as a worker does."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        timeouts = settings.delivery_timeout_s, settings.connect_timeout_s
        policy = TargetPolicy(True, parse_ports("1-65535"), (*parse_networks("127.0.0.0/8,::1/128"),))
        self.http = (
            HttpClient(policy, DnsResolver(), *timeouts, connections=1) if _is_local(url) else compose_client(settings, 1)
        )
        self._schedule = Schedule(settings.retry_schedule_s, settings.max_age)

    def post(self, headers: dict[str, str], body: bytes) -> Outcome:
        """Send one request over a new connection, so that no response depends on the previous one."""
        outcome = self.http.post(self.url, headers, body)
        self.http.close()
        return outcome

    def verdict(self, outcome: Outcome, at: datetime) -> Verdict:
        """Return a worker's verdict on a first attempt."""
        return decide_outcome(outcome, Try(1, self._schedule, at, utc_now(), 0.0))

    def send(self, request: cases.CaseRequest) -> cases.CaseResponse:
        """Send one request of a case."""
        outcome = self.post(request.headers, request.body)
        return cases.CaseResponse(request, outcome, self.verdict(outcome, utc_now()))


def _deliver(client: _ReceiverClient, message: Message, secret: str, as_json: bool) -> bool:
    """Send one sample; return whether it was accepted."""
    sent = SignedPost(client.http.post, Vault(()), DefaultSecret(secret)).send(message)
    return _report(client, message.key, message.at, sent, as_json)


def _replay(client: _ReceiverClient, path: Path, secret: str | None, as_json: bool) -> bool:
    """Send a saved request unchanged, or signed again if a secret is given; return whether it was accepted."""
    saved, now = saved_requests.read(path), utc_now()
    headers = saved.headers if secret is None else _resigned(saved, secret, now)
    sent = client.post(headers, saved.body)
    key = next((value for name, value in headers.items() if name.lower() == "idempotency-key"), None)
    return _report(client, key, now, sent._replace(kept=response_excerpt(sent.body)), as_json)


def _report(client: _ReceiverClient, key: str | None, at: datetime, sent: Outcome, as_json: bool) -> bool:
    """Print a request and its result in the form of an attempt's record; return whether it was accepted."""
    verdict = client.verdict(sent, at)
    record = {
        "url": client.url,
        "idempotency_key": key,
        "outcome": verdict.outcome,
        "response_status": sent.status,
        "error_code": verdict.error_code,
        "retry_in_s": verdict.next_attempt_at and round((verdict.next_attempt_at - at).total_seconds()),
        "provider_ticket_id": verdict.provider_ticket_id,
        "duration_ms": sent.timings.total_ms,
        "answer": sent.kept,
    }
    print_record(record, as_json)
    if verdict.error_code is not None and not as_json:
        echo(" ".join(help_for(verdict.error_code)))
    return verdict.outcome == DELIVERED


def _resigned(saved: SavedRequest, secret: str, now: datetime) -> dict[str, str]:
    replaced = {SIGNATURE_HEADER.lower(), TIMESTAMP_HEADER.lower(), NONCE_HEADER.lower()}
    timestamp, nonce = int(now.timestamp()), new_nonce()
    return {
        **{name: value for name, value in saved.headers.items() if name.lower() not in replaced},
        TIMESTAMP_HEADER: str(timestamp),
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: sign(secret.encode(), timestamp, nonce, saved.body),
    }


def _run_cases(
    client: _ReceiverClient, chosen: Sequence[cases.ConformanceCase], sample: cases.SampleRequests, as_json: bool
) -> bool:
    """Run cases and print each result at once, or all as one JSON document; return whether every case passed."""
    results: list[cases.CaseResult] = []
    for case in chosen:
        results.append(cases.run_case(case, sample, client.send))
        _require_response(client.url, results)
        if not as_json:
            echo_styled(_lines(results[-1]))
    passed = sum(result.problem is None for result in results)
    if as_json:
        records = [*map(_case_record, results)]
        echo(json.dumps({"url": client.url, "right": passed, "wrong": len(results) - passed, "cases": records}))
    else:
        echo(f"{passed} of {len(results)} passed at {client.url}")
    return passed == len(results)


def _require_response(url: str, results: Sequence[cases.CaseResult]) -> None:
    """Stop if the first request got no response: every case would fail with the same error."""
    first = results[0].responses[0].outcome
    if len(results) == 1 and first.status is None:
        fix = "; see TARGET_ALLOWED_NETWORKS, TARGET_ALLOWED_PORTS and TARGET_ALLOW_HTTP" if first.refused else ""
        raise Refused(f"No response from {url}: {first.error}{fix}.")


def _lines(result: cases.CaseResult) -> str:
    """Return a result as one line, or two if the case failed."""
    case, last = result.case, result.responses[-1]
    if result.problem is None:
        return f"{click.style('passed', fg='green')}  {case.name:18}  {_plain(last.summary)}"
    is_limited = last.outcome.status == HTTPStatus.TOO_MANY_REQUESTS
    fix = "the receiver limits the rate; disable its rate limit for this test" if is_limited else case.fix
    failed = f"{click.style('failed', fg='red', bold=True)}  {case.name:18}  {_plain(result.problem)}"
    return f"{failed}\n{'':28}{case.sends}: {fix}"


def _case_record(result: cases.CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "case": case.name,
        "sends": case.sends,
        "is_right": result.problem is None,
        "right": [response.request.right for response in result.responses],
        "answered": [response.summary for response in result.responses],
        "problem": result.problem,
        "remedy": None if result.problem is None else case.fix,
    }


def _plain(text: str) -> str:
    """Return a receiver's text, safe for a terminal."""
    return printable(text[:_MAX_SHOWN_CHARS])


def _message(url: str) -> Message:
    now = utc_now()
    export_id, target_id = identifiers.new_id(identifiers.EXPORT, now), identifiers.new_id(identifiers.TARGET, now)
    source = Source("finding", identifiers.new_id(identifiers.FINDING, now), 1)
    body = delivery_body(export_id, target_id, source, _SAMPLE.record(), format_rfc3339(now))
    attempt_id = identifiers.new_id(identifiers.ATTEMPT, now)
    return Message(
        id=attempt_id, key=export_id, target_id=target_id, url=url, secret_sealed=None, body=body, at=now, nonce=new_nonce()
    )


def _changed(message: Message, overrides: Sequence[str]) -> Message:
    body: dict[str, Any] = json.loads(message.body)
    for override in overrides:
        _apply(override, body)
    return message._replace(body=canonical(body))


def _apply(override: str, body: dict[str, Any]) -> None:
    """Set one field; its parent objects must exist, the field itself need not."""
    path, colon, text = override.partition(":")
    *parents, name = path.split(".")
    if not (colon and name):
        raise click.BadParameter(f"{override!r} is not PATH:VALUE, such as ticket.title:Hello.", param_hint="--override")
    parent: Any = body
    for step in parents:
        parent = parent.get(step) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raise click.BadParameter(f"The body has no object at {'.'.join(parents)!r}.", param_hint="--override")
    parent[name] = _value(text)


def _value(text: str) -> Any:
    """Parse JSON; text that is not JSON is taken as it is."""
    try:
        return parse(text.encode())
    except MalformedJson:
        return text


def _is_local(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")
