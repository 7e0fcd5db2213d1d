"""Parsers of the settings of sign-ins with OpenID Connect."""

from collections.abc import Mapping

from marshmallow import ValidationError

from schemas.base.principal import Role
from schemas.settings.parsers import LOOPBACK, plain_web_address


def issuer(value: str) -> str:
    """Return the issuer's URL unchanged, or an empty value: https, or http on this machine, without a query."""
    if not value:
        return value
    parts = plain_web_address(value)
    if parts is None or "?" in value or not (parts.scheme == "https" or parts.hostname in LOOPBACK):
        raise ValidationError(
            "Use the https URL of the issuer as its /.well-known/openid-configuration names it, without query and fragment; "
            "http only on this machine."
        )
    return value


def scopes(value: str) -> str:
    """Return the scopes separated by single spaces; `openid` is one of them."""
    names = value.split()
    if "openid" not in names:
        raise ValidationError("Use scopes separated by spaces; openid must be one of them.")
    return " ".join(names)


def roles(value: str) -> Mapping[str, Role]:
    """Return the role of each group; a group's name may have any character but a comma."""
    pairs = [each.strip().rpartition("=") for each in value.split(",") if each.strip()]
    names = [group.strip() for group, _, _ in pairs]
    if len({*names}) < len(names) or not all(names) or not all(role.strip() in {*Role} for _, _, role in pairs):
        raise ValidationError(f"Use GROUP=ROLE, comma-separated, each group once; roles are: {', '.join(Role)}.")
    return {name: Role(role.strip()) for name, (_, _, role) in zip(names, pairs, strict=True)}
