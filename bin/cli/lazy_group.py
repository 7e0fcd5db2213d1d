"""A click group that prints its help from the command table, and imports a command only to run it."""

import gc
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import click
from click.shell_completion import CompletionItem

from bin.command_table import DEFAULTS, commands_of

#: The module of commands against a remote installation. Imported by its name, because its layer is above this module, and
#: because other commands are quick without it.
REMOTE: Final = "bin.remote.dispatch"
#: The modules of commands that have no module of their own name in `bin.commands`.
_MODULES: Final = {
    **dict.fromkeys(("account", "user", "grant"), "accounts"),
    **dict.fromkeys(("project", "scan-run", "report"), "projects"),
    **dict.fromkeys(("token", "session"), "tokens"),
    **{name: f"exports.{name}" for name in ("export", "rule", "receipt")},
    **{name: f"installation.{name}" for name in ("init", "doctor", "migrate", "run", "serve", "work", "sweep")},
    **{name: f"upkeep.{name}" for name in ("backup", "restore", "prune", "rotate-keys")},
    **{name: f"tools.{name}" for name in ("listen", "trigger", "import-scan", "demo", "completion")},
}


class LazyGroup(click.Group):
    """Lists the commands of the group that the words `within` name; imports each from the module of its first word."""

    def __init__(self, *args: Any, within: tuple[str, ...] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._within = within
        self._table = commands_of(*within)
        # Only the names are used: the error about an unknown command suggests similar ones.
        self.commands = {name: click.Command(name) for name in self._table}
        self._default = DEFAULTS.get(" ".join(within))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if they begin with an option other than help, they belong to the default command."""
        if self._default and args and args[0].startswith("--") and args[0] not in ctx.help_option_names:
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None for an unknown name; a group is not imported."""
        if cmd_name not in self._table:
            return None
        path = (*self._within, cmd_name)
        if commands_of(*path):
            return LazyGroup(cmd_name, help=self._table[cmd_name], within=path)
        url = ctx.find_root().params.get("url")
        with _uncollected():
            return load(path) if url is None else importlib.import_module(REMOTE).with_url(path, url)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its whole summary; click would cut it at the end of the line."""
        with formatter.section("Commands"):
            formatter.write_dl([*self._table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands; their summaries would not fit beside them."""
        named = [CompletionItem(name) for name in self._table if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


def load(path: tuple[str, ...]) -> click.Command:
    """Import and return the command at `path`, such as `("secret", "set", "target")`."""
    if path[0] != "completion":
        # `completion` is quick: it needs no settings.
        _leave_out_unused_packages()
    module = importlib.import_module(f"bin.commands.{_MODULES.get(path[0], path[0])}".replace("-", "_"))
    command: click.Command = getattr(module, path[0].replace("-", "_"))
    for name in path[1:]:
        command = cast(click.Group, command).commands[name]
    _move_below_options(command)
    return command


def _move_below_options(command: click.Command) -> None:
    """Move the examples and exit codes from the end of a docstring below the options; lists keep their line breaks."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    below = [each for each in paragraphs if each.startswith(("Example", "Exit codes:"))]
    if below:
        command.help = "\n\n".join(each for each in paragraphs if each not in below)
        command.epilog = "\n\n".join(f"\b\n{each}" if ":\n" in each else " ".join(each.split()) for each in below)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Import without garbage collections, and exclude the imported objects from later ones, such as the one at exit.

    Imported objects are never garbage; checking them takes a fifth to a quarter of a short command.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _leave_out_unused_packages() -> None:
    """Prevent imports of packages that the settings do not need: they take a fifth of the time of a short command."""
    from runtime import tracing  # noqa: PLC0415 - help is quick without it
    from schemas.settings.definitions import InvalidSettings, load_settings  # noqa: PLC0415 - as above
    from storage.db.drivers.unused_driver import leave_out_postgresql  # noqa: PLC0415 - as above

    try:
        settings = load_settings()
    except InvalidSettings:
        # The command reports the invalid settings, unless it needs none.
        return
    leave_out_postgresql(settings.database_url)
    tracing.leave_out_if_unused(settings)
