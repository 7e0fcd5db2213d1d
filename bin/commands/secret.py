"""`secret`: set shared secrets of integrations and signing secrets of targets; no secret is ever printed."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.output import echo
from bin.cli.records import Record, RecordTable, json_option, print_record
from bin.cli.secret_input import own_vault, read_certificate, read_line, read_secret
from bin.command_table import COMMAND_TABLE
from runtime.clock import utc_now
from schemas.api.targets import dump_target
from schemas.base.principal import OPERATOR
from schemas.base.timestamps import format_rfc3339_or_none
from schemas.intake.sources import connected_status
from schemas.settings.definitions import Settings
from schemas.targets.target import TargetStatus
from service.operations.wiring import Operations, build_operations
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.integrations import SOURCES, Integration, SharedSecrets
from storage.secrets.vault import Vault
from storage.targets import certificates, targets, webhook_secrets

_SECRETS: Final = RecordTable(
    (
        *("name", "configured", "source", "fingerprint", "connected"),
        *("last_validation", "last_accepted_at", "last_refused_at"),
    ),
    "There are no secrets.",
)

secret: Final = click.Group("secret")


_set: Final = click.Group("set")
secret.add_command(_set)


@_set.command()
@click.argument("target_id")
@click.option(
    "--header",
    metavar="NAME",
    help="Set a header of this name to the value on standard input; a webhook can have up to four.",
)
@click.option(
    "--standard-webhooks", is_flag=True, help="Set the Standard Webhooks secret: whsec_ and base64 of 24 to 64 bytes."
)
@click.option(
    "--client-certificate",
    is_flag=True,
    help="Set the client certificate: PEM of the certificate, its chain and its private key.",
)
@click.option("--remove", is_flag=True, help="Remove the header, the Standard Webhooks secret or the client certificate.")
@json_option
def target(
    target_id: str, header: str | None, standard_webhooks: bool, client_certificate: bool, remove: bool, as_json: bool
) -> None:
    """Set the signing secret of a webhook, or the token of a tracker.

    Jira Cloud needs `email:token`; the documentation of targets names the token of each tracker. A worker validates the
    target with it afterwards.

    Examples: printf %s "$SECRET" | riskrelay secret set target tgt_…; printf %s "Bearer $TOKEN" | riskrelay secret set
    target tgt_… --header Authorization

    Exit codes: 0 set, 1 refused, 2 wrong usage.
    """
    chosen = (header is not None) + standard_webhooks + client_certificate
    if chosen > 1:
        raise click.UsageError("Use one of --header, --standard-webhooks and --client-certificate.")
    if remove and not chosen:
        raise click.UsageError("--remove needs --header, --standard-webhooks or --client-certificate.")
    with opened() as settings:
        operations = build_operations(settings)
        if not chosen:
            _set_own_secret(target_id, operations, own_vault(settings), as_json)
            return
        now, vault, fingerprint = utc_now(), own_vault(settings), None
        if header is not None:
            kind: dict[str, object] = {"header": header}
            if remove:
                webhook_secrets.remove_header(target_id, header, vault, now, OPERATOR.key)
            else:
                value = read_line(f"Value of {header}")
                fingerprint = webhook_secrets.set_header(target_id, header, value, vault, now, OPERATOR.key)
        elif standard_webhooks:
            kind = {"standard_webhooks": True}
            if remove:
                webhook_secrets.remove_standard_secret(target_id, now, OPERATOR.key)
            else:
                value, default = read_line("Standard Webhooks secret"), operations.targets.default_secret
                fingerprint = webhook_secrets.set_standard_secret(target_id, value, vault, default, now, OPERATOR.key)
            operations.wake_workers()
        else:
            kind = {"client_certificate": True}
            if remove:
                certificates.remove_certificate(target_id, now, OPERATOR.key)
            else:
                fingerprint = certificates.set_certificate(target_id, read_certificate(), vault, now, OPERATOR.key)
        print_record({"name": target_id, **kind, **({"removed": True} if remove else {"fingerprint": fingerprint})}, as_json)


def _set_own_secret(target_id: str, operations: Operations, vault: Vault, as_json: bool) -> None:
    """Set the signing secret of a webhook, or the token of a tracker."""
    found = operations.targets.get(target_id, OPERATOR)
    secret = read_secret("Token", "") if found.is_tracker else read_secret()
    fingerprint = operations.targets.set_secret(target_id, secret, vault, OPERATOR)
    operations.wake_workers()
    print_record({"name": target_id, "fingerprint": fingerprint}, as_json)
    if found.is_tracker and found.status is TargetStatus.BLOCKED:
        echo(f"riskrelay: the target is blocked; continue with `riskrelay target resume {target_id}`.", err=True)


def _integration_command(integration: Integration) -> None:
    name = integration.value
    example = f'Example: printf %s "$SECRET" | riskrelay secret set {name}'
    summary = COMMAND_TABLE[f"secret set {name}"]

    @_set.command(name, help=f"{summary}\n\n{example}\n\nExit codes: 0 set, 1 refused, 2 wrong usage.")
    @json_option
    def set_integration(as_json: bool) -> None:
        with opened() as settings:
            shared = SharedSecrets(settings, own_vault(settings))
            fingerprint = shared.set(integration, read_secret(), utc_now())
            print_record({"name": name, "fingerprint": fingerprint}, as_json)


for each in Integration:
    _integration_command(each)


@secret.command("list")
@with_database(_SECRETS.show, lambda settings: settings)
def list_secrets(settings: Settings) -> list[Record]:
    """List secrets as fingerprints, with connected status and last validation.

    Also shows when requests of each integration were last accepted and last refused: it is `connected` if the newest one was
    accepted, and `failing` if it was refused.

    Example: riskrelay secret list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [*_integrations(settings), *_targets(settings), *_certificates()]


def _integrations(settings: Settings) -> Iterator[dict[str, object]]:
    accepted, refused = integrations.last_accepted(), rejections.last()
    for state in SharedSecrets(settings, Vault(settings.encryption_keys)).states():
        source = SOURCES[Integration(state.name)]
        accepted_at, rejection = accepted[source], refused.get(source)
        yield {
            **asdict(state),
            "connected": connected_status(accepted_at, rejection),
            "last_validation": None,
            "last_accepted_at": format_rfc3339_or_none(accepted_at),
            "last_refused_at": format_rfc3339_or_none(rejection.at if rejection else None),
            "last_refusal": rejection.code if rejection else None,
        }


def _targets(settings: Settings) -> Iterator[dict[str, object]]:
    """Yield the secret of each target, its headers and its Standard Webhooks secret."""
    for each in targets.list_all(DefaultSecret.of(settings, Vault(settings.encryption_keys))):
        source = "database" if each.has_own_secret else "environment"
        record = {
            "name": each.id,
            **dump_target(each, utc_now())["secret"],
            "source": source if each.secret_fingerprint else None,
            "connected": each.connected_status,
            "last_validation": each.validation_status,
            "last_accepted_at": format_rfc3339_or_none(each.last_success_at),
            "last_refused_at": None,
            "last_refusal": None,
        }
        yield record
        beside = {**record, "configured": True, "source": "database"}
        for header in each.headers:
            yield {**beside, "name": f"{each.id} header {header.name}", "fingerprint": header.fingerprint}
        if each.has_standard_secret:
            yield {**beside, "name": f"{each.id} standard-webhooks", "fingerprint": each.standard_secret_fingerprint}


def _certificates() -> list[dict[str, object]]:
    """Return the client certificates of targets, without a status: only a target as a whole has one."""
    unknown = dict.fromkeys(("connected", "last_validation", "last_accepted_at", "last_refused_at", "last_refusal"))
    return [
        {"name": f"{target_id} client certificate", "configured": True, "source": "database", "fingerprint": each, **unknown}
        for target_id, each in certificates.certificate_fingerprints().items()
    ]
