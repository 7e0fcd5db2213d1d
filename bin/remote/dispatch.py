"""Runs a command against the API of another host: options are parsed as usual, then requests are sent."""

import copy
import importlib
from typing import Any, Final

import click

from bin.api_client.client import ApiClient
from bin.cli.lazy_group import load
from bin.commands.tools.import_scan import checked_url
from bin.remote.credentials import token_for
from bin.remote.remote_command import RemoteCommand

#: The modules of remote commands, by the first word of the command.
_MODULES: Final = {
    **dict.fromkeys(("account", "user", "project", "scan-run", "grant", "token"), "accounts"),
    "target": "targets",
    **dict.fromkeys(("audit", "compliance"), "logs"),
    "export": "exports",
    **dict.fromkeys(("rule", "session", "receipt"), "records"),
}
#: Commands that use no installation; they run as they do without a URL.
LOCAL: Final = frozenset({("completion",), ("demo",), ("listen",), ("trigger",), ("receipt", "verify")})
_REASONS: Final = {"secret": "Secrets are never sent over the API. "}


def with_url(path: tuple[str, ...], url: str) -> click.Command:
    """Return the remote form, at `url`, of the command at `path`; a command that has none refuses to run."""
    command = copy.copy(load(path))
    if path in LOCAL:
        return command
    if path == ("import-scan",):
        # This command uses the scanner's secret instead of a token.
        command.context_settings = {"default_map": {"url": url}}
        return command
    found = remote_command_of(path)
    command.params = [_optional(each) if found and each.name in found.without else each for each in command.params]
    by_name = {each.name: each for each in command.params}

    def run(**given: Any) -> None:
        if found is None:
            reason = _REASONS.get(path[0], "")
            raise click.UsageError(f"{reason}`{' '.join(path)}` runs on the server: without --url.")
        for name in found.without:
            if given.pop(name):
                raise click.UsageError(f"{by_name[name].opts[0]} is not available with --url: {found.why}.")
        api = ApiClient(checked_url(url, "--url", "the token"), token_for(url))
        found.run(api, **given)

    command.callback = run
    return command


def remote_command_of(path: tuple[str, ...]) -> RemoteCommand | None:
    """Return the remote form of a command, or None for one that runs on the server only."""
    module = _MODULES.get(path[0])
    if module is None:
        return None
    commands: dict[tuple[str, ...], RemoteCommand] = importlib.import_module(f"bin.remote.{module}").REMOTE_COMMANDS
    return commands.get(path)


def _optional(parameter: click.Parameter) -> click.Parameter:
    parameter = copy.copy(parameter)
    parameter.required = False
    return parameter
