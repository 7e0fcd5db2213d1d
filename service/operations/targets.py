"""Use cases of targets: create, edit, remove, pause, resume, disable, validate, ping.

An account that may not use webhook targets may still read, pause, disable and remove its targets; the callers of this module
refuse everything else. No transaction and no connection is held while waiting for a resolver, a worker or a receiver.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import Conflict, FieldProblem, RiskRelayError, ValidationFailed, WebhooksForbidden
from schemas.base.principal import Actor, OperatorPrincipal, TokenPrincipal
from schemas.content_policy.checked_form import read_checked
from schemas.targets.forms import settings_form
from schemas.targets.pings import BEGIN_WITHIN_S, Ping, PingResult
from schemas.targets.target import RESUMABLE, Target, TargetEdit, TargetRequest, TargetStatus
from schemas.targets.validations import Validation
from schemas.trackers.registry import GENERIC_WEBHOOK, TRACKERS
from service.operations.address_check import AddressCheck
from storage.accounts.account_limits import AccountLimits, Limited
from storage.accounts.accounts import require_webhooks
from storage.db import engine
from storage.exports import transitions, worker_heartbeats
from storage.exports.events import deliveries
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, pings, targets, validations
from storage.targets.validations import RequestedValidation

#: The `status_reason` of a target that a client paused or disabled; for the operator it is the actor's key.
BY_CLIENT: Final = "client"
#: The problem code of a URL that is not a page of the target's tracker.
NO_TRACKER_PAGE: Final = "no_tracker_page"

#: Pause between two reads of a row. The average delay of the response is half of it.
_POLL_INTERVAL_S: Final = 0.05
#: Time that a worker may need after the deadline of its request: to write the result, and to wait for another writer.
_MARGIN_S: Final = 2.0

#: The jobs of a worker for which a request waits.
_Job = TypeVar("_Job", Ping, RequestedValidation)


@dataclass(frozen=True, slots=True)
class TargetOperations:
    """Changes targets of the caller's account. Every method that takes a target id raises TargetNotFound."""

    check: AddressCheck
    wake_ups: WakeUpQueue
    default_secret: DefaultSecret
    deployment_mode: str
    delivery_timeout_s: float
    limits: AccountLimits

    def get(self, target_id: str, actor: Actor) -> Target:
        """Return the target in its current state."""
        return targets.get(target_id, self.default_secret, actor.account_id)

    def require_safe(self, request: TargetRequest, account_id: int) -> None:
        """Check the URLs of a new target of an account. Waits for the resolver. Raises ValidationFailed."""
        self.check.require_safe(request.base_url, account_id)
        self._require_safe_api(request.provider_settings, account_id)
        _require_page(request.provider_key, request.base_url, request.provider_settings)

    def create(self, request: TargetRequest, account_id: int, actor: Actor) -> Target:
        """Store a target whose URL has passed `require_safe`. Raises ValidationFailed, also at the account's limit."""
        now = utc_now()
        with engine.transaction():
            target = targets.create(request, account_id, self.deployment_mode, self.default_secret, now, actor.key)
            self.limits.require_room(account_id, Limited.TARGETS, 1, now)
            if isinstance(actor, OperatorPrincipal):
                # The settings of a shell may differ from those of the workers, so a worker checks the URL too.
                validations.request(target.id, None, now, actor.key)
        return target

    def require_safe_edit(self, target_id: str, edit: TargetEdit, actor: Actor) -> None:
        """Check a new URL and new settings like those of a new target. Raises ValidationFailed."""
        target = self.get(target_id, actor)
        engine.release()
        edit = _checked_edit(edit, target)
        base_url = target.base_url if edit.base_url is None else edit.base_url
        if base_url != target.base_url:
            self.check.require_safe(base_url, target.account_id)
        if base_url != target.base_url or edit.provider_settings is not None:
            settings = target.provider_settings if edit.provider_settings is None else edit.provider_settings
            self._require_safe_api(settings, target.account_id)
            _require_page(target.provider_key, base_url, settings)

    def edit(self, target_id: str, edit: TargetEdit, actor: Actor) -> None:
        """Change a target after `require_safe_edit`; waiting exports are sent to the new URL.

        Call `Operations.wake_workers` after the commit. Raises WebhooksForbidden for a new URL.
        """
        now = utc_now()
        if edit.provider_settings is not None:
            edit = _checked_edit(edit, self.get(target_id, actor))
        with engine.transaction():
            is_moved = changes.edit(target_id, edit, self.default_secret, now, actor.key, actor.account_id)
            if edit.provider_settings is not None or (is_moved and isinstance(actor, OperatorPrincipal)):
                # The settings of a shell may differ from those of the workers, so a worker checks the URL too. And only the
                # tracker itself can confirm that its settings are right.
                validations.request(target_id, None, now, actor.key)

    def set_secret(self, target_id: str, secret: str, vault: Vault, actor: Actor) -> str:
        """Give a target its own secret and return the fingerprint; a worker validates the token of a tracker.

        Call `Operations.wake_workers` after the commit.
        """
        now = utc_now()
        with engine.transaction():
            fingerprint = targets.set_secret(target_id, secret, vault, now, actor.key, actor.account_id)
            if self.get(target_id, actor).is_tracker:
                validations.request(target_id, actor.account_id, now, actor.key)
        return fingerprint

    def remove(self, target_id: str, actor: Actor) -> None:
        """Remove a target for which no export waits, and erase its secret. Raises TargetInUse, a Conflict."""
        changes.remove(target_id, utc_now(), actor.key, actor.account_id)

    def change_status(self, target_id: str, verb: str, actor: Actor) -> None:
        """Pause, disable or resume a target; repeating this changes nothing. Raises Conflict if its state forbids it.

        Resuming a tracker's target also makes the exports due that configuration errors blocked there.
        """
        now, why = utc_now(), BY_CLIENT if isinstance(actor, TokenPrincipal) else actor.key
        default, account_id = self.default_secret, actor.account_id
        with engine.transaction():
            targets.change_status(target_id, verb, now, actor.key, why, default=default, account_id=account_id)
            if verb in {"resume", "disable"}:
                # The waiting events are then sent, or end if the target is disabled. A target with waiting events cannot be
                # removed.
                deliveries.make_due(target_id, now)
            if verb == "resume" and targets.get(target_id, default).provider_key != GENERIC_WEBHOOK:
                transitions.requeue_blocked(target_id, now, actor.key)

    def check_before_resuming(self, target_id: str, actor: Actor) -> Validation | None:
        """Check the address of a target before it is resumed; return None if its status does not allow a resumption.

        Waits for the resolver. For a client, any failure raises ValidationFailed on `/base_url`. The operator may resume a
        paused target whose name does not resolve now; any other failure raises Conflict.
        """
        target = self.get(target_id, actor)
        if target.status not in RESUMABLE:
            return None
        engine.release()
        if isinstance(actor, TokenPrincipal):
            self.check.require_safe(target.base_url, actor.account_id)
            return Validation(is_partial=True, base_url=target.base_url)
        found = self.check.check(target.base_url, actor.account_id)
        if found.is_refused or (target.status is TargetStatus.BLOCKED and not found.has_passed):
            raise Conflict(f"Target {target_id} stays {target.status}: {found.reason}. {self.check.explain(found)}")
        return found

    def resume(self, target_id: str, actor: Actor, validation: Validation | None) -> None:
        """Resume deliveries; `validation` is the result of `check_before_resuming`.

        Call `Operations.wake_workers` after the commit. Raises Conflict, WebhooksForbidden.
        """
        # Lock the account before the target, as `account set --webhooks off` does: the reverse order could deadlock with it.
        require_webhooks(self.get(target_id, actor).account_id)
        if validation is not None and validation.has_passed:
            targets.record_validation(target_id, actor.account_id, validation, utc_now(), actor.key)
        self.change_status(target_id, "resume", actor)

    def check_and_resume(self, target_id: str, actor: OperatorPrincipal) -> None:
        """Resume the target if its address is allowed here, and have a worker validate it. Raises Conflict.

        The result of this check is not recorded, because the settings of a shell may differ from those of the workers.
        """
        self.check_before_resuming(target_id, actor)
        with engine.transaction():
            self.resume(target_id, actor, None)
            validations.request(target_id, None, utc_now(), actor.key)

    def resume_all_paused(self, actor: OperatorPrincipal) -> tuple[list[str], list[RiskRelayError]]:
        """Resume every target that a person or a restore has paused.

        Return the ids of the resumed targets, and the errors of the targets that were not resumed.
        """
        resumed, refusals = list[str](), list[RiskRelayError]()
        for target in targets.list_all(self.default_secret):
            if target.status is TargetStatus.PAUSED:
                try:
                    self.check_and_resume(target.id, actor)
                    resumed.append(target.id)
                except (Conflict, WebhooksForbidden) as refused:
                    refusals.append(refused)
        return resumed, refusals

    def validate(self, target_id: str, actor: Actor) -> bool:
        """Check the target's URL and addresses here, and its connection and certificate in a worker; record the result.

        Return whether a worker did its part. A refused address blocks the target. Raises ServiceUnavailable if our resolver
        is overloaded.
        """
        url = self.get(target_id, actor).base_url
        engine.release()
        found = self.check.validate(url, actor.account_id)
        if not found.has_passed:
            targets.record_validation(target_id, actor.account_id, found, utc_now(), actor.key)
            engine.release()
            return False

        def give_up(requested_at: datetime, has_begun: bool) -> bool:
            # If no worker validates in time, the result of the check in this process is recorded.
            end = validations.stop_waiting if has_begun else validations.cancel_unstarted
            return end(target_id, requested_at, utc_now(), actor.key)

        return self._is_validated(target_id, actor, give_up)

    def validate_by_worker(self, target_id: str, actor: Actor) -> bool:
        """Have a running worker validate the target with the worker's settings; return whether a worker did.

        Without a worker's result nothing is recorded, because the settings of a shell may differ from those of the workers.
        """
        self.get(target_id, actor)
        if not self.has_worker():
            return False
        return self._is_validated(target_id, actor, lambda requested_at, _: validations.cancel(target_id, requested_at))

    def has_worker(self) -> bool:
        """Return whether any worker has a recent heartbeat."""
        count = worker_heartbeats.count_alive(utc_now())
        engine.release()
        return count > 0

    def ping(self, target_id: str, actor: Actor, request_sha256: str | None = None) -> PingResult:
        """Have a worker send a signed test event to the target, and return the result.

        A request with the digest of an earlier keyed request gets the result of the earlier ping. Raises Conflict.
        """
        account_id = actor.account_id
        if account_id is None:
            account_id = self.get(target_id, actor).account_id
        ping_id = pings.request(target_id, account_id, utc_now(), actor.key, request_sha256)

        def give_up(has_begun: bool) -> bool:
            end = pings.stop_waiting if has_begun else pings.cancel_unstarted
            return end(ping_id, utc_now())

        ended, _ = self._wait(lambda: pings.get(ping_id), give_up)
        assert ended.result is not None  # noqa: S101 - a ping that is over has a result
        return ended.result

    def _require_safe_api(self, settings: Mapping[str, Any], account_id: int) -> None:
        """Check the address of a tracker's API if the settings have one."""
        if "api_base" in settings:
            self.check.require_safe(settings["api_base"], account_id, "/provider_settings/api_base")

    def _is_validated(self, target_id: str, actor: Actor, give_up: Callable[[datetime, bool], bool]) -> bool:
        """Request a validation, wait as `_wait` does, and return whether a worker did it.

        `give_up` also gets the time of the request.
        """
        requested_at = validations.request(target_id, actor.account_id, utc_now(), actor.key)
        _, is_given_up = self._wait(
            lambda: validations.get(target_id, requested_at, utc_now()), partial(give_up, requested_at)
        )
        return not is_given_up

    def _wait(self, read: Callable[[], _Job], give_up: Callable[[bool], bool]) -> tuple[_Job, bool]:
        """Wake the workers; return the job when it is over, and whether it was given up. No connection is held meanwhile.

        `give_up` ends the job if no worker begins it in time, or if the worker does not finish in time, and returns whether
        it did. Its argument says whether a worker has begun.
        """
        engine.release()
        self.wake_ups.notify()
        began_at = requested_at = time.monotonic()
        is_given_up = False
        while not (job := read()).is_over:
            engine.release()
            now = time.monotonic()
            if not job.has_begun:
                began_at = now
                if now - requested_at > BEGIN_WITHIN_S:
                    # If a worker begins at the same moment, `give_up` has no effect, and the loop waits for the worker.
                    is_given_up |= give_up(False)
            elif now - began_at > self.delivery_timeout_s + _MARGIN_S:
                is_given_up |= give_up(True)
            engine.release()
            time.sleep(_POLL_INTERVAL_S)
        engine.release()
        return job, is_given_up


def _checked_edit(edit: TargetEdit, target: Target) -> TargetEdit:
    """Return an edit whose settings the form of the target's provider has validated.

    Raises ValidationFailed below `/provider_settings`.
    """
    if edit.provider_settings is None:
        return edit
    try:
        settings = read_checked(settings_form(target.provider_key), edit.provider_settings)
    except ValidationFailed as failed:
        problems = [replace(each, path=f"/provider_settings{each.path}") for each in failed.problems]
        raise ValidationFailed(*problems) from None
    return replace(edit, provider_settings=settings or {})


def _require_page(provider_key: str, base_url: str, settings: Mapping[str, Any]) -> None:
    """Raise ValidationFailed on `/base_url` unless the URL is a page of the tracker; a webhook accepts every valid URL."""
    tracker = TRACKERS.get(provider_key)
    message = None if tracker is None else tracker.problem_of(base_url, settings)
    if message is not None:
        raise ValidationFailed(FieldProblem("/base_url", NO_TRACKER_PAGE, message))
