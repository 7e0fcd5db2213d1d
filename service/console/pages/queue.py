"""`/console/queue`: due exports, workers and Redis of the whole installation."""

from collections.abc import Mapping
from typing import Any

import falcon

from runtime.clock import utc_now
from schemas.targets.target import TargetStatus
from service.console.layout import CONSOLE, ConsolePage
from service.console.sessions import ConsoleUser
from service.console.wording import bounded
from storage.compliance import requests as compliance_requests
from storage.exports import queries, worker_heartbeats
from storage.reporting import dashboard_queries, metrics_snapshot
from storage.reporting.dashboard_queries import MAX_COUNTED


class QueuePage(ConsolePage):
    """Shows due exports, workers, Redis and targets that receive nothing."""

    path = f"{CONSOLE}/queue"
    template = "queue.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return the figures."""
        now = utc_now()
        known, most = worker_heartbeats.list_recent(now), MAX_COUNTED + 1
        due_age_s = metrics_snapshot.due_age_s(now)
        by_status, by_pause = metrics_snapshot.targets_by_state(now)
        return {
            "has_redis": self._layout.wake_ups.is_reachable(),
            "workers": known,
            "alive": sum(worker.is_alive for worker in known),
            # At least 0, because the clocks of two hosts may differ slightly.
            "sweep_lag_s": max(0.0, (now - known[0].seen_at).total_seconds()) if known else None,
            "could_be_sent": bounded(queries.count_due(now, most), MAX_COUNTED),
            "held_back": bounded(queries.count_due(now, most, held_back=True), MAX_COUNTED),
            "due_age_s": due_age_s,
            "is_late": due_age_s > metrics_snapshot.LATE_S,
            "leases": dashboard_queries.count_leases(),
            "unfinished": compliance_requests.count_unfinished(),
            "overdue": compliance_requests.count_overdue(now),
            "pauses": {reason: count for reason, count in by_pause.items() if count},
            "turned_off": {
                status.value: by_status[status]
                for status in (TargetStatus.INACTIVE, TargetStatus.BLOCKED, TargetStatus.DISABLED)
                if by_status[status]
            },
        }
