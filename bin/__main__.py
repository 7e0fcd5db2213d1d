"""`bin/riskrelay`: every verb as one command. A verb's module is loaded when the verb is named, so that help is quick."""

import importlib
import os
import sys
from types import TracebackType
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from schemas.base.errors import RiskRelayError
from schemas.version import VERSION

#: verb -> module of this package; the command in it has the verb's name.
VERBS = {
    "init": "init",
    "run": "run",
    "serve": "serve",
    "work": "work",
    "migrate": "migrate",
    "account": "account",
    "user": "user",
    "project": "project",
    "report": "report",
    "scan-run": "scan_run",
    "grant": "grant",
    "token": "token",
    "session": "session",
    "secret": "secret",
    "target": "target",
    "export": "export",
    "sweep": "sweep",
    "compliance": "compliance",
    "prune": "prune",
    "rotate-keys": "rotate_keys",
    "backup": "backup",
    "restore": "restore",
    "doctor": "doctor",
    "completion": "completion",
    "listen": "listen",
    "trigger": "trigger",
    "import-scan": "import_scan",
    "demo": "demo",
}

#: Letters of a first sentence; click would cut it off at the end of the line.
_LONGEST_SENTENCE: Final = 200


class Verbs(click.Group):
    """Loads a verb when it is asked for, and tells a refusal in one line with exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of an installation's life."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command, or None for a word that is none."""
        module = VERBS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"bin.commands.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their first sentence, whole."""
        found = [(verb, command) for verb in VERBS if (command := self.get_command(ctx, verb)) is not None]
        with formatter.section("Commands"):
            formatter.write_dl([(verb, command.get_short_help_str(_LONGEST_SENTENCE)) for verb, command in found])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs by their names alone: for what they are, each would have to be loaded."""
        named = [CompletionItem(verb) for verb in VERBS if verb.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what the domain refuses is told, not traced."""
        try:
            return super().invoke(ctx)
        except RiskRelayError as refused:
            click.echo(f"riskrelay: {_told(refused)}", err=True)
            ctx.exit(1)


def _told(refused: RiskRelayError) -> str:
    """Return the refusal in one line, with the members it is about."""
    about = "; ".join(f"{each.path} {each.message}".strip() for each in refused.problems)
    return f"{refused.message}: {about}" if about else refused.message


def _tell_bug(_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Tell what ended a command unforeseen, as the logs do: its words may quote a row, and cron mails them to somebody."""
    from runtime.logs import quiet_trace  # noqa: PLC0415 - help is quick without it

    click.echo(quiet_trace(error), err=True)
    click.echo(f"riskrelay: a bug ended this command ({_kind(error)}); the lines above say where.", err=True)


def _kind(error: BaseException) -> str:
    """Name the kind of an error, and what the system calls its number: it quotes nothing, and may say what to mend."""
    name = type(error).__name__
    # Others count in numbers of their own: those of names and of TLS.
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return f"{name}: {os.strerror(error.errno)}"
    return name


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="riskrelay")
def riskrelay() -> None:
    """RiskRelay: website-risk findings in, signed and delivered tickets out.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration.
    """


if __name__ == "__main__":
    sys.excepthook = _tell_bug
    riskrelay(prog_name="riskrelay")
