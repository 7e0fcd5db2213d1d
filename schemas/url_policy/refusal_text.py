"""The message of a refused target URL: what the policy allows, and the setting that would allow more."""

from collections.abc import Mapping
from typing import Final

from schemas.url_policy.policy import NEVER_ALLOWED, RefusalReason, TargetPolicy

_CHARACTERS: Final = (
    "The URL contains a space, an invisible character or another one that URLs must encode; remove or encode it."
)
_LOCAL: Final = "The host's name exists only in a local network; use its full name in public DNS, or its IP address."
_HOST: Final = (
    "The notation of the host is not allowed, because parsers interpret it differently; use the plain name or address."
)
#: How to correct the form of a URL, which no setting changes. The console and the commands show no code.
_FORM: Final[Mapping[str, str]] = {
    RefusalReason.TOO_LONG: "The URL or its host is too long; shorten it.",
    **dict.fromkeys((RefusalReason.CONTROL_CHARACTER, RefusalReason.WHITESPACE, RefusalReason.ZERO_WIDTH), _CHARACTERS),
    **dict.fromkeys((RefusalReason.BACKSLASH, RefusalReason.PATH_INVALID), _CHARACTERS),
    RefusalReason.SCHEME_MISSING: "Enter the whole URL, which begins with https://.",
    RefusalReason.FRAGMENT: "Remove the fragment, which begins with #, from the URL.",
    RefusalReason.USERINFO: "Remove the user and the password from the URL; URLs are shown and logged.",
    RefusalReason.HOST_MISSING: "The URL has no host; add it.",
    RefusalReason.PORT_INVALID: "The port is not a number between 1 and 65535; correct it.",
    RefusalReason.SINGLE_LABEL: _LOCAL,
    RefusalReason.LOCAL_SUFFIX: _LOCAL,
}


def refusal_text(reason: str, policy: TargetPolicy) -> str:
    """Return the message for the reason of a refusal or of a failed lookup; it never contains the URL or an address."""
    if reason == RefusalReason.SCHEME_NOT_ALLOWED:
        return "Use http or https." if policy.allow_http else "Use https; the operator can allow http (TARGET_ALLOW_HTTP)."
    if reason == RefusalReason.PORT_NOT_ALLOWED:
        ports = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in policy.allowed_ports)
        return f"This port is not allowed; the operator allows {ports} (TARGET_ALLOWED_PORTS)."
    if reason in _FORM:
        return _FORM[reason]
    if reason in NEVER_ALLOWED:
        return "The host has an address that no setting allows."
    if reason.startswith("address_"):
        return "The host has an address that is not public; the operator can allow its network (TARGET_ALLOWED_NETWORKS)."
    if reason.startswith("dns_") or reason == RefusalReason.NAME_NOT_FOUND:
        return "The host's name does not resolve now; check its DNS record, or try again."
    return _HOST
