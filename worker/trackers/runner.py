"""Creates issues of approved tickets in trackers, once each, applies events to them, and validates targets of trackers.

After an attempt whose outcome is unknown the issue is looked up before another one is created. Every result is a value, not
an exception.
"""

import json
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Claim, Outcome
from schemas.exports.tickets.tracker_ticket import ticket_of
from schemas.trackers.event_steps import apply_event
from schemas.trackers.events import TrackerEvent, TrackerEventAction
from schemas.trackers.exchange import FailureKind, Tracker, TrackerAccess, TrackerFailure, TrackerIssue
from schemas.trackers.failures import UNAVAILABLE
from schemas.trackers.registry import TRACKERS
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from worker.http.errors import TransportError
from worker.http.signed_request import ClaimedTarget, open_certificate
from worker.trackers.session import TrackerResult, TrackerSession, Transport

_log: Final = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A task at a tracker that may begin."""

    session: TrackerSession
    tracker: Tracker
    access: TrackerAccess


class TrackerRunner:
    """Runs tasks at trackers; `public_base_url` is where the console is reachable, None without one."""

    def __init__(
        self, transport: Transport, vault: Vault, public_base_url: str | None, trackers: Mapping[str, Tracker] = TRACKERS
    ) -> None:
        self._transport = transport
        self._vault = vault
        self._public_base_url = public_base_url
        self._trackers = trackers

    def deliver(self, claim: Claim) -> TrackerResult:
        """Create the issue of a claimed export, unless an earlier attempt has created it; never raises."""
        task = self._begin(claim)
        if isinstance(task, Outcome):
            return TrackerResult(task, is_outcome_unknown=claim.is_outcome_unknown)
        return _create_once(task, claim, self._public_base_url)

    def apply_event(self, target: ClaimedTarget, event: TrackerEvent) -> TrackerResult:
        """Apply an event to the issue that the target made of its ticket; never raises.

        The value of a success is a TrackerEventAction. After an attempt whose outcome is unknown, `event` says so, and the
        comment is looked up before another one is made.
        """
        task = self._begin(target)
        if isinstance(task, Outcome):
            return TrackerResult(task, is_outcome_unknown=event.is_outcome_unknown)
        return _apply_event(task, event)

    def validate(self, target: ClaimedTarget, spent_s: float = 0.0) -> TrackerResult:
        """Check a target's token, its rights and the settings, and change nothing; never raises.

        `spent_s` of the deadline have passed already.
        """
        task = self._begin(target, spent_s)
        return TrackerResult(task) if isinstance(task, Outcome) else _validate(task)

    def _begin(self, target: ClaimedTarget, spent_s: float = 0.0) -> _Task | Outcome:
        """Return a session with the target's token and settings, or the outcome of an attempt that cannot begin."""
        try:
            tracker = self._trackers[target.options.provider_key]
            if target.secret_sealed is None:
                return Outcome(error="no_secret")
            token = self._vault.open(target.secret_sealed, secret_context(target.target_id))
            access = TrackerAccess(target.base_url.rstrip("/"), json.loads(target.options.provider_settings), token)
            certificate = open_certificate(self._vault.open, target.target_id, target.options)
            session = TrackerSession(self._transport, tracker, token, target.account_id, spent_s, certificate)
            return _Task(session, tracker, access)
        except RiskRelayError as broken:
            extra = {"target_id": target.target_id, "error": type(broken).__name__}
            _log.error("the token of a tracker cannot be read", extra=extra)
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the export: it counts as a missing response
            _log.exception("a task at a tracker cannot begin", extra={"target_id": target.target_id})
            return Outcome(error="internal_error")


def _create_once(task: _Task, claim: Claim, public_base_url: str | None) -> TrackerResult:
    """Create the issue of an export; if an earlier attempt may have created it, look for that one first."""
    session, tracker, access = task
    is_looking = claim.is_outcome_unknown
    try:
        ticket = ticket_of(claim.body, public_base_url)
        if is_looking:
            found = session.run(tracker.find(access, ticket), is_lookup=True)
            if found is None and session.has_unreadable:
                found = TrackerFailure(FailureKind.RETRY, UNAVAILABLE)
            if found is not None:
                return session.result(found, is_outcome_unknown=not isinstance(found, TrackerIssue))
            if claim.has_lapsed and tracker.lookup_delay_s:
                # The worker that died may have created it a moment ago.
                return session.result(is_outcome_unknown=True)
            is_looking = False
        created = session.run(tracker.create(access, ticket))
        return session.result(created, is_outcome_unknown=created is None or session.may_have_created(created))
    except TransportError as failed:
        return session.failed(failed, is_outcome_unknown=is_looking or session.may_have_created())
    except Exception:  # noqa: BLE001 - a bug of ours must not lose the export: it counts as a missing response
        _log.exception("creating an issue failed", extra={"target_id": claim.target_id})
        return session.result(error="internal_error", is_outcome_unknown=is_looking or session.may_have_created())


def _apply_event(task: _Task, event: TrackerEvent) -> TrackerResult:
    session, tracker, access = task
    try:
        value = session.run(apply_event(tracker, access, event))
        is_known = isinstance(value, TrackerEventAction)
        return session.result(
            value, is_outcome_unknown=not is_known and (event.is_outcome_unknown or session.may_have_created(value))
        )
    except TransportError as failed:
        return session.failed(failed, is_outcome_unknown=event.is_outcome_unknown or session.may_have_created())
    except Exception:  # noqa: BLE001 - a bug of ours must not lose the event: it counts as a missing response
        _log.exception("applying an event at a tracker failed", extra={"event_id": event.event_id})
        is_outcome_unknown = event.is_outcome_unknown or session.may_have_created()
        return session.result(error="internal_error", is_outcome_unknown=is_outcome_unknown)


def _validate(task: _Task) -> TrackerResult:
    session, tracker, access = task
    try:
        return session.result(session.run(tracker.validate(access)))
    except TransportError as failed:
        return session.failed(failed)
    except Exception:  # noqa: BLE001 - a bug of ours is a failed validation
        _log.exception("validating a target of a tracker failed")
        return session.result(error="internal_error")
