"""`secret`: set shared secrets of integrations and signing secrets of targets; no secret is ever printed."""

import sys
from dataclasses import asdict
from datetime import datetime

import click

from bin.cli.installation import Refused, opened
from bin.cli.records import json_option, print_record, print_records
from bin.command_table import summary_of
from runtime.clock import utc_now
from schemas.api.responses import dump_target
from schemas.base.timestamps import rfc3339_or_none
from schemas.intake.sources import Rejection, connected_status
from schemas.settings.definitions import Settings
from schemas.settings.parsers import HOW_TO_MAKE_ONE, LEAST_SECRET_BYTES
from schemas.settings.secret_text import MAX_SECRET, SecretFault, secret_from
from schemas.targets.target import Target
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.integrations import SOURCES, Integration, SecretState, SharedSecrets
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.targets import targets

#: The error messages for an invalid secret.
_MESSAGES = {
    SecretFault.UNFIT: f"Invalid secret; pass one line of at most {MAX_SECRET} printable characters on standard input.",
    SecretFault.TOO_SHORT: f"A secret has {LEAST_SECRET_BYTES} bytes or more; {HOW_TO_MAKE_ONE}. Nothing was changed.",
}


@click.group()
def secret() -> None:
    """Set secrets from standard input and list their fingerprints."""


@secret.group("set")
def set_secret() -> None:
    """Set a secret from one line on standard input; the old one stops working at once."""


@set_secret.command(
    epilog='Example: printf %s "$SECRET" | riskrelay secret set target tgt_…\n\nExit codes: 0 set, 1 refused, 2 wrong usage.'
)
@click.argument("target_id")
@json_option
def target(target_id: str, as_json: bool) -> None:
    """Set the signing secret of one target."""
    with opened() as settings:
        fingerprint = targets.set_secret(target_id, _read_secret(), _own_vault(settings), utc_now())
        print_record({"name": target_id, "fingerprint": fingerprint}, as_json)


def _integration_command(integration: Integration) -> None:
    example = f'Example: printf %s "$SECRET" | riskrelay secret set {integration.value}'

    summary = summary_of("secret", "set", integration.value)

    @set_secret.command(integration.value, help=summary, epilog=f"{example}\n\nExit codes: 0 set, 1 refused, 2 wrong usage.")
    @json_option
    def set_integration(as_json: bool) -> None:
        with opened() as settings:
            shared = SharedSecrets(settings, _own_vault(settings))
            fingerprint = shared.set(integration, _read_secret(), utc_now())
            print_record({"name": integration.value, "fingerprint": fingerprint}, as_json)


for each in Integration:
    _integration_command(each)


@secret.command("list", epilog="Example: riskrelay secret list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_secrets(as_json: bool) -> None:
    """List secrets as fingerprints, with connected status and last validation.

    Also shows when requests of each integration were last accepted and last refused: it is `connected` if the newest one was
    accepted, and `failing` if it was refused.
    """
    with opened() as settings:
        records = [*_integrations(settings), *_targets(settings)]
        columns = (
            "name",
            "configured",
            "source",
            "fingerprint",
            "connected",
            "last_validation",
            "last_accepted_at",
            "last_refused_at",
        )
        print_records(records, as_json, columns, "There are no secrets.")


def _integrations(settings: Settings) -> list[dict[str, object]]:
    states = SharedSecrets(settings, Vault(settings.encryption_keys)).states()
    accepted, refused = integrations.last_accepted(), rejections.last()
    sources = [SOURCES[Integration(state.name)] for state in states]
    return [
        _integration(state, accepted[source], refused.get(source)) for state, source in zip(states, sources, strict=True)
    ]


def _integration(state: SecretState, accepted_at: datetime | None, rejection: Rejection | None) -> dict[str, object]:
    return {
        **asdict(state),
        "connected": connected_status(accepted_at, rejection),
        "last_validation": None,
        "last_accepted_at": rfc3339_or_none(accepted_at),
        "last_refused_at": rfc3339_or_none(rejection.at if rejection else None),
        "last_refusal": rejection.code if rejection else None,
    }


def _targets(settings: Settings) -> list[dict[str, object]]:
    default = DefaultSecret.of(settings, Vault(settings.encryption_keys))
    return [_target(each) for each in targets.list_all(default)]


def _target(target: Target) -> dict[str, object]:
    record = dump_target(target, utc_now())
    source = "database" if target.has_own_secret else "environment"
    return {
        "name": target.id,
        **record["secret"],
        "source": source if target.secret_fingerprint else None,
        "connected": target.connected_status,
        "last_validation": target.validation_status,
        "last_accepted_at": rfc3339_or_none(target.last_success_at),
        "last_refused_at": None,
        "last_refusal": None,
    }


def _own_vault(settings: Settings) -> Vault:
    """Return the vault, after checking that ENCRYPTION_KEYS belong to this installation's database."""
    vault = Vault(settings.encryption_keys)
    check_keys(vault, utc_now())
    return vault


def _read_secret() -> str:
    """Read standard input and strip one trailing newline; a terminal does not echo it."""
    on_terminal = sys.stdin.isatty()
    text = click.prompt("Secret", hide_input=True, err=True) if on_terminal else sys.stdin.read(MAX_SECRET + 2)
    secret = secret_from(text)
    if isinstance(secret, SecretFault):
        raise Refused(_MESSAGES[secret])
    return secret
