"""Sends one-time links for the console by email, one after the other, without a database connection meanwhile."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.message import EmailMessage
from typing import Final

from schemas.alerts.messages import plain_email
from schemas.base.errors import NoEncryptionKey, WrongEncryptionKey
from storage.accounts import sign_in_links
from storage.db.engine import connection
from storage.secrets.encrypted_columns import LINK_MAIL
from storage.secrets.vault import Vault
from worker.background.alert_channels import SEND_LEASE_S, ChannelResponse

#: A person waits for the mail; the service wakes the workers as well.
POLL_S: Final = 5.0
#: How soon a mail that failed is sent again: a link is valid for minutes only.
_TRIED_AGAIN_AFTER: Final = timedelta(minutes=1)

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignInLinkTask:
    """Sends a mail per call until none is left; `page` is the URL of the page that a link opens."""

    vault: Vault
    send: Callable[[EmailMessage], ChannelResponse]
    sender: str
    page: str
    now: Callable[[], datetime]

    def run_once(self) -> bool:
        """Send the next mail; return whether there may be more."""
        with connection():
            due = sign_in_links.claim(self.now(), SEND_LEASE_S)
        if due is None:
            return False
        try:
            email, token = json.loads(self.vault.open(due.mail_sealed, LINK_MAIL.context(due.lease.id)))
        except (NoEncryptionKey, WrongEncryptionKey):
            with connection():
                sign_in_links.discard(due)
            return True
        with connection():
            address = sign_in_links.assign_recipient(due, email, self.now())
        if address is not None:
            self._deliver(due, address, token)
        return True

    def _deliver(self, due: sign_in_links.SignInLinkJob, address: str, token: str) -> None:
        response = self.send(self._message(due.lease.id, address, token))
        level, text = (logging.INFO, "sign-in link sent") if response.is_sent else (logging.WARNING, "sign-in link not sent")
        _log.log(level, text, extra={"reason": response.text})
        with connection():
            if response.is_sent:
                sign_in_links.mark_sent(due)
            else:
                sign_in_links.postpone(due, self.now() + _TRIED_AGAIN_AFTER)

    def _message(self, link_id: str, address: str, token: str) -> EmailMessage:
        text = (
            f"Open this link in the browser in which you asked for it, within 15 minutes:\n\n{self.page}?token={token}\n\n"
            "It works once. If you did not ask for it, ignore this message.\n"
        )
        return plain_email(link_id, self.sender, [address], "Sign in to RiskRelay", text, self.now())
