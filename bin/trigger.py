"""`trigger`: send a signed sample ticket to a receiver, as a delivery would be sent, and tell what would follow.

For authors of receivers: it needs no database and no running installation, only the secret that both sides know. A receiver
on this machine may be anywhere; elsewhere it goes where deliveries may go.
"""

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bin.installation import Refused, checked_settings
from bin.listen import DEFAULT_PORT, secret_line
from bin.machine_checks import is_loopback
from bin.records import json_option, print_record
from schemas.delivery import DELIVERED, Outcome, Verdict
from schemas.settings import Settings
from schemas.strict_json import MalformedJson, canonical, parse
from schemas.target_url import TargetPolicy, parse_networks, parse_ports
from schemas.ticket import Source, Ticket, delivery_body
from schemas.times import rfc3339
from storage import identifiers
from storage.clock import utc_now
from storage.name_lookup import NameLookup
from storage.vault import Vault
from worker.http_client import HttpClient
from worker.retries import Schedule, judge
from worker.signed_post import Message, SignedPost, new_nonce

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

\b
Exit codes:
  0  the receiver accepted it
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
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input, not WEBHOOK_SECRET.")
@json_option
def trigger(url: str, overrides: tuple[str, ...], secret_stdin: bool, as_json: bool) -> None:
    """Send a signed sample ticket to a receiver, and tell what would follow from its answer."""
    settings = checked_settings()
    secret = secret_line().decode("utf-8", "replace") if secret_stdin else settings.webhook_secret
    if not secret:
        raise Refused("There is no secret to sign with; set WEBHOOK_SECRET, or use --secret-stdin and type it.")
    message = _message(url, overrides)
    sent = SignedPost(_client(settings, url).post, Vault(()), secret).send(message)
    verdict = judge(sent, 1, message.at, utc_now(), 0.0, Schedule(settings.retry_schedule_s, settings.max_age))
    print_record(_record(message, sent, verdict), as_json)
    if verdict.outcome != DELIVERED:
        raise SystemExit(1)


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
    return HttpClient(policy, NameLookup(), settings.delivery_timeout_s, settings.connect_timeout_s, connections=1)


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False  # and the client says what is wrong with it


def _record(message: Message, sent: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Return what was sent and what came of it, as an attempt tells it."""
    return {
        "url": message.url,
        "idempotency_key": message.key,
        "outcome": verdict.outcome,
        "response_status": sent.status,
        "error_code": verdict.error_code,
        "retry_in_s": _seconds_until_retry(message, verdict),
        "provider_ticket_id": verdict.provider_ticket_id,
        "duration_ms": sent.timings.total_ms,
        "answer": sent.kept,
    }


def _seconds_until_retry(message: Message, verdict: Verdict) -> int | None:
    if verdict.next_attempt_at is None:
        return None
    return round((verdict.next_attempt_at - message.at).total_seconds())
