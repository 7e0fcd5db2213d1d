"""Generates files from the code: docs/commands.md, docs/settings.md, error codes, test vectors, parts of clients/python.

`make docs` writes the files; a test fails if they differ from the code.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from bin.__main__ import riskrelay
from bin.cli.output import echo
from bin.command_table import COMMAND_TABLE, commands_of
from schemas.base import fields
from schemas.base.errors import RiskRelayError
from schemas.content_policy import rules
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS, Setting
from service.http.error_responses import STATUS
from tools import client_library, postman_collection, vectors

ROOT: Final = Path(__file__).resolve().parent.parent
COMMANDS: Final = ROOT / "docs" / "commands.md"
SETTINGS_PAGE: Final = ROOT / "docs" / "settings.md"
ERROR_CODES: Final = ROOT / "docs" / "error-codes.md"
VECTORS: Final = ROOT / "examples" / "vectors.json"
COLLECTION: Final = ROOT / "examples" / "riskrelay.postman_collection.json"

#: The line length of the other documents.
WIDTH: Final = 125
#: Replaces an empty default.
NO_DEFAULT: Final = "none"

_PREFORMATTED: Final = "\b\n"
_PROGRAM: Final = re.compile(r"(?<![\w./-])riskrelay(?= [a-z])")
#: click's names of numbers, and ranges up to the database's largest number, which are omitted.
_NUMBER: Final = re.compile(r"(INTEGER|FLOAT)( RANGE)?")
_NO_LIMIT: Final = re.compile(r"; \d+<=x<=\d{9,}|\d+<=x<=\d{9,}(; )?")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command that is not a group: its words, such as `token create`, and click's description."""

    words: tuple[str, ...]
    command: click.Command
    context: click.Context

    @property
    def summary(self) -> str:
        """The first sentence of the command's help."""
        return _paragraphs(self.command.help)[0] if self.command.help else ""

    @property
    def options(self) -> list[click.Option]:
        """The options of the command, without `--help`."""
        return [each for each in self.command.params if isinstance(each, click.Option) and not each.hidden]


def documents() -> dict[Path, str]:
    """Return the expected content of every generated document."""
    codes = {"error codes": error_codes_table(), "field codes": field_codes_table()}
    return {
        COMMANDS: commands_page(),
        SETTINGS_PAGE: settings_page(),
        ERROR_CODES: with_tables(ERROR_CODES.read_text(encoding="utf-8"), codes),
        VECTORS: vectors.document(),
        COLLECTION: postman_collection.document(),
        **client_library.files(),
    }


def with_tables(document: str, tables: Mapping[str, str]) -> str:
    """Replace each table between its markers, `<!-- name -->` and `<!-- /name -->`."""
    for name, table in tables.items():
        document = _with_table(document, name, table)
    return document


def _with_table(document: str, name: str, table: str) -> str:
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    # A function, because backslashes in a replacement string are escapes.
    return between.sub(lambda _: f"\n{table}\n", document)


def settings_page() -> str:
    """Return docs/settings.md."""
    head = [
        "# Settings",
        "",
        *_wrapped(
            "Every setting, generated from the code by `make docs`. A value is read from the environment, otherwise from "
            "the file that the environment variable `RISKRELAY_ENV_FILE` names, by default `.env` of the checkout. The "
            "current folder has no influence: relative paths are relative to the folder of that file, and a relative "
            "`RISKRELAY_ENV_FILE` to the checkout. `<NAME>_FILE` names a file that contains the value. RiskRelay does not "
            "start with invalid or conflicting settings: it exits with 2 and reports every error, among them a line of the "
            "file that cannot be read and a name that is set twice. A missing setting has its default; generated means "
            "that `init` writes it to `.env`. In the file, `${NAME}` is replaced by that variable, also in quotes; put a "
            "secret that contains `${` in a file of its own."
        ),
        *_wrapped(
            "An empty value counts as unset, in the environment, in `.env` and in a file: a variable that a compose file "
            "passes on as `NAME: ${NAME:-}`, or `export NAME=`, does not hide the line of the same name in `.env`. To "
            "return to a default, remove the line."
        ),
        *_wrapped(
            "RiskRelay refuses the `.env` if another user can change it: if the file, a folder above it or a symbolic link "
            "to it belongs to a user other than root, the current user and the owner of the checkout, or is writable by "
            "others (a sticky folder such as `/tmp` may be; so may the group, if it is the owner's own). The report "
            "names the command that corrects it. A file that `<NAME>_FILE` names is not checked, as containers mount such "
            "files with owners and modes of their host: keep it private yourself."
        ),
    ]
    return "\n".join([*head, *(line for setting in SETTINGS for line in _setting(setting))]).rstrip() + "\n"


def _setting(setting: Setting) -> Iterator[str]:
    yield from [f"## {setting.name}", ""]
    meaning = setting.meaning[0].upper() + setting.meaning[1:] if setting.meaning[0].islower() else setting.meaning
    secret = f" Secret: prefer a file, named by `{setting.name}{FILE_SUFFIX}`." if setting.is_secret else ""
    yield from _wrapped(f"{meaning}. Default: {_default(setting)}.{secret}")


def error_codes_table() -> str:
    """Return the table of error codes, with status and message."""
    messages = {kind.code: _cell(" ".join((kind.__doc__ or "").split())) for kind in reversed(_kinds(RiskRelayError))}
    rows = [f"| `{code}` | {status} | {messages[code]} |" for code, status in STATUS.items()]
    return "\n".join(["| code | status | default `message` |", "|---|---|---|", *rows, ""])


def field_codes_table() -> str:
    """Return the table of field codes; codes of forbidden content are last."""
    messages = {**fields.MESSAGES, **rules.MESSAGES}
    rows = [f"| `{code}` | {_cell(message)} |" for code, message in messages.items()]
    return "\n".join(["| code | `message` |", "|---|---|", *rows, ""])


def _kinds(kind: type[RiskRelayError]) -> list[type[RiskRelayError]]:
    """Return an error class and its subclasses, the more general first."""
    return [kind, *(each for child in kind.__subclasses__() for each in _kinds(child))]


def commands_page() -> str:
    """Return docs/commands.md."""
    head = [
        "# Commands",
        "",
        *_wrapped(
            "Every command of `bin/riskrelay`, generated from `--help` by `make docs`. Exit codes: 0 for success, 1 for a "
            "refusal or failure, 2 for wrong usage or settings. With `--json`, standard output is one JSON document; a list "
            "is a complete array. Characters that are not printable, such as control characters and direction marks, are "
            "shown as JSON escapes (`\\u202e`), also in JSON, tables, error messages and logs."
        ),
        *_wrapped("`bin/riskrelay --url URL COMMAND` runs a command [from another host](operating.md#from-another-host)."),
    ]
    return "\n".join([*head, *(line for verb in commands_of() for line in _section(verb))]).rstrip() + "\n"


def leaves(verb: str | None = None) -> Iterator[Leaf]:
    """Yield every command that is not a group, of one verb or of all."""
    with riskrelay.make_context("riskrelay", [], resilient_parsing=True) as context:
        for each in commands_of() if verb is None else [verb]:
            command = riskrelay.get_command(context, each)
            if command is not None:
                yield from _leaves((each,), command, context)


def _leaves(words: tuple[str, ...], command: click.Command, parent: click.Context) -> Iterator[Leaf]:
    context = click.Context(command, parent, info_name=words[-1])
    if not isinstance(command, click.Group):
        yield Leaf(words, command, context)
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None:
            yield from _leaves((*words, name), child, context)


def _default(setting: Setting) -> str:
    return setting.shown or (f"`{setting.default}`" if setting.default else NO_DEFAULT)


def _section(verb: str) -> Iterator[str]:
    found = list(leaves(verb))
    yield from [f"## {verb}", ""]
    if found[0].words != (verb,):
        yield from _wrapped(COMMAND_TABLE[verb])
    for leaf in found:
        if leaf.words != (verb,):
            yield from [f"### {' '.join(leaf.words)}", ""]
        yield from _described(leaf)


def _described(leaf: Leaf) -> Iterator[str]:
    """Yield the description of one command; each block ends with an empty line."""
    for paragraph in _paragraphs(leaf.command.help or ""):
        yield from _wrapped(paragraph)
    pieces = leaf.command.collect_usage_pieces(leaf.context)
    usage = " ".join(["bin/riskrelay", *leaf.words, *(piece for piece in pieces if leaf.options or piece != "[OPTIONS]")])
    yield from ["```text", usage, "```", ""]
    if leaf.options:
        yield from ["| option | |", "|---|---|", *(_option(each, leaf.context) for each in leaf.options), ""]
    for paragraph in (leaf.command.epilog or "").split("\n\n"):
        yield from _epilog_lines(paragraph, usage)


def _option(option: click.Option, context: click.Context) -> str:
    names, help_text = option.get_help_record(context) or ("", "")
    help_text = " ".join(_NO_LIMIT.sub("", help_text).replace("  []", "").split())
    return f"| `{_cell(_NUMBER.sub('N', names))}` | {_cell(help_text)} |"


def _epilog_lines(paragraph: str, usage: str) -> list[str]:
    """Return a paragraph of an epilog: an example as a code block unless it equals `usage`, other text as text."""
    heading, colon, rest = paragraph.removeprefix(_PREFORMATTED).partition(":")
    lines = [line.strip() for line in rest.strip().splitlines()]
    if heading.startswith("Example"):
        # `--help` uses the program's name; examples in the documentation run in the checkout.
        lines = [_PROGRAM.sub("bin/riskrelay", each) for line in lines for each in line.split("; ")]
        if lines == [usage]:
            return []
        return ["For example:", "", "<!-- not run: its names and ids are examples -->", "```sh", *lines, "```", ""]
    return _wrapped(f"{heading}{colon} {'; '.join(lines)}")


def _wrapped(text: str) -> list[str]:
    return [*textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.replace("\b", "").strip())]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> None:
    """Write every document that differs from the code."""
    for path, text in documents().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            echo(f"Wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
