"""What the codes of failures mean to whoever looks, and what to do next; docs/error-codes.md tells the same at length.

What the policy of addresses says of a target's address has many codes and one remedy.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Told(NamedTuple):
    """A code in words: what happened, and what to do."""

    why: str
    to_do: str


_RESOLVER: Final = "Look at the resolver of the worker's host."
_SLOWER: Final = "Nothing: it goes on by itself. bin/riskrelay target limit agrees on a slower pace."

_TOLD: Final[Mapping[str, Told]] = {
    "dns_not_found": Told("The name of the receiver does not exist in DNS.", "Mend the name or its DNS."),
    "dns_timeout": Told("The DNS resolver did not answer in time.", _RESOLVER),
    "dns_failed": Told("The DNS resolver gave no usable answer.", _RESOLVER),
    "dns_overloaded": Told("Too many DNS look-ups wait in the worker.", _RESOLVER),
    "connect_refused": Told("Nothing listens at the receiver's address and port.", "Start the receiver; look at the port."),
    "connect_timeout": Told("No connection came about in time.", "Look at firewalls, and at how busy the receiver is."),
    "connect_failed": Told("There is no way through the network to the address.", "Look at the network between."),
    "tls_certificate": Told(
        "The receiver's certificate is not valid: for another name, not trusted, or expired.",
        "Mend the receiver's certificate and its chain.",
    ),
    "tls_failed": Told("TLS broke off, or is older than 1.2.", "Mend the receiver's TLS."),
    "certificate_expired": Told("The receiver's certificate has expired.", "Renew it."),
    "certificate_expires_soon": Told("The receiver's certificate expires within 14 days.", "Renew it."),
    "connection_closed": Told(
        "The receiver closed the connection before it had answered.", "Read the receiver's log of that moment."
    ),
    "bad_answer": Told("What answered does not speak proper HTTP/1.", "Look at the receiver, or at the proxy before it."),
    "deadline_exceeded": Told(
        "The receiver did not answer in time.", "Have it answer first and work afterwards, or raise DELIVERY_TIMEOUT_S."
    ),
    "no_answer": Told("Nothing came back, and nothing said why.", "Read the worker's log."),
    "receiver_rate_limited": Told("The receiver answered that it gets too much (429).", _SLOWER),
    "rate_limited": Told("The receiver answered that it gets too much (429).", _SLOWER),
    "WEBHOOK_RATE_LIMITED": Told("The receiver says that it gets too much.", _SLOWER),
    "receiver_unavailable": Told("The receiver is away or broken for now.", "Read the receiver's log."),
    "receiver_unauthorized": Told(
        "The receiver, or a proxy before it, refused who asks (401 or 403).", "See what it asks for, then retry."
    ),
    "WEBHOOK_SIGNATURE_INVALID": Told(
        "The receiver says that the signature is wrong.",
        "Have the same secret on both sides, and the raw body checked; then retry.",
    ),
    "redirect_refused": Told(
        "The receiver redirects, and redirects are not followed.",
        "Make a target with the address that the redirect names.",
    ),
    "receiver_gone": Told(
        "The receiver says that it is gone for good (410).",
        "Resume the target if it is back, then retry; else make a new one.",
    ),
    "receiver_rejected": Told("The receiver refused the ticket.", "See what it answered, mend that there, then retry."),
    "WEBHOOK_VALIDATION_FAILED": Told(
        "The receiver says that the ticket does not fit its rules.",
        "See what it answered; mend the receiver's rules, then retry.",
    ),
    "no_secret": Told("No secret signs for the target.", "Set one on the target's page, or WEBHOOK_SECRET."),
    "secret_unreadable": Told(
        "The target's secret cannot be decrypted with the worker's keys.", "Put the key back, then restart the worker."
    ),
    "internal_error": Told("RiskRelay itself failed.", "Report it, with the lines of the worker's log."),
    "worker_lost": Told("A worker ended in the midst of it.", "Read the worker's log for what ends it."),
    "no_worker": Told("No worker took it up.", "Start one: bin/riskrelay work."),
    "attempts_exhausted": Told("Every attempt of its schedule failed.", "Mend what the last attempt met, then retry."),
    "target_blocked": Told(
        "It waited for a target whose address may not be used.", "Mend the address, resume the target, then retry."
    ),
    "target_disabled": Told("It waited for a target that is disabled.", "Resume the target, then retry."),
    "redacted": Told("What it held was erased for a compliance request.", "Nothing; it cannot be sent again."),
    "operator": Told("A person did it, by command.", "Resume it when it may go on."),
    "client": Told("A person or a client did it, here or by the API.", "Resume it when it may go on."),
    "restored": Told("It came out of a backup.", "See what its receiver has already, then resume it."),
    "breaker_open": Told("Too many attempts in a row failed.", "Mend the receiver; single attempts go on by themselves."),
    "failing_for_days": Told("Nothing but failures for five days.", "Mend the receiver, then resume the target."),
}
#: How the codes of addresses begin.
_ADDRESSES: Final = (
    *("too_long", "control_character", "whitespace", "zero_width", "backslash", "parsers_disagree"),
    *("scheme_", "userinfo", "host_", "zone_id", "single_label", "local_suffix", "port_", "path_invalid", "fragment"),
    *("name_not_found", "address_"),
)
_ADDRESS: Final = Told(
    "The target's address may not be delivered to.",
    "Mend the address, or TARGET_ALLOWED_NETWORKS; resume the target, then retry.",
)
_ELSE: Final = Told("This code has no words here.", "Look it up among the error codes of the documentation.")


def told(code: str) -> Told:
    """Return what a code means and what to do about it."""
    return _TOLD.get(code) or (_ADDRESS if code.startswith(_ADDRESSES) else _ELSE)
