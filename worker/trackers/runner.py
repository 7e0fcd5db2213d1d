"""Creates issues of approved tickets in trackers, once each, applies events to them, and validates targets of trackers.

After an attempt whose outcome is unknown the issue is looked up before another one is created. Every result is a value, not
an exception.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Claim, Outcome
from schemas.exports.tickets.tracker_ticket import ticket_of
from schemas.trackers.event_steps import apply_event
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import FailureKind, Tracker, TrackerAccess, TrackerFailure
from schemas.trackers.failures import UNAVAILABLE
from schemas.trackers.registry import TRACKERS
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from worker.http.adapter import GuardedAdapter
from worker.http.errors import TransportError
from worker.http.signed_request import ClaimedTarget, open_certificate
from worker.trackers.session import TrackerResult, TrackerSession

_log: Final = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A task at a tracker that may begin."""

    session: TrackerSession
    tracker: Tracker
    access: TrackerAccess


_Act: TypeAlias = Callable[[_Task], TrackerResult]


class TrackerRunner:
    """Runs tasks at trackers; `public_base_url` is the base URL of the console, None without a console."""

    def __init__(
        self, adapter: GuardedAdapter, vault: Vault, public_base_url: str | None, trackers: Mapping[str, Tracker] = TRACKERS
    ) -> None:
        self._adapter = adapter
        self._vault = vault
        self._public_base_url = public_base_url
        self._trackers = trackers

    def deliver(self, claim: Claim) -> TrackerResult:
        """Create the issue of a claimed export, unless an earlier attempt has created it; never raises."""

        def create(task: _Task) -> TrackerResult:
            return _create_once(task, claim, self._public_base_url)

        about = {"target_id": claim.target_id}
        return _run(self._begin(claim), create, "creating an issue failed", about, in_doubt=claim.is_outcome_unknown)

    def apply_event(self, target: ClaimedTarget, event: TrackerEvent) -> TrackerResult:
        """Apply an event to the issue that was created for its ticket; never raises.

        The value of a success is a TrackerEventAction. After an attempt whose outcome is unknown, `event` says so, and the
        comment is looked up before another one is made.
        """

        def apply(task: _Task) -> TrackerResult:
            session, tracker, access = task
            return session.result(session.run(apply_event(tracker, access, event)))

        task, about = self._begin(target), {"event_id": event.event_id}
        return _run(task, apply, "applying an event at a tracker failed", about, in_doubt=event.is_outcome_unknown)

    def validate(self, target: ClaimedTarget, spent_s: float = 0.0) -> TrackerResult:
        """Check a target's token, its rights and the settings, and change nothing; never raises.

        `spent_s` of the deadline have passed already.
        """

        def check(task: _Task) -> TrackerResult:
            session, tracker, access = task
            return session.result(session.run(tracker.validate(access)))

        about = {"target_id": target.target_id}
        return _run(self._begin(target, spent_s), check, "validating a target of a tracker failed", about)

    def _begin(self, target: ClaimedTarget, spent_s: float = 0.0) -> _Task | Outcome:
        """Return a session with the target's token and settings, or the outcome of an attempt that cannot begin."""
        try:
            tracker = self._trackers[target.options.provider_key]
            if target.secret_sealed is None:
                return Outcome(error="no_secret")
            token = self._vault.open(target.secret_sealed, secret_context(target.target_id))
            access = TrackerAccess(target.base_url.rstrip("/"), json.loads(target.options.provider_settings), token)
            certificate = open_certificate(self._vault.open, target.target_id, target.options)
            session = TrackerSession(self._adapter, tracker, token, target.account_id, spent_s, certificate)
            return _Task(session, tracker, access)
        except RiskRelayError as broken:
            extra = {"target_id": target.target_id, "error": type(broken).__name__}
            _log.error("the token of a tracker cannot be read", extra=extra)
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the export: it counts as a missing response
            _log.exception("a task at a tracker cannot begin", extra={"target_id": target.target_id})
            return Outcome(error="internal_error")


def _run(
    task: _Task | Outcome, act: _Act, failed: str, about: Mapping[str, str], *, in_doubt: bool = False
) -> TrackerResult:
    """Run a task; if `in_doubt`, an earlier attempt may have done it. A bug of ours is logged as `failed`."""
    if isinstance(task, Outcome):
        return TrackerResult(task, is_outcome_unknown=in_doubt)
    session = task.session
    session.in_doubt = in_doubt
    try:
        return act(task)
    except TransportError as lost:
        return session.failed(lost)
    except Exception:  # noqa: BLE001 - a bug of ours must not lose the export: it counts as a missing response
        _log.exception(failed, extra=about)
        return session.result(error="internal_error")


def _create_once(task: _Task, claim: Claim, public_base_url: str | None) -> TrackerResult:
    """Create the issue of an export; if an earlier attempt may have created it, look it up first."""
    session, tracker, access = task
    ticket = ticket_of(claim.body, public_base_url)
    if session.in_doubt:
        found = session.run(tracker.find(access, ticket), is_lookup=True)
        if found is None and session.has_unreadable:
            found = TrackerFailure(FailureKind.RETRY, UNAVAILABLE)
        # The worker that died may have created it so recently that a lookup does not find it yet.
        if found is not None or (claim.has_lapsed and tracker.lookup_delay_s):
            return session.result(found)
        session.in_doubt = False
    created = session.run(tracker.create(access, ticket))
    # In doubt if a success names no issue.
    session.in_doubt = created is None
    return session.result(created)
