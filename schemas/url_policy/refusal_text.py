"""The message of a refused target URL: what the policy allows, and the setting that would allow more."""

from schemas.url_policy.policy import NEVER_ALLOWED, RefusalReason, TargetPolicy


def refusal_text(reason: str, policy: TargetPolicy) -> str:
    """Return the message for the reason of a refusal or of a failed lookup; it never contains the URL or an address."""
    if reason == RefusalReason.SCHEME_NOT_ALLOWED:
        return "Use http or https." if policy.allow_http else "Use https; the operator can allow http (TARGET_ALLOW_HTTP)."
    if reason == RefusalReason.PORT_NOT_ALLOWED:
        ports = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in policy.allowed_ports)
        return f"This port is not allowed; the operator allows {ports} (TARGET_ALLOWED_PORTS)."
    if reason in {RefusalReason.SINGLE_LABEL, RefusalReason.LOCAL_SUFFIX}:
        return "The host's name exists only in a local network; use its full name in public DNS, or its IP address."
    if reason in NEVER_ALLOWED:
        return "The host has an address that no setting allows."
    if reason.startswith("address_"):
        return "The host has an address that is not public; the operator can allow its network (TARGET_ALLOWED_NETWORKS)."
    if reason.startswith("dns_") or reason == RefusalReason.NAME_NOT_FOUND:
        return "The host's name does not resolve now; check its DNS record, or try again."
    return "This URL is not allowed for a target; `code` names the reason."
