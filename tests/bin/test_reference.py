"""The documents and the code name the same settings and commands, and each command says how it is used."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from bin import reference
from bin.__main__ import VERBS, riskrelay
from bin.reference import Leaf, leaves
from schemas.errors import RiskRelayError
from schemas.settings import FILE_SUFFIX, SETTINGS

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

LEAVES: Final = {leaf.words: leaf for leaf in leaves()}
GROUPS: Final = {words[:length] for words in LEAVES for length in range(1, len(words))}

#: What runs until it is stopped, and what prints no record but text to be read or sourced, or JSON lines in any case.
WITHOUT_JSON: Final = {("init",), ("run",), ("serve",), ("work",), ("completion",), ("demo",), ("compliance", "export")}

#: What operators were promised, in the words they were promised with.
PROMISED: Final = """
    init, run, serve, work, migrate --check,
    account add --no-webhooks, user add --account, project add --account --shop-domain, report add --project,
    scan-run add --project --id, grant add --user --project --report,
    token create --user --kind --ability --name --expires-days, token list, token revoke --user,
    secret set scanner, secret set email, secret set storefront, secret set target, secret list,
    target list, target show, target validate, target ping, target pause, target resume --all, target disable,
    export list, export show, export prepare, export approve, export retry, export dismiss,
    export recover --target --since --show --cancel,
    doctor, sweep --dry-run --limit, prune --dry-run --limit, compliance run --dry-run --limit, compliance list,
    rotate-keys --dry-run --limit, backup, restore, completion,
    listen --port --secret-stdin --fail --times --retry-after --delay
"""

#: Names in capitals that documents speak of and that are no settings, by what they are.
OTHERS: Final = {
    # the reader's own shell variables
    "TOKEN", "EXPORT", "TARGET", "SECRET",
    # what receivers answer, and what a name of the README's code holds
    "WEBHOOK_SIGNATURE_INVALID", "WEBHOOK_VALIDATION_FAILED", "WEBHOOK_RATE_LIMITED",
    # make's, and what other programs read from the environment
    "ARGS", "EXTRAS", "PYTHON", "LANG", "HOME", "PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
#: Variables of programs that have many of their own.
OTHER_FAMILIES: Final = ("OTEL_", "PG", "POSTGRES_", "PROMETHEUS_", "SSL_")


def flags(leaf: Leaf) -> set[str]:
    named = {name for option in leaf.options for name in (*option.opts, *option.secondary_opts)}
    return {*named, "--help", "-h"}


def called(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the longest command that `words` begin with, and what follows it."""
    length = max((len(path) for path in (*LEAVES, *GROUPS) if tuple(words[: len(path)]) == path), default=0)
    return tuple(words[:length]), words[length:]


def wrong_with(words: list[str]) -> str | None:
    """Return what is wrong with a command line, None where there is nothing."""
    path, rest = called(words)
    if path not in LEAVES:
        # A group may be named alone, or with something in place of one of its commands.
        is_told = path in GROUPS and (not rest or not re.fullmatch(r"[a-z][a-z-]*", rest[0]))
        return None if is_told else f"no command: {' '.join(words)}"
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in flags(LEAVES[path])]
    return f"{' '.join(path)} has no {', '.join(unknown)}" if unknown else None


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every call of the program in a text, up to what ends a command in a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        # Behind an option it is a user of that name.
        for found in re.finditer(r"(?:^|(?<!-\w)[\s$(`;|\"'/])riskrelay +(?P<words>[a-z][^`]*)", line):
            yield _words(re.split(r"[;|&)>]| #|  +\(", found["words"])[0])


def inline_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every inline code that begins with a verb that has commands: `target resume ID`."""
    for code in re.findall(r"`([^`\n]+)`", text):
        words = code.replace("\\|", "|").split()
        if len(words) > 1 and (words[0],) in GROUPS:
            yield from ([*words[:1], name, *words[2:]] for name in words[1].split("|"))


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return [word.rstrip(",.:") for word in words]


# --- what is made from the code


@pytest.mark.parametrize("path", reference.documents(), ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_as_the_code_says(path: Path) -> None:
    assert path.read_text() == reference.documents()[path], "run: make docs"


def test_a_table_is_put_between_its_markers_and_nothing_else_changes() -> None:
    before = "above\n<!-- a -->\nold | table\n<!-- /a -->\nbelow <!-- b -->"
    after = reference.with_tables(before, {"a": "| new |", "b": "never"})
    assert after == "above\n<!-- a -->\n\n| new |\n<!-- /a -->\nbelow <!-- b -->"


def test_the_readme_shows_every_setting_with_its_default_once() -> None:
    table = reference.README.read_text().partition("<!-- settings -->")[2].partition("<!-- /settings -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{setting.name}`" for setting in SETTINGS]
    shown = dict(zip((setting.name for setting in SETTINGS), (row[1] for row in rows), strict=True))
    assert shown["WEB_PROCESSES"] == "`2`"
    assert shown["DATABASE_URL"] == "`sqlite:///<DATA_DIR>/riskrelay.db`"
    assert shown["TRUSTED_PROXIES"] == "\u2013"


def test_the_page_of_commands_has_every_command_and_every_option() -> None:
    page = reference.COMMANDS.read_text()
    for words, leaf in LEAVES.items():
        assert f"\nbin/riskrelay {' '.join(words)}" in page
        for flag in flags(leaf) - {"--help", "-h"}:
            assert flag in page


# --- every command says how it is used


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_has_a_summary_an_example_and_its_exit_codes(words: tuple[str, ...]) -> None:
    leaf = LEAVES[words]
    assert re.fullmatch(r"[A-Z].*[.]", leaf.summary), leaf.summary
    epilog = leaf.command.epilog or ""
    assert re.search(r"Examples?:\s", epilog), epilog
    assert re.search(r"Exit codes:\s+0 ", epilog), epilog
    assert any(called(line)[0] == words for line in command_lines(epilog)), epilog


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_that_prints_records_prints_them_as_json_too(words: tuple[str, ...]) -> None:
    assert ("--json" in flags(LEAVES[words])) == (words not in WITHOUT_JSON)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    leaf = LEAVES[words]
    assert [option.name for option in leaf.options if not (option.help or isinstance(option.type, click.Choice))] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_summary(verb: str) -> None:
    with riskrelay.make_context("riskrelay", [], resilient_parsing=True) as context:
        command = riskrelay.get_command(context, verb)
    assert command is not None
    assert command.help


@pytest.mark.parametrize("promised", [line.strip() for line in PROMISED.split(",")])
def test_what_was_promised_is_there(promised: str) -> None:
    assert called(promised.split())[0] in LEAVES
    assert wrong_with(promised.split()) is None


# --- documents name what there is


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_that_a_document_names_is_there_with_its_options(document: Path) -> None:
    text = document.read_text()
    named = [*command_lines(text), *inline_commands(text)]
    assert [wrong for words in named if (wrong := wrong_with(words))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("bin/riskrelay token create --user a", None),
        ("`bin/riskrelay token make`", "no command: token make"),
        ("`bin/riskrelay frobnicate`", "no command: frobnicate"),
        ("X=$(bin/riskrelay token create --usr a)", "token create has no --usr"),
        ("see `target resume ID`", None),
        ("see `target revive ID`", "no command: target revive ID"),
        ("see `target pause|revive`", "no command: target revive"),
        ("`target --all`", None),
        ("run riskrelay sweep --dry-run, then another", None),
        ("install -o riskrelay -g riskrelay riskrelay /srv", None),
        (
            'docker compose exec service /srv/riskrelay/bin/riskrelay account make "My company"',
            "no command: account make My company",
        ),
        ("`sweep`", None),
    ],
)
def test_a_command_that_is_not_there_is_found(text: str, wrong: str | None) -> None:
    found = [wrong_with(words) for words in (*command_lines(text), *inline_commands(text))]
    assert [each for each in found if each] == ([] if wrong is None else [wrong])


def known_names() -> set[str]:
    codes = {kind.code for kind in every_error(RiskRelayError)}
    return {setting.name + suffix for setting in SETTINGS for suffix in ("", FILE_SUFFIX)} | codes | OTHERS


def every_error(kind: type[RiskRelayError]) -> Iterator[type[RiskRelayError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_setting_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text()
    named = {*re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", text)}
    named |= {*re.findall(r"^(?:export )?([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=", text, re.MULTILINE)}
    assert sorted(name for name in named - known_names() if not name.startswith(OTHER_FAMILIES)) == []


def test_help_cuts_no_summary_off() -> None:
    # As narrow as help is where there is no terminal.
    shown = " ".join(CliRunner().invoke(riskrelay, ["--help"], terminal_width=80).stdout.partition("Commands:")[2].split())
    assert "..." not in shown
    for leaf in leaves():
        if len(leaf.words) == 1:
            assert f"{leaf.words[0]} {leaf.summary.partition('. ')[0].rstrip('.')}" in shown
