"""Explanations of error codes for people: the cause and the fix. docs/error-codes.md has the details.

Most codes of the address policy share one explanation.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas.trackers import failures
from schemas.url_policy.policy import NEVER_ALLOWED, RefusalReason


class ErrorHelp(NamedTuple):
    """The meaning of a code, and the fix."""

    cause: str
    fix: str


_CHECK_RESOLVER: Final = "Check the DNS resolver of the worker's host."
_RESUME: Final = "Resume the target, then retry."
_LIMIT_RATE: Final = "RiskRelay continues automatically. To send more slowly, run bin/riskrelay target limit."

_HELP: Final[Mapping[str, ErrorHelp]] = {
    "dns_not_found": ErrorHelp(
        "The receiver's host name does not exist in DNS.", "Correct the host name or its DNS record."
    ),
    "dns_timeout": ErrorHelp("The DNS resolver did not respond in time.", _CHECK_RESOLVER),
    "dns_failed": ErrorHelp("The DNS resolver returned no usable response.", _CHECK_RESOLVER),
    "dns_overloaded": ErrorHelp("Too many DNS lookups are pending in the worker.", _CHECK_RESOLVER),
    "connect_refused": ErrorHelp(
        "The receiver refused the connection: nothing listens on its port.", "Start the receiver and check its port."
    ),
    "connect_timeout": ErrorHelp(
        "The connection to the receiver timed out.", "Check the firewalls on the way and the receiver's load."
    ),
    "connect_failed": ErrorHelp(
        "The receiver's address is unreachable.", "Check the network between the worker and the receiver."
    ),
    "tls_certificate": ErrorHelp(
        "The receiver's certificate is not valid: wrong host name, untrusted issuer, or expired.",
        "Replace the receiver's certificate and its chain.",
    ),
    "tls_failed": ErrorHelp(
        "The TLS handshake failed: the receiver's TLS version is older than 1.2, or it requires a client certificate.",
        "Check the receiver's TLS configuration.",
    ),
    "client_certificate_refused": ErrorHelp(
        "The receiver asks for a client certificate, or refuses the one that RiskRelay presented.",
        "Set the target's with bin/riskrelay secret set target ID --client-certificate, or TARGET_CLIENT_CERT_FILE for all.",
    ),
    "proxy_unreachable": ErrorHelp(
        "No connection to the proxy of EGRESS_PROXY_URL.", "Start the proxy, or correct EGRESS_PROXY_URL."
    ),
    "proxy_auth_required": ErrorHelp(
        "The proxy of EGRESS_PROXY_URL rejects its user or password (407).",
        "Correct the user and the password in EGRESS_PROXY_URL.",
    ),
    "proxy_refused": ErrorHelp(
        "The proxy of EGRESS_PROXY_URL does not allow tunnels to the receiver's address and port.",
        "Allow CONNECT to the address and the port in the proxy's rules.",
    ),
    "proxy_connect_failed": ErrorHelp(
        "The proxy of EGRESS_PROXY_URL cannot connect to the receiver (5xx).",
        "Check the network between the proxy and the receiver, and the proxy's log.",
    ),
    "proxy_bad_answer": ErrorHelp(
        "The response of the proxy of EGRESS_PROXY_URL to CONNECT is not valid HTTP/1.",
        "Check that EGRESS_PROXY_URL names an HTTP proxy.",
    ),
    "source_address_unavailable": ErrorHelp(
        "EGRESS_BIND has no address of the receiver's family (IPv4, IPv6), or the worker's host does not have the address.",
        "Correct EGRESS_BIND, or configure the address on the worker's host.",
    ),
    "certificate_expired": ErrorHelp("The receiver's certificate has expired.", "Renew the certificate."),
    "certificate_expires_soon": ErrorHelp("The receiver's certificate expires within 14 days.", "Renew the certificate."),
    "connection_closed": ErrorHelp(
        "The receiver closed the connection before the response was complete.",
        "Check the receiver's log at the time of the attempt.",
    ),
    "bad_answer": ErrorHelp("The response is not valid HTTP/1.", "Check the receiver, or the proxy in front of it."),
    "deadline_exceeded": ErrorHelp(
        "The receiver did not respond within DELIVERY_TIMEOUT_S.",
        "Have the receiver respond first and process the ticket afterwards, or raise DELIVERY_TIMEOUT_S.",
    ),
    "no_answer": ErrorHelp("The attempt ended without a response or an error.", "Check the worker's log."),
    "receiver_rate_limited": ErrorHelp("The receiver responded with 429 Too Many Requests.", _LIMIT_RATE),
    "rate_limited": ErrorHelp("The receiver responded with 429 Too Many Requests.", _LIMIT_RATE),
    "WEBHOOK_RATE_LIMITED": ErrorHelp("The receiver reports too many requests.", _LIMIT_RATE),
    "receiver_unavailable": ErrorHelp("The receiver is temporarily unavailable.", "Check the receiver's log."),
    "receiver_unauthorized": ErrorHelp(
        "The receiver, or a proxy in front of it, denied access (401 or 403).",
        "Check the access rules of the receiver and the proxy, then retry.",
    ),
    "WEBHOOK_SIGNATURE_INVALID": ErrorHelp(
        "The receiver reports an invalid signature.",
        "Check that both sides use the same secret and that the receiver verifies the raw body, then retry.",
    ),
    "redirect_refused": ErrorHelp(
        "The receiver responded with a redirect, which RiskRelay does not follow.",
        "Change the target's URL to the one that the receiver redirects to, then retry.",
    ),
    "receiver_gone": ErrorHelp(
        "The receiver responded with 410 Gone.",
        "If the receiver is back, resume the target, then retry. Otherwise, create a new target.",
    ),
    "receiver_rejected": ErrorHelp(
        "The receiver rejected the ticket.", "Check the receiver's response, fix the cause, then retry."
    ),
    "WEBHOOK_VALIDATION_FAILED": ErrorHelp(
        "The receiver reports that the ticket violates its validation rules.",
        "Check the receiver's response, adjust its rules, then retry.",
    ),
    "no_secret": ErrorHelp(
        "The target has no signing secret, or no token of its tracker.",
        "Set it on the target's page or with `secret set target`.",
    ),
    failures.TOKEN_REJECTED: ErrorHelp(
        "The tracker rejects the token: it is wrong, expired or revoked.",
        "Create a new token, in the form that the target's page names, and set it there or with `secret set target`.",
    ),
    failures.FORBIDDEN: ErrorHelp(
        "The token lacks a right at the tracker.", "Give the token the rights that the target's page names, then validate."
    ),
    failures.NOT_FOUND: ErrorHelp(
        "The project, or what a setting names in it, does not exist, or the token cannot see it.",
        "Correct the address or the settings of the target, or give the token access, then validate.",
    ),
    failures.ISSUES_DISABLED: ErrorHelp(
        "The project at the tracker has no issues.", "Turn issues on in the tracker's project settings, then validate."
    ),
    failures.ARCHIVED: ErrorHelp(
        "The project at the tracker is archived.",
        "Restore it at the tracker, or change the target's address, then validate.",
    ),
    failures.MOVED: ErrorHelp(
        "The project at the tracker was renamed or moved; redirects are not followed.",
        "Change the target's address to the new one, as the browser shows it.",
    ),
    failures.REJECTED: ErrorHelp(
        "The tracker refuses this ticket.",
        "Check the response of the last attempt and fix the cause at the tracker, then retry. "
        "An approved ticket cannot be edited.",
    ),
    failures.RATE_LIMITED: ErrorHelp("The tracker's rate limit is used up.", _LIMIT_RATE),
    failures.UNAVAILABLE: ErrorHelp("The tracker is temporarily unavailable.", "Nothing to do: RiskRelay tries again."),
    failures.UNKNOWN_OUTCOME: ErrorHelp(
        "The tracker's response does not say whether it created the issue, or the comment.",
        "Nothing to do: RiskRelay looks for it before it creates another one.",
    ),
    failures.ISSUE_NOT_FOUND: ErrorHelp(
        "The issue of the ticket does not exist any more, or the token cannot see it.",
        "Findings shows what is still open. A place that is fixed and found again gets a new ticket.",
    ),
    failures.ISSUE_MOVED: ErrorHelp(
        "The issue of the ticket was moved to another project.",
        "Findings shows what is still open. A place that is fixed and found again gets a new ticket.",
    ),
    failures.ISSUE_LOCKED: ErrorHelp(
        "The issue of the ticket is locked and takes no comments.", "Unlock it at the tracker for the next event."
    ),
    "no_standard_secret": ErrorHelp(
        "The target signs by Standard Webhooks and has no secret for it.",
        "Set one on the target's page, or with bin/riskrelay secret set target --standard-webhooks.",
    ),
    "secret_unreadable": ErrorHelp(
        "The worker's ENCRYPTION_KEYS cannot decrypt the target's secret.",
        "Add the missing key to ENCRYPTION_KEYS, then restart the worker.",
    ),
    "internal_error": ErrorHelp(
        "An internal error occurred in RiskRelay.", "Report it, with the lines from the worker's log."
    ),
    "worker_lost": ErrorHelp(
        "The worker stopped before it finished the attempt.", "Check the worker's log for the reason it stopped."
    ),
    "no_worker": ErrorHelp("No worker accepted the job.", "Start a worker: bin/riskrelay work."),
    "attempts_exhausted": ErrorHelp(
        "All scheduled attempts failed, or the export is too old for another one (MAX_AGE_HOURS).",
        "Fix the cause of the last failure, then retry.",
    ),
    "target_blocked": ErrorHelp(
        "The target is blocked: its address or the account's webhooks are not allowed.",
        "Fix the reason that the target shows, resume the target, then retry.",
    ),
    "target_disabled": ErrorHelp("The target was disabled.", "Resume the target, then retry."),
    "target_paused": ErrorHelp("The target is paused.", "Resume the target. The export is sent then."),
    "target_inactive": ErrorHelp("The target has no signing secret.", "Set a secret on the target's page."),
    "redacted": ErrorHelp(
        "The ticket content was erased for a compliance request.", "Nothing to do: the export cannot be sent again."
    ),
    "webhooks_not_allowed": ErrorHelp(
        "The operator has withdrawn the account's right to use webhooks.",
        "Ask the operator for `account set ID --webhooks on`, resume the target, then retry.",
    ),
    "operator": ErrorHelp("The operator stopped the target with a command.", "Resume the target when it may receive again."),
    "client": ErrorHelp(
        "A user or client stopped the target in the console or with the API.", "Resume the target when it may receive again."
    ),
    "restored": ErrorHelp(
        "The target was restored from a backup.", "Check which tickets the receiver already has, then resume the target."
    ),
    "breaker_open": ErrorHelp(
        "Too many attempts in a row failed.", "Fix the receiver. RiskRelay sends single test attempts until one succeeds."
    ),
    "scheme_not_allowed": ErrorHelp("The target's URL is not https.", f"Use https, or set TARGET_ALLOW_HTTP. {_RESUME}"),
    "port_not_allowed": ErrorHelp(
        "The port of the target's URL is not allowed.", f"Use another port, or add it to TARGET_ALLOWED_PORTS. {_RESUME}"
    ),
    **dict.fromkeys(
        ("single_label", "local_suffix"),
        ErrorHelp(
            "The host's name exists only in a local network.", f"Use its name in public DNS, or its IP address. {_RESUME}"
        ),
    ),
    **dict.fromkeys(
        NEVER_ALLOWED, ErrorHelp("The host has an address that no setting allows.", f"Use another address. {_RESUME}")
    ),
    "failing_for_days": ErrorHelp("All attempts of the last five days failed.", "Fix the receiver, then resume the target."),
}
#: The codes of the address policy, the last one without a specific reason.
_ADDRESS_CODES: Final = frozenset({*RefusalReason, "address_refused"})
_ADDRESS: Final = ErrorHelp(
    "The target's URL or its IP address is not allowed.",
    f"Correct the URL or its DNS record, or allow the network with TARGET_ALLOWED_NETWORKS. {_RESUME}",
)
_UNKNOWN: Final = ErrorHelp("This error code has no explanation here.", "See the error codes page of the documentation.")


def help_for(code: str) -> ErrorHelp:
    """Return the explanation of an error code, which may be followed by its field: `tracker_not_found:project`."""
    code, _, field = code.partition(":")
    found = _HELP.get(code) or (_ADDRESS if code in _ADDRESS_CODES else _UNKNOWN)
    return found._replace(cause=f"{found.cause} It is about `{field}`.") if field else found
