"""`alert`: test the channels of alerts, and list alerts."""

from contextlib import closing
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import click

from bin.cli.database_command import with_database
from bin.cli.installation import checked_settings, opened
from bin.cli.output import Refused
from bin.cli.records import Record, RecordTable, all_pages, json_option, print_record
from runtime.clock import utc_now
from schemas.alerts.alert import Alert, describe
from schemas.alerts.messages import trial_body
from schemas.base.principal import OPERATOR
from schemas.base.timestamps import format_rfc3339, format_rfc3339_or_none
from service.operations import alerts
from storage.db import identifiers
from worker.background.alert_channels import AlertSender
from worker.composition import compose_client

_ALERTS: Final = RecordTable(
    ("id", "state", "alert", "first_at", "last_at", "count", "acknowledged_at"), "There are no alerts."
)
#: How many recovered alerts a table shows besides the open ones.
_RECOVERED_SHOWN: Final = 100


alert: Final = click.Group("alert")


@alert.command()
@json_option
def test(as_json: bool) -> None:
    """Send a test message to each configured channel, and print each response.

    Example: riskrelay alert test --json

    Exit codes: 0 every channel accepted it, 1 a channel did not, 2 no channel is configured, or wrong usage or settings.
    """
    settings, now = checked_settings(), utc_now()
    if not settings.alert_channels:
        raise click.UsageError("No channel is configured. Set SMTP_URL, ALERT_SLACK_URL or another one, see docs/alerts.md.")
    body = trial_body(identifiers.new_id(identifiers.ALERT_MESSAGE, now), now)
    with closing(compose_client(settings, 1)) as client:
        sender = AlertSender(settings, client)
        responses = {channel: sender.send(channel, body, now) for channel in settings.alert_channels}
    print_record({channel.value: response.text for channel, response in responses.items()}, as_json)
    failed = [channel.value for channel, response in responses.items() if not response.is_sent]
    if failed:
        raise Refused(f"Not sent: {', '.join(failed)}.")


@alert.command()
@click.argument("alert_id")
@with_database()
def acknowledge(alert_id: str) -> Record:
    """Silence an open alert until it occurs again.

    Example: riskrelay alert acknowledge alr_…

    Exit codes: 0 silenced or ended, 1 not found, 2 wrong settings.
    """
    alerts.acknowledge(alert_id, OPERATOR, is_operator=True)
    return {"id": alert_id, "is_silent": True}


@alert.command("list")
@json_option
def list_alerts(as_json: bool) -> None:
    """List alerts: open alerts, the latest first, then ended alerts, newest first; a table shows 100.

    Example: riskrelay alert list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    with opened():
        recovered = all_pages(partial(alerts.list_recovered, OPERATOR, is_operator=True), attrgetter("id"))
        shown = islice(recovered, None if as_json else _RECOVERED_SHOWN)
        found = [*alerts.list_open(OPERATOR, None, is_operator=True), *shown]
    _ALERTS.show([_record(each) for each in found], as_json)


def _record(each: Alert) -> dict[str, Any]:
    text = describe(each)
    return {
        "id": each.id,
        "kind": each.kind.value,
        "state": each.state.value,
        "alert": f"{text.headline}: {text.subject}" if text.subject else text.headline,
        "what_to_do": text.advice,
        "account_id": each.account_id,
        "first_at": format_rfc3339(each.first_at),
        "last_at": format_rfc3339(each.last_at),
        "count": each.count,
        "acknowledged_at": format_rfc3339_or_none(each.acknowledged_at),
        "acknowledged_by": each.acknowledged_by,
    }
