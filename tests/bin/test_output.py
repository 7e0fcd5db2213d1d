"""Text from senders never reaches the terminal unescaped."""

import json
import re
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from bin.__main__ import RiskRelayGroup
from bin.cli.output import echo
from bin.cli.records import print_record
from schemas.base.errors import Conflict
from schemas.exports.tickets.ticket import Source, Ticket
from storage.db.engine import transaction
from storage.exports import transitions
from storage.exports.rows import Draft
from tests.support.factories import NOW, make_customer, make_target
from tests.support.processes.shell import Shell

ROOT: Final = Path(__file__).resolve().parents[2]
HOSTILE: Final = "pay\x9b2J\x9d0;owned\x07\x7f\u202egpj\u200b\U000e0041\x1b[31m end"
SHOWN: Final = r"pay\u009b2J\u009d0;owned\u0007\u007f\u202egpj\u200b\udb40\udc41\u001b[31m end"


class HostileShell(Shell):
    """An installation with an export and a target whose texts are hostile."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        with self.database():
            customer = make_customer()
            make_target(customer, name=HOSTILE)
            ticket = Ticket(HOSTILE, HOSTILE, "high", "https://shop.example/", (HOSTILE,), {"note": HOSTILE})
            draft = Draft(customer.account_id, customer.project_id, Source("manual", "note"), ticket)
            with transaction():
                [self.export_id] = transitions.prepare([draft], NOW, "user:test")


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str) -> HostileShell:
    return HostileShell(tmp_path, sqlite_url)


@pytest.mark.parametrize("words", ["export list", "export show", "target list"])
def test_text_and_json_output_is_escaped_and_json_parses_to_the_original(shell: HostileShell, words: str) -> None:
    ids = [shell.export_id] if words == "export show" else []
    shown = shell.run(*words.split(), *ids).stdout
    assert shown.replace("\n", "").isprintable()
    assert SHOWN in shown
    document = shell.run(*words.split(), *ids, "--json").stdout.removesuffix("\n")
    assert document.isprintable()
    assert SHOWN in document
    record = shell.json(*words.split(), *ids)
    found = record if isinstance(record, dict) else record[0]
    assert HOSTILE in {found.get("name"), found.get("ticket", {}).get("title")}


def test_a_record_is_printed_with_one_line_per_nested_field_and_text_line(capsys: pytest.CaptureFixture[str]) -> None:
    ticket = {"title": "A title", "description": "One\nstatus  exported", "evidence": {HOSTILE: 1}, f"\n{HOSTILE}": None}
    print_record({"status": "prepared", "ticket": ticket, "none": {}}, as_json=False)
    status, title, description, more, evidence, hostile, none = capsys.readouterr().out.splitlines()
    assert status.split() == ["status", "prepared"]
    assert title.split(maxsplit=1) == ["ticket.title", "A title"]
    assert description.split() == ["ticket.description", "One"]
    # A further line of a text must not look like a field.
    assert more.startswith(" ")
    assert more.strip() == "status  exported"
    assert json.loads(evidence.removeprefix("ticket.evidence")) == {HOSTILE: 1}
    assert hostile == rf"ticket.\u000a{SHOWN}  -"
    assert none.split() == ["none", "{}"]


@pytest.mark.parametrize("error", [click.UsageError(HOSTILE), click.ClickException(HOSTILE), Conflict(HOSTILE)])
def test_error_messages_are_escaped(error: Exception) -> None:
    def fail() -> None:
        raise error

    class Failing(RiskRelayGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            return click.Command(cmd_name, callback=fail)

    group = Failing("riskrelay")
    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code != 0
    assert result.stderr.replace("\n", "").isprintable()
    assert SHOWN in result.stderr


def test_every_command_prints_through_the_escaping_function(capsys: pytest.CaptureFixture[str]) -> None:
    prints = re.compile(r"click\.s?echo\(|(?<![\w.])print\(")
    printing = [path for path in (ROOT / "bin").rglob("*.py") if prints.search(path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in printing] == ["bin/cli/output.py"]
    echo(f"{HOSTILE}\nnext")
    assert capsys.readouterr().out == f"{SHOWN}\nnext\n"
