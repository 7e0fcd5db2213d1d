"""Use cases of alerts: list and acknowledge.

An account sees the alerts of its own targets, exports and rules; the operator's account sees those of the whole
installation.
"""

from collections.abc import Sequence

from runtime.clock import utc_now
from schemas.alerts.alert import Alert
from schemas.base.principal import Actor
from storage.reporting import alerts
from storage.reporting.alerts import MAX_OPEN


def list_open(actor: Actor, limit: int | None = MAX_OPEN, *, is_operator: bool) -> Sequence[Alert]:
    """Return up to `limit` open alerts, latest first; all of them if `limit` is None."""
    return alerts.list_open(_account(actor, is_operator), limit)


def list_recovered(actor: Actor, limit: int, before: str | None = None, *, is_operator: bool) -> Sequence[Alert]:
    """Return up to `limit` recovered alerts, newest first, older than the alert with the id `before` if that is given."""
    return alerts.list_recovered(limit, before, _account(actor, is_operator))


def acknowledge(alert_id: str, actor: Actor, *, is_operator: bool) -> None:
    """Silence an open alert until it occurs again. Raises NotFound."""
    alerts.acknowledge(alert_id, _account(actor, is_operator), utc_now(), actor.key)


def _account(actor: Actor, is_operator: bool) -> int | None:
    return None if is_operator else actor.account_id
