"""Creates issues of approved tickets in trackers, once each, applies events to them, and validates targets of trackers.

After an attempt whose outcome is unknown the issue is looked up before another one is created. Every result is a value, not
an exception.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.base.errors import RiskRelayError
from schemas.exports.delivery import Claim, Outcome
from schemas.exports.tickets.tracker_ticket import ticket_of
from schemas.trackers.event_steps import apply_event
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import FailureKind, Tracker, TrackerAccess, TrackerFailure, TrackerIssue
from schemas.trackers.failures import UNAVAILABLE
from schemas.trackers.registry import TRACKERS
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from worker.http.adapter import GuardedAdapter
from worker.http.errors import TargetRefused, TransportError
from worker.http.signed_request import ClaimedTarget, open_certificate
from worker.trackers.session import TrackerResult, TrackerSession, TrackerValue

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrackerRunner:
    """Runs tasks at trackers; `public_base_url` is the base URL of the console, None without a console."""

    adapter: GuardedAdapter
    vault: Vault
    public_base_url: str | None
    trackers: Mapping[str, Tracker] = field(default_factory=lambda: TRACKERS)

    def deliver(self, claim: Claim) -> TrackerResult:
        """Create the issue of a claimed export, unless an earlier attempt has created it; never raises."""
        return self._run(
            claim, lambda session: _create_once(session, claim, self.public_base_url), is_in_doubt=claim.is_outcome_unknown
        )

    def apply_event(self, target: ClaimedTarget, event: TrackerEvent) -> TrackerResult:
        """Apply an event to the issue that was created for its ticket; never raises.

        The value of a success is a TrackerEventAction. After an attempt whose outcome is unknown, `event` says so, and the
        comment is looked up before another one is made.
        """
        return self._run(
            target,
            lambda session: session.run(apply_event(session.tracker, session.access, event)),
            is_in_doubt=event.is_outcome_unknown,
        )

    def validate(self, target: ClaimedTarget, spent_s: float = 0.0) -> TrackerResult:
        """Check a target's token, its rights and the settings, and change nothing; never raises.

        `spent_s` of the deadline have passed already.
        """
        return self._run(target, lambda session: session.run(session.tracker.validate(session.access)), spent_s)

    def _run(
        self,
        target: ClaimedTarget,
        task: Callable[[TrackerSession], TrackerValue | None],
        spent_s: float = 0.0,
        *,
        is_in_doubt: bool = False,
    ) -> TrackerResult:
        """Run a task at a target; if `is_in_doubt`, an earlier attempt may have done it."""
        session = self._begin(target, spent_s, is_in_doubt)
        if isinstance(session, Outcome):
            return TrackerResult(session, is_outcome_unknown=is_in_doubt)
        try:
            return session.result(task(session))
        except TransportError as lost:
            return session.result(error=lost.error, is_refused=isinstance(lost, TargetRefused))
        except Exception:  # noqa: BLE001 - a bug of ours must not lose the export: it counts as a missing response
            _log.exception("a task at a tracker failed", extra={"target_id": target.target_id})
            return session.result(error="internal_error")

    def _begin(self, target: ClaimedTarget, spent_s: float, is_in_doubt: bool) -> TrackerSession | Outcome:
        """Return a session with the target's token and settings, or the outcome of an attempt that cannot begin."""
        try:
            tracker = self.trackers[target.options.provider_key]
            if target.secret_sealed is None:
                return Outcome(error="no_secret")
            token = self.vault.open(target.secret_sealed, secret_context(target.target_id))
            access = TrackerAccess(target.base_url.rstrip("/"), json.loads(target.options.provider_settings), token)
            certificate = open_certificate(self.vault.open, target.target_id, target.options)
            exchange = self.adapter.begin(target.account_id, certificate)
            exchange.deadline -= spent_s
            return TrackerSession(self.adapter, tracker, access, exchange, is_in_doubt)
        except RiskRelayError as broken:
            extra = {"target_id": target.target_id, "error": type(broken).__name__}
            _log.error("the token of a tracker cannot be read", extra=extra)
            return Outcome(error="secret_unreadable")
        except Exception:  # noqa: BLE001 - see `_run`
            _log.exception("a task at a tracker cannot begin", extra={"target_id": target.target_id})
            return Outcome(error="internal_error")


def _create_once(session: TrackerSession, claim: Claim, public_base_url: str | None) -> TrackerIssue | TrackerFailure | None:
    """Create the issue of an export; if an earlier attempt may have created it, look it up first."""
    tracker, access = session.tracker, session.access
    ticket = ticket_of(claim.body, public_base_url)
    if session.in_doubt:
        found = session.run(tracker.find(access, ticket), is_lookup=True)
        if found is None and session.has_unreadable:
            found = TrackerFailure(FailureKind.RETRY, UNAVAILABLE)
        # The worker that died may have created it so recently that a lookup does not find it yet.
        if found is not None or (claim.has_lapsed and tracker.lookup_delay_s):
            return found
        session.in_doubt = False
    created = session.run(tracker.create(access, ticket))
    # In doubt if a success names no issue.
    session.in_doubt = created is None
    return created
