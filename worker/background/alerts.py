"""Finds problems, opens and closes alerts, and sends the messages about them.

One worker at a time compares the causes that hold now with the open alerts. Any worker sends a message, under a lease and
without a database connection. A channel that fails is retried later and delays no other channel.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from schemas.alerts.alert import Alert
from schemas.alerts.messages import message_body
from schemas.settings.alert_channels import AlertChannel
from storage.db import locks
from storage.db.engine import connection
from storage.db.locks import Lock
from storage.reporting import alerts
from storage.reporting.alert_causes import AlertSources
from storage.reporting.alerts import ClaimedMessage
from worker.background.alert_channels import SEND_LEASE_S, ChannelResponse

#: A new cause is noticed within this many seconds.
POLL_S: Final = 30.0

_log: Final = logging.getLogger(__name__)


#: Sends a message to a channel within a deadline; never raises for failures of the network.
Send: TypeAlias = Callable[[AlertChannel, dict[str, Any], datetime], ChannelResponse]


@dataclass(slots=True)
class AlertTask:
    """Alternately compares the causes and sends a message, until no message is left. `console` is the console's URL."""

    sources: AlertSources
    channels: Sequence[AlertChannel]
    send: Send
    console: str | None
    now: Callable[[], datetime]
    _has_compared: bool = field(default=False, init=False)

    def run_once(self) -> bool:
        """Compare, or send one message: new causes do not wait for all messages. Return whether there may be more."""
        if not self._has_compared:
            self._compare()
            self._has_compared = True
            return True
        self._has_compared = False
        return self._send_next()

    def _compare(self) -> None:
        def body_of(message_id: str, about: Sequence[Alert]) -> dict[str, Any]:
            return message_body(message_id, about, self.console, self.now())

        # LockBusy: another worker is comparing.
        with suppress(locks.LockBusy), connection(), locks.exclusive(Lock.ALERTS):
            alerts.update(self.sources, self.channels, body_of, self.now())

    def _send_next(self) -> bool:
        with connection():
            held = alerts.claim_message(self.now(), SEND_LEASE_S)
        if held is None:
            return False
        is_done = True
        if held.channel in self.channels:
            is_done = self._is_sent(held)
        else:
            _log.info("alert dropped: the channel %s is not configured any more", held.channel)
        with connection():
            alerts.finish_message(held, is_sent=is_done, now=self.now())
        return True

    def _is_sent(self, held: ClaimedMessage) -> bool:
        """Send a message, and return whether its channel accepted it."""
        response = self.send(AlertChannel(held.channel), held.body, self.now())
        level, text = (logging.INFO, "alert sent to %s") if response.is_sent else (logging.WARNING, "alert not sent to %s")
        _log.log(level, text, held.channel, extra={"reason": response.text})
        return response.is_sent
