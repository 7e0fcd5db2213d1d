"""`trigger`: send a signed sample ticket to a receiver, as a delivery would be sent, and tell what would follow.

For authors of receivers: it needs no database and no running installation, only the secret that both sides know. A receiver
on this machine may be anywhere; elsewhere it goes where deliveries may go. `--case` and `--all` send what a receiver has to
refuse or to know again as well; `--replay` sends a request once more that `listen --save` has kept.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bin.checks.machine import is_loopback
from bin.cli.installation import Refused, checked_settings
from bin.cli.records import json_option, print_record
from bin.cli.terminal import may_colour, secret_line
from bin.receiver_kit import saved_requests
from bin.receiver_kit.cases import CASES, NAMES, Answered, Case, Request, Result, Sample, try_case
from bin.receiver_kit.receiver import DEFAULT_PORT
from bin.receiver_kit.saved_requests import NotSaved, SavedRequest
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from schemas.base.strict_json import MalformedJson, canonical, parse
from schemas.base.timestamps import rfc3339
from schemas.exports.delivery import DELIVERED, Outcome, Verdict
from schemas.exports.response_excerpt import kept_answer
from schemas.exports.ticket import Source, Ticket, delivery_body
from schemas.settings.definitions import Settings
from schemas.url_policy.policy import TargetPolicy, parse_networks, parse_ports
from storage.db import identifiers
from storage.secrets.vault import Vault
from worker.delivery.outcomes import Schedule, decide_outcome
from worker.http.client import HttpClient
from worker.http.signed_request import Message, SignedPost, new_nonce
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: The status of a receiver that wants less at once.
_ASKS_TO_WAIT: Final = 429
#: An answer is a line or two of a terminal.
_LONGEST: Final = 200

_SAMPLE: Final = Ticket(
    title="Image without alternative text on /",
    description="Screen readers cannot tell what the picture shows.\n\nPage: https://shop.example/\nWhere: main > img.hero",
    severity="medium",
    page_url="https://shop.example/",
    labels=("website-risk", "severity:medium", "page:home"),
    evidence={"rule": "img-alt", "location": "main > img.hero"},
)


@click.command(
    epilog="""\b
Example:
  riskrelay trigger --to http://127.0.0.1:9000/ --override ticket.title:Hello
  printf %s "$SECRET" | riskrelay trigger --secret-stdin --override 'ticket.labels:["a", "b"]'
  riskrelay trigger --all
  riskrelay trigger --replay requests/20260131T120000.000000Z-exp_1.http

\b
Exit codes:
  0  the receiver accepted it; with --case or --all, every answer was right
  1  it did not, or could not be reached
  2  wrong usage or configuration"""
)
@click.option("--to", "url", default=f"http://127.0.0.1:{DEFAULT_PORT}/", show_default=True, help="The receiver.")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATH:VALUE",
    help="Change a member of the body: a dotted path, and JSON or plain text. May be repeated.",
)
@click.option("--case", "names", multiple=True, type=click.Choice(NAMES), help="Check one thing; may be repeated.")
@click.option("--all", "is_all", is_flag=True, help="Check everything that a receiver has to get right.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Send a request again that `listen --save` kept, byte for byte; a right receiver refuses its nonce.",
)
@click.option("--resign", is_flag=True, help="Sign what is replayed anew, with a fresh timestamp and nonce.")
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input, not WEBHOOK_SECRET.")
@json_option
def trigger(
    url: str,
    overrides: tuple[str, ...],
    names: tuple[str, ...],
    is_all: bool,
    replay: Path | None,
    resign: bool,
    secret_stdin: bool,
    as_json: bool,
) -> None:
    """Send a signed sample ticket to a receiver and explain its response.

    With --all, or --case for single ones, it sends what a receiver has to accept, to refuse and to know again, and tells
    which answers are right; no installation needs to run, and the receiver makes a few sample tickets.
    """
    chosen = CASES if is_all else tuple(case for case in CASES if case.name in names)
    if sum(map(bool, (overrides, chosen, replay))) > 1 or (resign and not replay):
        raise click.UsageError("--override, --case or --all, and --replay exclude each other; --resign goes with --replay.")
    settings = checked_settings()
    courier = _Courier(settings, url)
    if chosen:
        is_right = _check(courier, chosen, Sample(lambda: _message(url, ()), _secret(settings, secret_stdin)), as_json)
    elif replay:
        is_right = _replay(courier, replay, _secret(settings, secret_stdin) if resign else None, as_json)
    else:
        is_right = _deliver(courier, _message(url, overrides), _secret(settings, secret_stdin), as_json)
    if not is_right:
        raise SystemExit(1)


class _Courier:
    """Posts to one receiver, and judges its answers as a worker would."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self.client = _client(settings, url)
        self._schedule = Schedule(settings.retry_schedule_s, settings.max_age)

    def post(self, headers: dict[str, str], body: bytes) -> Outcome:
        """Send one request over a connection of its own, so that no answer depends on the one before."""
        outcome = self.client.post(self.url, headers, body)
        self.client.close()
        return outcome

    def verdict(self, outcome: Outcome, at: datetime) -> Verdict:
        """What a worker would make of a first attempt."""
        return decide_outcome(outcome, 1, at, utc_now(), 0.0, self._schedule)

    def ask(self, request: Request) -> Answered:
        """Send one request of a case."""
        outcome = self.post(request.headers, request.body)
        return Answered(request, outcome, self.verdict(outcome, utc_now()))


def _secret(settings: Settings, from_stdin: bool) -> str:
    try:
        secret = secret_line().decode() if from_stdin else settings.webhook_secret
    except UnicodeDecodeError:
        raise Refused("The secret is no UTF-8, which secrets of RiskRelay are.") from None
    if not secret:
        raise Refused("There is no secret to sign with; set WEBHOOK_SECRET, or use --secret-stdin and type it.")
    return secret


def _deliver(courier: _Courier, message: Message, secret: str, as_json: bool) -> bool:
    """Send one sample ticket; tell whether it was accepted."""
    sent = SignedPost(courier.client.post, Vault(()), secret).send(message)
    verdict = courier.verdict(sent, message.at)
    print_record(_record(message.url, message.key, message.at, sent, verdict), as_json)
    return verdict.outcome == DELIVERED


def _replay(courier: _Courier, path: Path, secret: str | None, as_json: bool) -> bool:
    """Send a request again as it was, or signed anew if there is a secret; tell whether it was accepted."""
    try:
        saved = saved_requests.read(path)
    except NotSaved as wrong:
        raise Refused(str(wrong)) from None
    now = utc_now()
    headers = saved.headers if secret is None else _signed_anew(saved, secret, now)
    sent = courier.post(headers, saved.body)
    verdict = courier.verdict(sent, now)
    key = next((value for name, value in headers.items() if name.lower() == "idempotency-key"), None)
    print_record(_record(courier.url, key, now, sent._replace(kept=kept_answer(sent.body)), verdict), as_json)
    return verdict.outcome == DELIVERED


def _signed_anew(saved: SavedRequest, secret: str, now: datetime) -> dict[str, str]:
    replaced = {SIGNATURE_HEADER.lower(), TIMESTAMP_HEADER.lower(), NONCE_HEADER.lower()}
    timestamp, nonce = int(now.timestamp()), new_nonce()
    return {
        **{name: value for name, value in saved.headers.items() if name.lower() not in replaced},
        TIMESTAMP_HEADER: str(timestamp),
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: sign(secret.encode(), timestamp, nonce, saved.body),
    }


def _check(courier: _Courier, cases: Sequence[Case], sample: Sample, as_json: bool) -> bool:
    """Try cases and print each as it comes, or all of them as JSON; tell whether every answer was right."""
    results: list[Result] = []
    for case in cases:
        results.append(try_case(case, sample, courier.ask))
        _stop_where_nobody_answers(courier.url, results)
        if not as_json:
            click.echo(_told(results[-1]), color=may_colour())
    right = sum(result.problem is None for result in results)
    if as_json:
        click.echo(
            json.dumps({"url": courier.url, "right": right, "wrong": len(results) - right, "cases": [*map(_case, results)]})
        )
    else:
        click.echo(f"{right} of {len(results)} right at {courier.url}")
    return right == len(results)


def _stop_where_nobody_answers(url: str, results: Sequence[Result]) -> None:
    """End where the very first request met nobody: what follows would tell the same a dozen times."""
    first = results[0].answers[0].outcome
    if len(results) == 1 and first.status is None:
        hint = "; TARGET_ALLOWED_NETWORKS, TARGET_ALLOWED_PORTS and TARGET_ALLOW_HTTP open more" if first.refused else ""
        raise Refused(f"{url} gave no answer: {first.error}{hint}.")


def _told(result: Result) -> str:
    """One case as a line, or two where something is wrong."""
    case, last = result.case, result.answers[-1]
    if result.problem is None:
        return f"{click.style('right', fg='green')}  {case.name:18}  {_plain(last.told)}"
    remedy = (
        "the receiver asks to wait; switch its rate limit off for this"
        if last.outcome.status == _ASKS_TO_WAIT
        else case.remedy
    )
    wrong = f"{click.style('wrong', fg='red', bold=True)}  {case.name:18}  {_plain(result.problem)}"
    return f"{wrong}\n{'':27}{case.sends}: {remedy}"


def _case(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "case": case.name,
        "sends": case.sends,
        "is_right": result.problem is None,
        "right": [answered.request.right for answered in result.answers],
        "answered": [answered.told for answered in result.answers],
        "problem": result.problem,
        "remedy": None if result.problem is None else case.remedy,
    }


def _plain(text: str) -> str:
    """What a receiver wrote, safe for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])


def _message(url: str, overrides: Sequence[str]) -> Message:
    now = utc_now()
    export_id, target_id = identifiers.new_id(identifiers.EXPORT, now), identifiers.new_id(identifiers.TARGET, now)
    source = Source("finding", identifiers.new_id(identifiers.FINDING, now), 1)
    body: dict[str, Any] = json.loads(delivery_body(export_id, target_id, source, _SAMPLE.record(), rfc3339(now)))
    for override in overrides:
        _apply(override, body)
    attempt_id = identifiers.new_id(identifiers.ATTEMPT, now)
    return Message(attempt_id, export_id, target_id, url, None, canonical(body), now, new_nonce())


def _apply(override: str, body: dict[str, Any]) -> None:
    """Change one member; what is on the way to it has to be there, the member itself need not."""
    path, colon, text = override.partition(":")
    *way, name = path.split(".")
    if not (colon and name):
        raise click.BadParameter(f"{override!r} is not PATH:VALUE, such as ticket.title:Hello.", param_hint="--override")
    place: Any = body
    for step in way:
        place = place.get(step) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        raise click.BadParameter(f"The body has no object at {'.'.join(way)!r}.", param_hint="--override")
    place[name] = _value(text)


def _value(text: str) -> Any:
    """Read JSON where it is any, else take the text as it is."""
    try:
        return parse(text.encode())
    except (MalformedJson, UnicodeEncodeError):
        return text


def _client(settings: Settings, url: str) -> HttpClient:
    policy = settings.target_policy
    if _is_here(url):
        policy = TargetPolicy(True, parse_ports("1-65535"), (*parse_networks("127.0.0.0/8,::1/128"),))
    return HttpClient(policy, DnsResolver(), settings.delivery_timeout_s, settings.connect_timeout_s, connections=1)


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False  # and the client says what is wrong with it


def _record(url: str, key: str | None, at: datetime, sent: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Return what was sent and what came of it, as an attempt tells it."""
    return {
        "url": url,
        "idempotency_key": key,
        "outcome": verdict.outcome,
        "response_status": sent.status,
        "error_code": verdict.error_code,
        "retry_in_s": _seconds_until_retry(at, verdict),
        "provider_ticket_id": verdict.provider_ticket_id,
        "duration_ms": sent.timings.total_ms,
        "answer": sent.kept,
    }


def _seconds_until_retry(at: datetime, verdict: Verdict) -> int | None:
    if verdict.next_attempt_at is None:
        return None
    return round((verdict.next_attempt_at - at).total_seconds())
