"""`secret`: set shared secrets of integrations and signing secrets of targets; no secret is ever printed."""

from dataclasses import asdict
from datetime import datetime

import click

from bin.cli.installation import opened
from bin.cli.records import json_option, print_record, print_records
from bin.cli.secret_input import own_vault, read_secret
from bin.command_table import summary_of
from runtime.clock import utc_now
from schemas.api.responses import dump_target
from schemas.base.principal import OPERATOR
from schemas.base.timestamps import rfc3339_or_none
from schemas.intake.sources import Rejection, connected_status
from schemas.settings.definitions import Settings
from schemas.targets.target import Target
from service.operations.wiring import build_operations
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.integrations import SOURCES, Integration, SecretState, SharedSecrets
from storage.secrets.vault import Vault
from storage.targets import targets


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
    """Set the signing secret of a webhook, or the token of a tracker.

    Jira Cloud needs `email:token`; the documentation of targets names the token of each tracker. A worker validates the
    target with it afterwards.
    """
    with opened() as settings:
        operations = build_operations(settings).targets
        is_tracker = operations.get(target_id, OPERATOR).is_tracker
        secret = read_secret("Token", "") if is_tracker else read_secret()
        fingerprint = operations.set_secret(target_id, secret, own_vault(settings), OPERATOR)
        operations.wake_workers()
        print_record({"name": target_id, "fingerprint": fingerprint}, as_json)


def _integration_command(integration: Integration) -> None:
    example = f'Example: printf %s "$SECRET" | riskrelay secret set {integration.value}'

    summary = summary_of("secret", "set", integration.value)

    @set_secret.command(integration.value, help=summary, epilog=f"{example}\n\nExit codes: 0 set, 1 refused, 2 wrong usage.")
    @json_option
    def set_integration(as_json: bool) -> None:
        with opened() as settings:
            shared = SharedSecrets(settings, own_vault(settings))
            fingerprint = shared.set(integration, read_secret(), utc_now())
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
