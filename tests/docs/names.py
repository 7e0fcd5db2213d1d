"""Finds names in the documentation and verifies them: commands with options, make targets and modules."""

import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click

from bin.command_table import DEFAULTS
from tests.docs.snippets import Snippet
from tools.reference import Leaf, leaves

ROOT: Final = Path(__file__).resolve().parents[2]

LEAVES: Final = {leaf.words: leaf for leaf in leaves()}
GROUPS: Final = {words[:length] for words in LEAVES for length in range(1, len(words))}

#: Placeholders for the reader's values: `ID`, `$EXPORT`, `…`, `<file>`.
_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_-]*|.*[$…<].*")
#: Separates two shell commands.
_PUNCTUATION: Final = frozenset("();<>|&")
_PROGRAM: Final = re.compile(r"(.*/)?riskrelay")
#: Options of other programs that are named without the program: curl, HTTPie, Lighthouse, mkdocs.
OPTIONS_OF_OTHERS: Final = frozenset(
    {"--retry", "--retry-connrefused", "--check-status", "--ignore-stdin", "--only-categories", "--strict"}
)
_VERB: Final = re.compile(r"[a-z][a-z-]*")


# --- commands


def flags(leaf: Leaf) -> set[str]:
    """Return all names of a command's options."""
    named = {name for option in leaf.options for name in (*option.opts, *option.secondary_opts)}
    return {*named, "--help", "-h"}


def split_command(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Split `words` into the longest known command and the rest; options alone mean the default command of a group."""
    default = DEFAULTS.get(words[0]) if words else None
    if default and len(words) > 1 and words[1].startswith("--"):
        words = [words[0], default, *words[1:]]
    length = max((len(path) for path in (*LEAVES, *GROUPS) if tuple(words[: len(path)]) == path), default=0)
    return tuple(words[:length]), words[length:]


def error_in_command(words: list[str]) -> str | None:
    """Return the error in a command line that may be incomplete, or None."""
    path, rest = split_command(words)
    if path not in LEAVES:
        # A group may be named alone or with a placeholder.
        is_group = path in GROUPS and (not rest or not re.fullmatch(r"[a-z][a-z-]*", rest[0]))
        return None if is_group else f"no command: {' '.join(words)}"
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in flags(LEAVES[path])]
    return f"{' '.join(path)} has no {', '.join(unknown)}" if unknown else None


def error_in_complete_command(words: list[str]) -> str | None:
    """Return the error in a complete command line, or None."""
    path, rest = split_command(words)
    if path not in LEAVES:
        return f"no command: {' '.join(words)}"
    misused = None if {"--help", "-h"} & {*rest} else _usage_error(LEAVES[path], rest)
    return f"{' '.join(words)}: {misused}" if misused else None


def _usage_error(leaf: Leaf, rest: list[str]) -> str | None:
    """Return click's error message for the arguments of a command, without running callbacks or opening files."""
    try:
        given, _, _ = leaf.command.make_parser(leaf.context).parse_args(list(rest))
        for parameter in leaf.command.params:
            _convert(parameter, given.get(parameter.name or ""), leaf.context)
    except click.UsageError as wrong:
        return wrong.format_message()
    return None


def _convert(parameter: click.Parameter, value: Any, context: click.Context) -> None:
    values = [each for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, str)]
    if parameter.required and not values:
        raise click.MissingParameter(ctx=context, param=parameter)
    for each in values:
        # Files belong to the reader, so their existence and content are not checked.
        if not _PLACEHOLDER.fullmatch(each) and not isinstance(parameter.type, (click.Path, click.File)):
            parameter.type.convert(each, parameter, context)


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every call of the program in a text."""
    for line in text.replace("\\\n", " ").splitlines():
        # After an option, `riskrelay` is a user name.
        for found in re.finditer(r"(?:^|(?<!-\w)[\s$(`;|\"'/])riskrelay +(?P<words>[a-z][^`]*)", line):
            yield _words(re.split(r"[;|&)>]| #|  +\(", found["words"])[0])


def inline_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of inline code that starts with a verb: `target resume ID`, `trigger --all`."""
    for code in re.findall(r"`([^`\n]+)`", text):
        words = code.replace("\\|", "|").split()
        if len(words) > 1 and (words[0],) in GROUPS:
            yield from ([*words[:1], name, *words[2:]] for name in words[1].split("|"))
        elif len(words) > 1 and (words[0],) in LEAVES and words[1].startswith("-"):
            yield words


@cache
def options() -> frozenset[str]:
    """Return all options of the commands, the examples, the benchmarks and the soak test."""
    sources = "".join(
        path.read_text() for folder in ("bench", "examples", "soak") for path in sorted((ROOT / folder).rglob("*.py"))
    )
    return frozenset(
        {*re.findall(r'"(--[a-z][a-z-]*)"', sources), *(flag for leaf in LEAVES.values() for flag in flags(leaf))}
    )


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return [word.rstrip(",.:") for word in words]


# --- shell scripts


def shell_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell script, without leading assignments."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*_tokens(line), ";"]:
            if not _PUNCTUATION.issuperset(word):
                words.append(word)
            elif words:
                yield from _simple(words)
                words = []


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        # A quotation over several lines; no RiskRelay command has one.
        return line.split()


def _simple(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    if words:
        yield words


def errors_in_block(snippet: Snippet) -> list[str]:
    """Return the wrong commands, make targets and modules in a block of sh or cron."""
    return [f"{snippet.place}: {error}" for words in shell_commands(snippet.text) for error in _errors_in_command(words)]


def errors_in_inline_code(code: str) -> list[str]:
    """Return the wrong options and modules in inline code without a command: `--json`, `python -m soak`."""
    words = code.split()
    if words[0].startswith("--"):
        named = (word.partition("=")[0] for word in words if word.startswith("--"))
        return [f"no option: {each}" for each in named if each not in options() | OPTIONS_OF_OTHERS]
    return [error for words in shell_commands(code) if words[1:2] == ["-m"] for error in _errors_in_command(words)]


def _errors_in_command(words: list[str]) -> Iterator[str]:
    name = Path(words[0]).name
    if name == "make":
        yield from (f"no make target: {word}" for word in words[1:] if is_target_word(word) and word not in make_targets())
    elif (at := _program_at(words)) is not None:
        error = error_in_complete_command(words[at + 1 :])
        yield from [error] if error else []
    elif name.startswith("python") and words[1:2] == ["-m"]:
        yield from _errors_in_module(words[2], words[3:])


def _program_at(words: Sequence[str]) -> int | None:
    """Return the index of the program's call; without a following verb, `riskrelay` is a user or folder name."""
    calls = (at for at, (word, verb) in enumerate(pairwise(words)) if _PROGRAM.fullmatch(word) and _VERB.fullmatch(verb))
    return next(calls, None)


def is_target_word(word: str) -> bool:
    """Return whether a word after `make` is a target and not a variable or an option."""
    return re.fullmatch(r"[a-z][a-z-]*", word) is not None


@cache
def make_targets() -> frozenset[str]:
    """Return the targets that `make help` lists."""
    return frozenset(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _errors_in_module(name: str, rest: Sequence[str]) -> Iterator[str]:
    found = importlib.util.find_spec(name)
    if found is None:
        yield f"no module: {name}"
        return
    if not (ROOT / name.replace(".", "/")).exists() and not (ROOT / f"{name.replace('.', '/')}.py").exists():
        return
    sources = Path(found.origin or "").read_text()
    if found.submodule_search_locations is not None:
        sources = "".join(path.read_text() for path in sorted((ROOT / name).glob("*.py")))
    # Searching the source avoids importing the module to read its argparse options.
    yield from (f"{name} has no {word}" for word in rest if word.startswith("--") and f'"{word}"' not in sources)
