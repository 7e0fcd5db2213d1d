"""The generated reference matches the code, and every command describes its use."""

import re
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from bin.__main__ import riskrelay
from bin.cli.lazy_group import load
from bin.command_table import COMMAND_TABLE, commands_of
from schemas.settings.definitions import SETTINGS
from tests.docs.names import LEAVES, command_lines, error_in_command, flags, split_command
from tools import reference

#: Commands that run until stopped, or print text for people or shells, or always print JSON lines.
#: Commands that print no records, or JSON alone.
WITHOUT_JSON: Final = {
    *(("init",), ("run",), ("serve",), ("work",), ("completion",), ("demo",)),
    *(("compliance", "export"), ("audit", "export"), ("receipt", "show"), ("report", "write")),
}

#: Public commands and options that must not disappear.
PROMISED: Final = """
    init, run, serve, work, migrate --check,
    account add --no-webhooks, account set --webhooks, user add --account, user list,
    user disable, user enable, user remove, project add --account --shop-domain,
    report write --project --format --output, report add --project,
    scan-run add --project --id, grant add --user --project --report, grant list,
    grant remove --user --project --report,
    token create --user --kind --ability --name --expires-days, token list, token revoke --user,
    secret set scanner, secret set email, secret set storefront, secret set target, secret list,
    target list, target show, target validate, target ping, target pause, target resume --all, target disable,
    export list, export show, export prepare, export approve, export retry, export dismiss,
    export recover --target --since --show --cancel,
    doctor, sweep --dry-run --limit, prune --dry-run --limit, compliance run --dry-run --limit, compliance list,
    rotate-keys --dry-run --limit, backup, restore, completion,
    listen --port --secret-stdin --fail --times --retry-after --delay,
    import-scan --format --scan-run --to --secret-stdin --dry-run
"""


# --- the table of commands


@pytest.mark.parametrize("words", COMMAND_TABLE)
def test_the_table_has_the_first_sentence_of_each_command_and_the_commands_of_each_group(words: str) -> None:
    path = words.split()
    command, commands = load((*path,)), commands_of(*path)
    if not commands:
        assert not isinstance(command, click.Group)
        assert command.get_short_help_str(limit=1000) == COMMAND_TABLE[words].removesuffix(".").split(". ")[0] + "."
    else:
        assert isinstance(command, click.Group)
        assert {*commands} == {name for name, each in command.commands.items() if not each.hidden}


# --- generated files


@pytest.mark.parametrize("path", reference.documents(), ids=lambda path: path.name)
def test_a_generated_file_matches_the_code(path: Path) -> None:
    assert path.read_text() == reference.documents()[path], "run: make docs"


def test_a_table_is_inserted_between_its_markers_and_nothing_else_changes() -> None:
    before = "above\n<!-- a -->\nold | table\n<!-- /a -->\nbelow <!-- b -->"
    after = reference.with_tables(before, {"a": "| new |", "b": "never"})
    assert after == "above\n<!-- a -->\n\n| new |\n<!-- /a -->\nbelow <!-- b -->"


def test_the_page_of_settings_has_every_setting_with_its_default_once() -> None:
    sections = re.findall(r"^## (\w+)\n\n(.*?)(?=\n## |\Z)", reference.SETTINGS_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == [setting.name for setting in SETTINGS]
    shown = {name: " ".join(text.split()) for name, text in sections}
    assert "Default: `2`." in shown["WEB_PROCESSES"]
    assert "Default: `sqlite:///<DATA_DIR>/riskrelay.db`." in shown["DATABASE_URL"]
    assert "Default: none." in shown["TRUSTED_PROXIES"]


def test_the_page_of_commands_has_every_command_and_every_option() -> None:
    page = reference.COMMANDS.read_text()
    for words, leaf in LEAVES.items():
        assert f"\nbin/riskrelay {' '.join(words)}" in page
        for flag in flags(leaf) - {"--help", "-h"}:
            assert flag in page


def test_a_default_is_shown_without_the_integer_range_of_the_database() -> None:
    page = reference.commands_page()
    assert "| `--limit N` | Maximum number of requests. [default: 10000] |" in page
    assert "; ]" not in page
    assert "| `--project N` | The project's id. [required] |" in page


def test_examples_on_the_page_of_commands_run_in_the_checkout() -> None:
    page = reference.COMMANDS.read_text()
    assert re.findall(r"(?<!bin/)\briskrelay [a-z].*", page) == []
    assert "TOKEN=$(bin/riskrelay token create --user ada@example.com)\n" in page
    assert "bin/riskrelay completion bash > ~/.local/share/bash-completion/completions/riskrelay\n" in page
    # an example that is the same as the usage line is not repeated
    assert page.count("\nbin/riskrelay init\n") == 1


# --- every command describes its use


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_has_a_summary_an_example_and_its_exit_codes(words: tuple[str, ...]) -> None:
    leaf = LEAVES[words]
    assert re.fullmatch(r"[A-Z].*[.]", leaf.summary), leaf.summary
    epilog = leaf.command.epilog or ""
    assert re.search(r"Examples?:\s", epilog), epilog
    assert re.search(r"Exit codes:\s+0 ", epilog), epilog
    assert any(split_command(line)[0] == words for line in command_lines(epilog)), epilog


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_that_prints_records_prints_them_as_json_too(words: tuple[str, ...]) -> None:
    assert ("--json" in flags(LEAVES[words])) == (words not in WITHOUT_JSON)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_option_has_a_help_text(words: tuple[str, ...]) -> None:
    leaf = LEAVES[words]
    assert [option.name for option in leaf.options if not (option.help or isinstance(option.type, click.Choice))] == []


@pytest.mark.parametrize("verb", commands_of())
def test_every_command_has_a_summary(verb: str) -> None:
    with riskrelay.make_context("riskrelay", [], resilient_parsing=True) as context:
        command = riskrelay.get_command(context, verb)
    assert command is not None
    assert command.help


@pytest.mark.parametrize("promised", [line.strip() for line in PROMISED.split(",")])
def test_every_promised_command_exists(promised: str) -> None:
    assert split_command(promised.split())[0] in LEAVES
    assert error_in_command(promised.split()) is None


GROUPS: Final = [(), *(path for words in COMMAND_TABLE if commands_of(*(path := tuple(words.split()))))]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_help_does_not_truncate_a_summary(path: tuple[str, ...]) -> None:
    # The width of help without a terminal.
    printed = CliRunner().invoke(riskrelay, [*path, "--help"], terminal_width=80).stdout
    shown = " ".join(printed.partition("Commands:")[2].split())
    assert "..." not in shown
    assert shown == " ".join(f"{name} {summary}" for name, summary in commands_of(*path).items())
