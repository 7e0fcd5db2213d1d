"""What the documents name: commands with their options, make targets, modules, settings, routes, codes and files.

Each `wrong_with_…` returns what is wrong with a name, None where there is nothing.
"""

import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click

from bin.reference import Leaf, leaves
from tests.docs.snippets import Snippet

ROOT: Final = Path(__file__).resolve().parents[2]

LEAVES: Final = {leaf.words: leaf for leaf in leaves()}
GROUPS: Final = {words[:length] for words in LEAVES for length in range(1, len(words))}

#: What stands for something of the reader's: `ID`, `$EXPORT`, `…`, `<file>`.
_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_-]*|.*[$…<].*")
#: Between two commands of a shell.
_PUNCTUATION: Final = frozenset("();<>|&")
_PROGRAM: Final = re.compile(r"(.*/)?riskrelay")
#: Options of other programs that documents tell without the program: curl, HTTPie, Lighthouse, mkdocs.
OPTIONS_OF_OTHERS: Final = frozenset(
    {"--retry", "--retry-connrefused", "--check-status", "--ignore-stdin", "--only-categories", "--strict"}
)
_VERB: Final = re.compile(r"[a-z][a-z-]*")


# --- commands


def flags(leaf: Leaf) -> set[str]:
    """Return every spelling of a command's options."""
    named = {name for option in leaf.options for name in (*option.opts, *option.secondary_opts)}
    return {*named, "--help", "-h"}


def called(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the longest command that `words` begin with, and what follows it."""
    length = max((len(path) for path in (*LEAVES, *GROUPS) if tuple(words[: len(path)]) == path), default=0)
    return tuple(words[:length]), words[length:]


def wrong_with(words: list[str]) -> str | None:
    """Return what is wrong with a command line that may be told in part, None where there is nothing."""
    path, rest = called(words)
    if path not in LEAVES:
        # A group may be named alone, or with something in place of one of its commands.
        is_told = path in GROUPS and (not rest or not re.fullmatch(r"[a-z][a-z-]*", rest[0]))
        return None if is_told else f"no command: {' '.join(words)}"
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in flags(LEAVES[path])]
    return f"{' '.join(path)} has no {', '.join(unknown)}" if unknown else None


def wrong_with_whole(words: list[str]) -> str | None:
    """Return what is wrong with a command line that is typed as it stands, None where there is nothing."""
    path, rest = called(words)
    if path not in LEAVES:
        return f"no command: {' '.join(words)}"
    misused = None if {"--help", "-h"} & {*rest} else _misuse(LEAVES[path], rest)
    return f"{' '.join(words)}: {misused}" if misused else None


def _misuse(leaf: Leaf, rest: list[str]) -> str | None:
    """Return what click would say to what follows a command; no callback is run and no file is looked for."""
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
        # Whether a file is there, and what it holds, is the reader's.
        if not _PLACEHOLDER.fullmatch(each) and not isinstance(parameter.type, (click.Path, click.File)):
            parameter.type.convert(each, parameter, context)


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every call of the program in a text, up to what ends a command in a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        # Behind an option it is a user of that name.
        for found in re.finditer(r"(?:^|(?<!-\w)[\s$(`;|\"'/])riskrelay +(?P<words>[a-z][^`]*)", line):
            yield _words(re.split(r"[;|&)>]| #|  +\(", found["words"])[0])


def inline_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every inline code that begins with a verb: `target resume ID`, `trigger --all`."""
    for code in re.findall(r"`([^`\n]+)`", text):
        words = code.replace("\\|", "|").split()
        if len(words) > 1 and (words[0],) in GROUPS:
            yield from ([*words[:1], name, *words[2:]] for name in words[1].split("|"))
        elif len(words) > 1 and (words[0],) in LEAVES and words[1].startswith("-"):
            yield words


@cache
def options() -> frozenset[str]:
    """Return every option of every command, of the examples, and of what measures and kills."""
    sources = "".join(
        path.read_text() for room in ("bench", "examples", "soak") for path in sorted((ROOT / room).rglob("*.py"))
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


# --- what a shell would be given


def typed(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell script, each as its words; assignments before it are left out."""
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
        # A quotation over several lines: no command of ours has one.
        return line.split()


def _simple(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    if words:
        yield words


def wrong_in(snippet: Snippet) -> list[str]:
    """Return what is wrong with the names in a block of sh or cron: commands, make targets, modules."""
    return [f"{snippet.place}: {told}" for words in typed(snippet.text) for told in _wrong_in_command(words)]


def wrong_in_inline(code: str) -> list[str]:
    """Return what is wrong with options and modules that an inline code names alone: `--json`, `python -m soak`."""
    words = code.split()
    if words[0].startswith("--"):
        named = (word.partition("=")[0] for word in words if word.startswith("--"))
        return [f"no option: {each}" for each in named if each not in options() | OPTIONS_OF_OTHERS]
    return [told for words in typed(code) if words[1:2] == ["-m"] for told in _wrong_in_command(words)]


def _wrong_in_command(words: list[str]) -> Iterator[str]:
    name = Path(words[0]).name
    if name == "make":
        yield from (f"no make target: {word}" for word in words[1:] if is_target_word(word) and word not in make_targets())
    elif (at := _program_at(words)) is not None:
        told = wrong_with_whole(words[at + 1 :])
        yield from [told] if told else []
    elif name.startswith("python") and words[1:2] == ["-m"]:
        yield from _wrong_with_module(words[2], words[3:])


def _program_at(words: Sequence[str]) -> int | None:
    """Return where the program is called: elsewhere its name is a user's or a folder's, without a verb behind it."""
    calls = (at for at, (word, verb) in enumerate(pairwise(words)) if _PROGRAM.fullmatch(word) and _VERB.fullmatch(verb))
    return next(calls, None)


def is_target_word(word: str) -> bool:
    """Tell whether a word behind `make` names a target, rather than a variable or an option."""
    return re.fullmatch(r"[a-z][a-z-]*", word) is not None


@cache
def make_targets() -> frozenset[str]:
    """Return the targets of the Makefile that are told by `make help`."""
    return frozenset(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _wrong_with_module(name: str, rest: Sequence[str]) -> Iterator[str]:
    found = importlib.util.find_spec(name)
    if found is None:
        yield f"no module: {name}"
        return
    if not (ROOT / name.replace(".", "/")).exists() and not (ROOT / f"{name.replace('.', '/')}.py").exists():
        return
    sources = Path(found.origin or "").read_text()
    if found.submodule_search_locations is not None:
        sources = "".join(path.read_text() for path in sorted((ROOT / name).glob("*.py")))
    # That it is written there is what argparse would find; to ask it would import everything.
    yield from (f"{name} has no {word}" for word in rest if word.startswith("--") and f'"{word}"' not in sources)
