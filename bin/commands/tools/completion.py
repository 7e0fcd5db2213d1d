"""`completion`: print the shell script that completes commands, options and choices.

It is click's script with the path of this program instead of its name, so bin/riskrelay need not be on PATH.
"""

import shlex
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from bin.cli.output import echo

PROGRAM: Final = Path(__file__).resolve().parents[2] / "riskrelay"
NAME: Final = "riskrelay"

#: The call of the program in each shell's script; the last word is replaced by the path.
_CALLS: Final = {"bash": "=bash_complete $1", "zsh": f"=zsh_complete {NAME}", "fish": f"(commandline -t) {NAME}"}
#: The zsh script would exit here if the program is not on PATH.
_ONLY_ON_PATH: Final = f"    (( ! $+commands[{NAME}] )) && return 1\n"


@click.command()
@click.argument("shell", type=click.Choice(list(_CALLS)))
def completion(shell: str) -> None:
    """Print the shell completion script.

    Write it to the shell's completion folder, or `eval` it in the current shell. For the former, bash needs the package
    bash-completion, and zsh a folder in $fpath. Print the script again after moving the program.

    Example:
      riskrelay completion bash > ~/.local/share/bash-completion/completions/riskrelay
      riskrelay completion zsh > ~/.zfunc/_riskrelay
      riskrelay completion fish > ~/.config/fish/completions/riskrelay.fish
      eval "$(riskrelay completion bash)"

    Exit codes: 0 printed, 2 wrong usage.
    """
    echo(script(shell, PROGRAM))


def script(shell: str, program: Path) -> str:
    """Return the script of `shell` for the program at a path, with the path quoted."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise LookupError(f"click does not support the shell {shell}.")
    source = completion_class(click.Command(NAME), {}, NAME, f"_{NAME}_COMPLETE".upper()).source()
    words, _, _ = _CALLS[shell].rpartition(" ")
    return source.replace(_CALLS[shell], f"{words} {shlex.quote(str(program))}").replace(_ONLY_ON_PATH, "")
