"""`/console/queue`: what workers have before them, who they are, and what keeps them from it."""

from collections.abc import Mapping
from typing import Any

import falcon

from schemas.settings import RouteFamily
from schemas.targets import TargetStatus
from service.console.entrance import Visitor
from service.console.frame import CONSOLE, Frame, Page
from service.console.overview import LATE_S
from service.console.wording import bounded
from storage import census, compliance, glance, workers
from storage.clock import utc_now
from storage.doorbell import Doorbell
from storage.glance import MOST_COUNTED, MOST_RECOVERIES


class Queue(Page):
    """Shows Redis, workers, what is due and what runs, of the whole installation."""

    path = f"{CONSOLE}/queue"
    template = "queue.html"
    family = RouteFamily.CONSOLE
    is_operators = True

    def __init__(self, frame: Frame, bell: Doorbell) -> None:
        super().__init__(frame)
        self._bell = bell

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return what the page shows; `queued` is None while Redis is away."""
        now = utc_now()
        known, due, due_age_s = workers.known(now), glance.due(now), census.due_age_s(now)
        recoveries = glance.running_recoveries()
        by_status, by_pause = census.targets_by_state(now)
        return {
            "queued": self._bell.queued(),
            "workers": known,
            "alive": sum(worker.is_alive for worker in known),
            # Clocks of two hosts may differ by a little.
            "sweep_lag_s": max(0.0, (now - known[0].seen_at).total_seconds()) if known else None,
            "could_be_sent": bounded(due.could_be_sent, MOST_COUNTED),
            "held_back": bounded(due.held_back, MOST_COUNTED),
            "due_age_s": due_age_s,
            "is_late": due_age_s > LATE_S,
            "leases": glance.count_leases(),
            "recoveries": recoveries,
            "has_more_recoveries": len(recoveries) == MOST_RECOVERIES,
            "unfinished": compliance.count_unfinished(),
            "overdue": compliance.count_overdue(now),
            "pauses": {reason: count for reason, count in by_pause.items() if count},
            "turned_off": {
                status.value: by_status[status]
                for status in (TargetStatus.INACTIVE, TargetStatus.BLOCKED, TargetStatus.DISABLED)
                if by_status[status]
            },
            "account_id": visitor.account_id,
        }
