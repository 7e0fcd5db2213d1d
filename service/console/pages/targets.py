"""`/console/targets`: the account's targets with their delivery statistics, and the forms that change a target.

A submitted secret is stored only in the vault; pages show its fingerprint. As in the API, actions that connect or deliver
need an account that may use webhook targets.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.errors import NoEncryptionKey, ServiceUnavailable, ValidationFailed, WebhooksForbidden, WrongEncryptionKey
from schemas.base.fields import problem
from schemas.exports.recoveries import past_from
from schemas.settings.secret_text import SecretFault, secret_from
from schemas.targets.target import BREAKER_OPEN, ENABLED, PINGABLE, RESUMABLE, Target, TargetStatus, host_of
from service.console import charts
from service.console.layout import CONSOLE, Action, ConsolePage, PageLayout, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from service.operations.targets import TargetOperations
from storage.db import engine, identifiers
from storage.exports import delivery_hours, queries, recoveries
from storage.reporting.dashboard_queries import MOST_COUNTED
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.targets import pings, targets

TARGETS: Final = f"{CONSOLE}/targets"
TARGET: Final = f"{TARGETS}/{{target_id}}"

#: Recoveries on the page of a target; the list of recoveries has all of them.
_RECENT: Final = 5
#: The time windows of the recovery form, besides an entered start time; the second one is preselected.
_WINDOWS: Final = (("1h", "the last hour"), ("24h", "the last 24 hours"), ("7d", "the last 7 days"))

_log: Final = logging.getLogger(__name__)


class RecoveryWindow(NamedTuple):
    """A time window of the recovery form with its number of exports; `name` is empty for an entered start time."""

    since: str
    name: str
    exports: int


class TargetsPage(ConsolePage):
    """Lists the account's targets, newest first, with the failure rate of the last day."""

    path = TARGETS
    template = "targets.html"

    def __init__(self, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout)
        self._targets = operations

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the targets."""
        page = read_page(req, identifiers.TARGET, {"status": tuple(TargetStatus)})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        now, default = utc_now(), self._targets.default_secret
        found = targets.list_page(user.account_id, default, page.fetch_limit, now, page.before, status)
        shown = found[: page.limit]
        return {
            **list_content(page, found),
            "shown": [(target, host_of(target.base_url)) for target in shown],
            "days": delivery_hours.count_last_day([target.id for target in shown], now),
            "statuses": tuple(TargetStatus),
            "at": now,
            "breaker_open": BREAKER_OPEN,
        }


class TargetPage(ConsolePage):
    """Shows one target; `?since=` adds a time window to the recovery form."""

    path = TARGET
    template = "target.html"

    def __init__(self, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout)
        self._targets = operations

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the target with its statistics and possible actions. Raises TargetNotFound."""
        target, now = self._targets.get(ids["target_id"], user.principal), utc_now()
        day = delivery_hours.hours(target.id, now)
        return {
            "target": target,
            "host": host_of(target.base_url),
            "at": now,
            "chart": charts.hourly_chart(day),
            "hours": day,
            "total": delivery_hours.total(day),
            "waiting": queries.count_waiting(target.id, MOST_COUNTED + 1),
            "most": MOST_COUNTED,
            "windows": _windows(target.id, req.get_param("since"), now),
            "recoveries": recoveries.list_page(limit=_RECENT, target_id=target.id),
            "ping": pings.latest(target.id),
            "may": _may(target, user, now),
            "breaker_open": BREAKER_OPEN,
        }


class TargetPageAction(Action):
    """A form on a target's page."""

    def __init__(self, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout)
        self._targets = operations


class StopTarget(TargetPageAction):
    """Pauses or disables a target, which every account may do."""

    _DONE: Final = {"pause": "paused", "disable": "disabled"}

    def __init__(self, verb: str, layout: PageLayout, operations: TargetOperations) -> None:
        super().__init__(layout, operations)
        self.path = f"{TARGET}/{verb}"
        self._verb = verb

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Pause or disable the target. Raises TargetNotFound, Conflict."""
        self._targets.change_status(ids["target_id"], self._verb, user.principal)
        return _to_page(ids["target_id"], self._DONE[self._verb])


class ResumeTarget(TargetPageAction):
    """Resumes a target after its address passes the policy again."""

    path = f"{TARGET}/resume"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Validate the address, resume the target, notify the workers.

        Raises TargetNotFound, Conflict, ValidationFailed, Forbidden.
        """
        require_webhooks(user)
        validation = self._targets.check_before_resuming(ids["target_id"], user.principal)
        with engine.transaction():
            self._targets.resume(ids["target_id"], user.principal, validation)
        self._targets.wake_workers()
        return _to_page(ids["target_id"], "resumed")


class ValidateTarget(TargetPageAction):
    """Validates a target's address and certificate."""

    path = f"{TARGET}/validate"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Wait for a worker's validation; the target's page shows the result. Raises TargetNotFound, Forbidden."""
        require_webhooks(user)
        self._targets.validate(ids["target_id"], user.principal)
        why_not = self._targets.get(ids["target_id"], user.principal).validation_reason
        return _to_page(ids["target_id"], "validated" if why_not is None else "validation_failed")


class PingTarget(TargetPageAction):
    """Sends a signed test event through a worker."""

    path = f"{TARGET}/ping"

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Wait for the ping; the target's page shows the result. Raises TargetNotFound, Conflict, Forbidden."""
        require_webhooks(user)
        found = self._targets.ping(ids["target_id"], user.principal)
        return _to_page(ids["target_id"], "pinged" if found.delivered else "ping_failed")


class SetTargetSecret(TargetPageAction):
    """Sets a target's own signing secret; no page or command shows it again."""

    path = f"{TARGET}/secret"

    def __init__(self, layout: PageLayout, operations: TargetOperations, vault: Vault) -> None:
        super().__init__(layout, operations)
        self._vault = vault

    def act(self, user: ConsoleUser, form: Mapping[str, str], **ids: str) -> Redirect:
        """Encrypt and store the secret. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden."""
        # The first secret activates an inactive target, which then connects.
        require_webhooks(user)
        target, principal = self._targets.get(ids["target_id"], user.principal), user.principal
        secret = secret_from(form.get("secret", ""))
        if isinstance(secret, SecretFault):
            raise ValidationFailed(problem("/secret", secret.value))
        self._require_own_keys()
        targets.set_secret(target.id, secret, self._vault, utc_now(), principal.key, principal.account_id)
        return _to_page(target.id, "secret_set")

    def _require_own_keys(self) -> None:
        """Raises ServiceUnavailable if ENCRYPTION_KEYS are not the keys of this installation."""
        try:
            check_keys(self._vault, utc_now())
        except (NoEncryptionKey, WrongEncryptionKey) as wrong:
            _log.error("secret not set: %s", wrong.message)
            raise ServiceUnavailable(
                "The secret was not set, because ENCRYPTION_KEYS lacks this installation's key."
            ) from None


def _to_page(target_id: str, done: str) -> Redirect:
    return Redirect(f"/targets/{target_id}", done)


def require_webhooks(user: ConsoleUser) -> None:
    """Raises WebhooksForbidden for an account that may not use webhook targets."""
    if not user.principal.may_use_webhooks:
        raise WebhooksForbidden


def _windows(target_id: str, entered: str | None, now: datetime) -> list[RecoveryWindow]:
    """Return the time windows of the recovery form, counted with one query."""
    offered = [*_WINDOWS, *([(entered, "")] if entered else [])]
    moments = [past_from(since, now) for since, _ in offered]
    counts = queries.count_recoverable_since(target_id, moments, MOST_COUNTED + 1)
    return [RecoveryWindow(since, name, count) for (since, name), count in zip(offered, counts, strict=True)]


def _may(target: Target, user: ConsoleUser, now: datetime) -> Mapping[str, bool]:
    """Return which actions the page offers for the target in its current state."""
    may_connect = user.principal.may_use_webhooks
    return {
        "validate": may_connect,
        "ping": may_connect and target.status in PINGABLE,
        "pause": target.status is TargetStatus.ACTIVE,
        "resume": may_connect and (target.status in RESUMABLE or target.is_held(now)),
        "disable": target.status is not TargetStatus.DISABLED,
        "secret": may_connect,
        "recover": may_connect and target.status in ENABLED,
    }
