"""One-time links for the console: requested in a browser, sent by a worker, used in the same browser.

A request for an unknown address is stored like any other, so that nobody can find out which addresses are known; a worker
deletes it. The table has digests of the link's secret and of the browser's. The email is encrypted until it is sent.
"""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from schemas.base.errors import Forbidden
from storage.accounts import identities
from storage.accounts.accounts import lock_user, users_by_email
from storage.accounts.tokens import sha256_hex
from storage.db import identifiers
from storage.db.engine import transaction
from storage.db.leases import JobLease, LeasedJobs
from storage.db.models import SignInLinkRow
from storage.db.queries import scalars, tuples

#: An email arrives within minutes, and a person who waits for it reads it soon.
LASTS_FOR: Final = timedelta(minutes=15)
#: The most links for one user in that time, so that nobody fills another person's mailbox. It is several times the number
#: that the service accepts from one network, so that a stranger cannot use up all of them.
MAX_OF_USER: Final = 10
#: 256 bits in URL-safe base64.
_RANDOM_BYTES: Final = 32

_jobs: Final = LeasedJobs(SignInLinkRow)


class NewLink(NamedTuple):
    """The secrets of a link: one for the email, one for the cookie of the browser that requested the link."""

    token: str
    browser: str


class SignInLinkJob(NamedTuple):
    """A link whose email must be sent, with its lease."""

    lease: JobLease
    mail_sealed: bytes


def request(seal_mail: Callable[[str, str], bytes], now: datetime) -> NewLink:
    """Store a request; `seal_mail` encrypts the email, given the id of the row and the link's token."""
    link = NewLink(secrets.token_urlsafe(_RANDOM_BYTES), secrets.token_urlsafe(_RANDOM_BYTES))
    link_id = identifiers.new_id(identifiers.SIGN_IN_LINK, now)
    with transaction():
        SignInLinkRow.insert(
            id=link_id,
            token_sha256=sha256_hex(link.token),
            browser_sha256=sha256_hex(link.browser),
            mail_sealed=seal_mail(link_id, link.token),
            next_run_at=now,
            created_at=now,
        ).execute()
    return link


def claim(now: datetime, lease_s: float) -> SignInLinkJob | None:
    """Claim the request that has waited longest; None if no request is due. Deletes requests that are too old."""
    if not _jobs.any_waiting(now):
        return None
    k = SignInLinkRow
    with transaction():
        k.delete().where(k.next_run_at <= now, k.created_at <= now - LASTS_FOR).execute()
        lease = _jobs.claim_oldest(now, lease_s)
        found = tuples(k.select(k.mail_sealed).where(k.id == lease.id)) if lease else []
    return SignInLinkJob(lease, found[0][0]) if lease and found else None


def assign_recipient(due: SignInLinkJob, email: str, now: datetime) -> str | None:
    """Assign a link to the user with this email and return the address; without one, delete the request and return None."""
    k = SignInLinkRow
    with transaction():
        # Addresses are stored as they were entered. If users in several accounts have the address, no link is sent.
        named = users_by_email(email)
        user = next((lock_user(each.id) for each in named if each.disabled_at is None), None)
        if user is not None and len({each.account_id for each in named}) == 1:
            recent = k.select().where(
                k.user == user.id, k.id >= identifiers.first_id(identifiers.SIGN_IN_LINK, now - LASTS_FOR)
            )
            if recent.where(k.id != due.lease.id).count() < MAX_OF_USER:
                k.update(user=user.id).where(k.id == due.lease.id).execute()
                return user.email
        discard(due)
    return None


def mark_sent(due: SignInLinkJob) -> None:
    """Erase the email of a link after it was sent."""
    with transaction():
        _jobs.finish(due.lease.id, due.lease.lease, mail_sealed=None)


def postpone(due: SignInLinkJob, at: datetime) -> None:
    """Make the email of a link due again at `at`, because the mail server did not accept it."""
    _jobs.release(due.lease, at)


def discard(due: SignInLinkJob) -> None:
    """Delete a request for which no email is sent."""
    with transaction():
        SignInLinkRow.delete().where(SignInLinkRow.id == due.lease.id).execute()


def consume(token: str, browser: str, now: datetime) -> int:
    """Use up a link in the browser that requested it, and return its user's id. Raises Forbidden for any other link."""
    k = SignInLinkRow
    is_theirs = (k.token_sha256 == sha256_hex(token)) & (k.browser_sha256 == sha256_hex(browser)) & k.user.is_null(False)
    with transaction():
        for user_id in scalars(k.select(k.user).where(is_theirs, k.created_at > now - LASTS_FOR)):
            # The user before the link, as a removal of the user locks them.
            user = lock_user(user_id)
            if user is not None and k.delete().where(is_theirs).execute():
                identities.link_email(user, now)
                return user.id
    raise Forbidden("This link was used, has expired or was requested in another browser. Request a new one here.")
