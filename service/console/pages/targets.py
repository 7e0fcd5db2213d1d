"""`/console/targets`: where tickets go, how deliveries fare there, and everything that a person may do to a target.

A secret comes in by a form and goes nowhere but into the vault: what is shown of it is its fingerprint. What dials or
delivers needs an account that may use webhook targets, as in the API.
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
from schemas.settings.definitions import RouteFamily
from schemas.settings.secret_text import SecretFault, secret_from
from schemas.targets.target import APPROVABLE, BREAKER_OPEN, PINGABLE, RESUMABLE, Target, TargetStatus, host_of
from service.console import charts
from service.console.layout import CONSOLE, Action, Frame, Page
from service.console.sessions import Visitor
from service.http.paging import next_page, read_page
from service.operations.targets import TargetOperations
from storage.db import engine, identifiers
from storage.exports import delivery_hours, recoveries
from storage.exports import transitions as exports
from storage.reporting.dashboard_queries import MOST_COUNTED
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.targets import pings, targets

TARGETS: Final = f"{CONSOLE}/targets"
TARGET: Final = f"{TARGETS}/{{target_id}}"

#: Recoveries of a target that its page shows; the list has the others.
_LATEST: Final = 5
#: What the form offers to recover, beside a moment of one's own; the second is chosen.
_WINDOWS: Final = (("1h", "the last hour"), ("24h", "the last 24 hours"), ("7d", "the last 7 days"))

_log: Final = logging.getLogger(__name__)


class Window(NamedTuple):
    """What may be recovered: since when, in the words of the form and of a person, and how many exports that would be."""

    since: str
    told: str
    exports: int


class Targets(Page):
    """Lists the account's targets, the newest first, with how the last day went for each."""

    path = TARGETS
    template = "targets.html"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, operations: TargetOperations) -> None:
        super().__init__(frame)
        self._targets = operations

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the list, and the filter that leads to it."""
        page = read_page(req, identifiers.TARGET, {"status": tuple(TargetStatus)})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        now, fingerprint = utc_now(), self._targets.default_secret_fingerprint
        found = targets.list_page(visitor.account_id, fingerprint, page.fetch_limit, now, page.before, status)
        shown = found[: page.limit]
        return {
            "shown": [(target, host_of(target.base_url)) for target in shown],
            "days": delivery_hours.count_last_day([target.id for target in shown], now),
            "filters": page.filters,
            "statuses": tuple(TargetStatus),
            "next": next_page(page, [target.id for target in found]),
            "is_first": page.before is None,
            "at": now,
            "breaker_open": BREAKER_OPEN,
        }


class TargetPage(Page):
    """Shows one target, and what may be done to it; `?since=` counts what a recovery would put back."""

    path = TARGET
    template = "target.html"
    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, operations: TargetOperations) -> None:
        super().__init__(frame)
        self._targets = operations

    def content(self, req: falcon.Request, visitor: Visitor, **ids: str) -> Mapping[str, Any]:
        """Return the target with its day, what waits for it, and what may be recovered. Raises TargetNotFound."""
        target, now = self._targets.get(ids["target_id"], visitor.principal), utc_now()
        day = delivery_hours.hours(target.id, now)
        return {
            "target": target,
            "host": host_of(target.base_url),
            "at": now,
            "chart": charts.of_hours(day),
            "hours": day,
            "total": delivery_hours.total(day),
            "waiting": exports.count_waiting(target.id, MOST_COUNTED + 1),
            "most": MOST_COUNTED,
            "windows": _windows(target.id, req.get_param("since"), now),
            "recoveries": recoveries.list_page(limit=_LATEST, target_id=target.id),
            "ping": pings.latest(target.id),
            "may": _may(target, visitor, now),
            "breaker_open": BREAKER_OPEN,
        }


class _TargetAction(Action):
    """A form of a target's page, which leads back there."""

    family = RouteFamily.CONSOLE

    def __init__(self, frame: Frame, operations: TargetOperations) -> None:
        super().__init__(frame)
        self._targets = operations

    def _back(self, resp: falcon.Response, target_id: str, done: str) -> None:
        self._frame.go(resp, f"/targets/{target_id}", done=done)


class Turn(_TargetAction):
    """Pauses or disables a target: whoever has one may turn it off."""

    _DONE: Final = {"pause": "paused", "disable": "disabled"}

    def __init__(self, verb: str, frame: Frame, operations: TargetOperations) -> None:
        super().__init__(frame, operations)
        self.path = f"{TARGET}/{verb}"
        self._verb = verb

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Turn it. Raises TargetNotFound, Conflict."""
        self._targets.change_status(ids["target_id"], self._verb, visitor.principal)
        self._back(resp, ids["target_id"], self._DONE[self._verb])


class Resume(_TargetAction):
    """Delivers to a target again, once its address has passed the policy again."""

    path = f"{TARGET}/resume"

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Look at it, resume it, and notify the workers. Raises TargetNotFound, Conflict, ValidationFailed, Forbidden."""
        require_webhooks(visitor)
        validation = self._targets.check_before_resuming(ids["target_id"], visitor.principal)
        with engine.transaction():
            self._targets.resume(ids["target_id"], visitor.principal, validation)
        self._targets.wake_workers()
        self._back(resp, ids["target_id"], "resumed")


class Validate(_TargetAction):
    """Looks at a target as it is now."""

    path = f"{TARGET}/validate"

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Have it looked at; what was found stands on its page. Raises TargetNotFound, Forbidden."""
        require_webhooks(visitor)
        self._targets.validate(ids["target_id"], visitor.principal)
        why_not = self._targets.get(ids["target_id"], visitor.principal).validation_reason
        self._back(resp, ids["target_id"], "validated" if why_not is None else "validation_failed")


class PingTarget(_TargetAction):
    """Has a worker send a signed test event."""

    path = f"{TARGET}/ping"

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Wait for its end; what came of it stands on the target's page. Raises TargetNotFound, Conflict, Forbidden."""
        require_webhooks(visitor)
        found = self._targets.ping(ids["target_id"], visitor.principal)
        self._back(resp, ids["target_id"], "pinged" if found.delivered else "ping_failed")


class SetSecret(_TargetAction):
    """Gives a target its own signing secret; nothing ever shows it again."""

    path = f"{TARGET}/secret"

    def __init__(self, frame: Frame, operations: TargetOperations, vault: Vault) -> None:
        super().__init__(frame, operations)
        self._vault = vault

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Seal it. Raises TargetNotFound, ValidationFailed, ServiceUnavailable, Forbidden."""
        # A target without any secret is active with its first one.
        require_webhooks(visitor)
        target, principal = self._targets.get(ids["target_id"], visitor.principal), visitor.principal
        secret = secret_from(form.get("secret", ""))
        if isinstance(secret, SecretFault):
            raise ValidationFailed(problem("/secret", secret.value))
        self._require_own_keys()
        targets.set_secret(target.id, secret, self._vault, utc_now(), principal.key, principal.account_id)
        self._back(resp, target.id, "secret_set")

    def _require_own_keys(self) -> None:
        """Nothing is sealed with keys that are not this installation's."""
        try:
            check_keys(self._vault, utc_now())
        except (NoEncryptionKey, WrongEncryptionKey) as wrong:
            _log.error("a secret was not set: %s", wrong.message)
            raise ServiceUnavailable(
                "ENCRYPTION_KEYS does not hold this installation's key, so no secret can be kept. Nothing was changed."
            ) from None


def require_webhooks(visitor: Visitor) -> None:
    """Raises WebhooksForbidden for an account that may not use them."""
    if not visitor.principal.may_use_webhooks:
        raise WebhooksForbidden


def _windows(target_id: str, asked: str | None, now: datetime) -> list[Window]:
    """Return what may be recovered: what is offered to everybody, and what was asked for, all counted at once."""
    offered = [*_WINDOWS, *([(asked, "")] if asked else [])]
    moments = [past_from(since, now) for since, _ in offered]
    counts = exports.recoverable_since(target_id, moments, MOST_COUNTED + 1)
    return [Window(since, told, count) for (since, told), count in zip(offered, counts, strict=True)]


def _may(target: Target, visitor: Visitor, now: datetime) -> Mapping[str, bool]:
    """Return what the visitor may do to a target as it is: the page offers nothing else."""
    dials = visitor.principal.may_use_webhooks
    return {
        "validate": dials,
        "ping": dials and target.status in PINGABLE,
        "pause": target.status is TargetStatus.ACTIVE,
        "resume": dials and (target.status in RESUMABLE or target.is_held(now)),
        "disable": target.status is not TargetStatus.DISABLED,
        "secret": dials,
        "recover": dials and target.status in APPROVABLE,
    }
