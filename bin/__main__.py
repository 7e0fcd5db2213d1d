"""`bin/riskrelay`: the command line. A command is imported only to run it, so that `--help` is quick."""

import os
import sys
from types import TracebackType
from typing import Any

import click

from bin.cli.lazy_group import LazyGroup
from bin.cli.output import echo, escape_unencodable
from runtime import tls_key_log
from schemas.base.errors import NoEncryptionKey, RiskRelayError
from schemas.base.printable import printable
from schemas.version import VERSION


class RiskRelayGroup(LazyGroup):
    """Prints a refusal as one line and exits with 1, or with 2 where settings are wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of the domain is printed without a traceback."""
        try:
            return super().invoke(ctx)
        except RiskRelayError as refused:
            echo(f"riskrelay: {_describe(refused)}", err=True)
            ctx.exit(2 if isinstance(refused, NoEncryptionKey) else 1)
        except PermissionError as refused:
            if not refused.filename:
                raise
            fix = "run this as the owner of the installation, or of that file"
            echo(f"riskrelay: {os.fsdecode(refused.filename)}: {refused.strerror}; {fix}.", err=True)
            ctx.exit(1)
        except click.ClickException as refused:
            refused.message = printable(refused.message, keep="\n")  # type: ignore[misc]  # final for subclasses only
            raise


def _describe(refused: RiskRelayError) -> str:
    """Return the refusal as one line with the fields it concerns."""
    about = "; ".join(": ".join(filter(None, (each.path, each.message))) for each in refused.problems)
    return f"{refused.message}: {about}" if about else refused.message


def _print_bug(_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Print an unexpected error as the logs do, without its message: a message may quote a row, and cron would mail it."""
    from runtime.logs import quiet_trace  # noqa: PLC0415 - help is quick without it

    echo(quiet_trace(error), err=True)
    echo(f"riskrelay: unexpected error ({_kind(error)}); see the lines above.", err=True)


def _kind(error: BaseException) -> str:
    """Return the type of an error, and the system's text for its number, which quotes no data and may suggest the fix."""
    name = type(error).__name__
    # Subclasses of other modules have error numbers of their own, such as those of DNS and TLS.
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return f"{name}: {os.strerror(error.errno)}"
    return name


@click.group(cls=RiskRelayGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="riskrelay")
@click.option(
    "--url",
    metavar="URL",
    help="Run the command against the API at this URL, with the token in RISKRELAY_TOKEN or in the credentials file.",
)
def riskrelay(url: str | None) -> None:
    """RiskRelay: from website-risk findings to signed, delivered tickets.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage or settings.
    """


if __name__ == "__main__":
    # Before a command is imported: requests prepares TLS when it is imported.
    tls_key_log.disable()
    sys.excepthook = _print_bug
    escape_unencodable()
    riskrelay(prog_name="riskrelay")
