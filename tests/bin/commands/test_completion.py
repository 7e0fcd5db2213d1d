"""Completion in real shells: its candidates, its imports, and programs at any path."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bin.command_table import commands_of
from bin.commands.tools.completion import PROGRAM, script
from schemas.base.principal import TokenKind

ROOT: Final = Path(__file__).resolve().parents[3]

#: Slow imports that completion does not need.
SLOW: Final = ("peewee", "redis", "rq", "requests", "cryptography", "psycopg", "falcon", "gevent", "environs")

SHELLS: Final = ("bash", "zsh", "fish")


def offered(typed: str, program: Path = PROGRAM, source: Path | None = None) -> set[str]:
    """Return bash's candidates for the last word of `typed`, after it has sourced the printed script."""
    words = shlex.split(typed) + ([""] if typed.endswith(" ") else [])
    lines = [
        f"source {shlex.quote(str(source))}" if source else f'eval "$({shlex.quote(str(program))} completion bash)"',
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))})",
        f"COMP_CWORD={len(words) - 1}",
        "_riskrelay_completion riskrelay",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)], cwd="/", capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {*done.stdout.split()}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("riskrelay ", {*commands_of()}),
        ("riskrelay exp", {"export"}),
        ("bin/riskrelay rot", {"rotate-keys"}),
        ("riskrelay token ", {"create", "list", "revoke"}),
        ("riskrelay secret set s", {"scanner", "storefront"}),
        ("riskrelay token create --ki", {"--kind"}),
        ("riskrelay token create --kind ", {kind.value for kind in TokenKind}),
        ("riskrelay completion ", {*SHELLS}),
        ("riskrelay migrate --", {"--check", "--json", "--help"}),
        ("riskrelay migrate --check --", {"--json", "--help"}),
    ],
)
def test_bash_completes_commands_options_and_choices(typed: str, expected: set[str]) -> None:
    assert offered(typed) == expected


def test_hidden_options_are_not_completed() -> None:
    assert offered("riskrelay work --p") == {"--processes"}


def test_the_script_finds_a_program_outside_path_with_spaces_and_quotes_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "it's a place"
    folder.mkdir()
    (folder / "riskrelay").symlink_to(PROGRAM)
    saved = tmp_path / "saved"
    saved.write_text(script("bash", folder / "riskrelay"))
    assert offered("riskrelay exp", source=saved) == {"export"}


def test_bash_registers_the_completion_function() -> None:
    lines = f'eval "$({shlex.quote(str(PROGRAM))} completion bash)"; complete -p riskrelay'
    done = subprocess.run(["bash", "--norc", "-c", lines], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "complete -o nosort -F _riskrelay_completion riskrelay\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_calls_the_program_by_its_path_and_is_valid_in_its_shell(shell: str, tmp_path: Path) -> None:
    program = tmp_path / "a place" / "riskrelay"
    text = script(shell, program)
    assert text.count(shlex.quote(str(program))) == 1
    assert f"{shell}_complete" in text
    assert "$+commands" not in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        read = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, "")


def test_another_shell_is_wrong_usage() -> None:
    done = subprocess.run([PROGRAM, "completion", "tcsh"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["completion", "bash"], [], ["--help"], ["export", "--help"], ["secret", "set", "--help"]],
    ids=["the script", "the verbs", "help", "help of a group", "help of a group in a group"],
)
def test_completion_and_help_import_no_slow_packages(words: list[str]) -> None:
    asked = {} if words else {"COMP_WORDS": "riskrelay ", "COMP_CWORD": "1", "_RISKRELAY_COMPLETE": "bash_complete"}
    loaded = (
        "import sys\n"
        "from bin.__main__ import riskrelay\n"
        "try:\n"
        "    riskrelay(prog_name='riskrelay')\n"
        "except SystemExit:\n"
        "    print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded, *words],
        cwd=ROOT,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout
    assert {"click", "bin"} <= {*done.stderr.split()}
    assert sorted({*SLOW} & {*done.stderr.split()}) == []
