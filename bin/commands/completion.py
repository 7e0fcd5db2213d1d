"""`completion`: the script by which a shell completes verbs, options and choices.

It is click's own, with the path of this program instead of its name: bin/riskrelay need not be on PATH.
"""

import shlex
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

PROGRAM: Final = Path(__file__).resolve().parents[1] / "riskrelay"
NAME: Final = "riskrelay"

#: How each shell's script calls the program; the last word becomes its path.
_CALLS: Final = {
    "bash": "=bash_complete $1",
    "zsh": f"=zsh_complete {NAME}",
    "fish": f"(commandline -t) {NAME}",
}
#: zsh's would give up where the program is not on PATH.
_ONLY_ON_PATH: Final = f"    (( ! $+commands[{NAME}] )) && return 1\n"


@click.command(
    epilog="""\b
Example:
  riskrelay completion bash > ~/.local/share/bash-completion/completions/riskrelay
  riskrelay completion zsh > ~/.zfunc/_riskrelay
  riskrelay completion fish > ~/.config/fish/completions/riskrelay.fish
  eval "$(riskrelay completion bash)"

\b
Exit codes: 0 printed, 2 wrong usage."""
)
@click.argument("shell", type=click.Choice(list(_CALLS)))
def completion(shell: str) -> None:
    """Print the shell completion script.

    Put it where the shell looks for such scripts, or `eval` it for this shell alone. bash needs its bash-completion package
    for the former, zsh a folder of its $fpath. Print it anew when the program has moved.
    """
    click.echo(script(shell, PROGRAM))


def script(shell: str, program: Path) -> str:
    """Return the script of `shell` for the program at a path, whatever that has in it."""
    made = get_completion_class(shell)
    if made is None:
        raise LookupError(f"click completes for no shell called {shell}.")
    source = made(click.Command(NAME), {}, NAME, f"_{NAME}_COMPLETE".upper()).source()
    words, _, _ = _CALLS[shell].rpartition(" ")
    return source.replace(_CALLS[shell], f"{words} {shlex.quote(str(program))}").replace(_ONLY_ON_PATH, "")
