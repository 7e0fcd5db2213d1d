"""Every button of the console has a route of the API and a command, so that a script can do everything that users can."""

import re
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest
from falcon.inspect import inspect_routes

from bin.__main__ import riskrelay
from service.app import create_app
from service.console.layout import CONSOLE
from tests.support.factories import make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue

EXPORT: Final = "/api/ticket-exports/{export_id}"
TARGET: Final = "/api/ticket-export-targets/{target_id}"
RULE: Final = "/api/approval-rules/{rule_id}"
RECOVERIES: Final = "/api/ticket-export-recoveries"

DOCUMENT: Final = (Path(__file__).parents[3] / "docs" / "console.md").read_text()


class Equivalents(NamedTuple):
    """The route and the command that do the same as a button; None where there is none by design."""

    route: str | None
    command: str | None


#: By the path of the button's form.
BUTTONS: Final = {
    "/exports/{export_id}/approve": Equivalents(f"{EXPORT}/approve", "export approve"),
    "/exports/{export_id}/retry": Equivalents(f"{EXPORT}/retry", "export retry"),
    "/exports/{export_id}/dismiss": Equivalents(f"{EXPORT}/dismiss", "export dismiss"),
    "/targets/add": Equivalents("/api/ticket-export-targets", "target add"),
    "/targets/{target_id}/edit": Equivalents(TARGET, "target set"),
    "/targets/{target_id}/remove": Equivalents(TARGET, "target remove"),
    "/exports/{export_id}/restore": Equivalents(f"{EXPORT}/restore", "export restore"),
    "/exports/{export_id}/snooze": Equivalents(f"{EXPORT}/snooze", "export snooze"),
    "/exports/{export_id}/edit": Equivalents(EXPORT, "export edit"),
    "/exports/{export_id}/split": Equivalents(f"{EXPORT}/split", "export split"),
    "/bulk-jobs/{job_id}/cancel": Equivalents("/api/bulk-jobs/{job_id}/cancel", "export bulk --cancel"),
    "/rules/new": Equivalents("/api/approval-rules", "rule add"),
    **{f"/rules/{{rule_id}}{verb}": Equivalents(RULE, "rule set") for verb in ("", "/enable", "/disable")},
    "/rules/{rule_id}/remove": Equivalents(RULE, "rule remove"),
    "/inbox/decide": Equivalents("/api/ticket-exports/bulk", "export approve --yes"),
    "/deliveries/decide": Equivalents("/api/ticket-exports/bulk", "export approve --yes"),
    "/targets/{target_id}/validate": Equivalents(f"{TARGET}/validate", "target validate"),
    "/targets/{target_id}/ping": Equivalents(f"{TARGET}/ping", "target ping"),
    "/targets/{target_id}/pause": Equivalents(f"{TARGET}/pause", "target pause"),
    "/targets/{target_id}/resume": Equivalents(f"{TARGET}/resume", "target resume"),
    "/targets/{target_id}/disable": Equivalents(f"{TARGET}/disable", "target disable"),
    # A target's own secret is set by the operator, never by the API.
    "/targets/{target_id}/secret": Equivalents(None, "secret set target"),
    "/targets/{target_id}/header": Equivalents(None, "secret set target --header"),
    "/targets/{target_id}/header/remove": Equivalents(None, "secret set target --remove"),
    "/targets/{target_id}/standard-secret": Equivalents(None, "secret set target --standard-webhooks"),
    "/targets/{target_id}/webhook": Equivalents(TARGET, "target set --signature"),
    "/targets/{target_id}/recover": Equivalents(RECOVERIES, "export recover --since"),
    "/recoveries/{recovery_id}/cancel": Equivalents(f"{RECOVERIES}/{{recovery_id}}/cancel", "export recover --cancel"),
    "/projects/{project_id}/grouping": Equivalents("/api/projects/{project_id}", "project set"),
    "/report-uploads": Equivalents("/api/scanner/results", "import-scan"),
    "/alerts/{alert_id}/acknowledge": Equivalents(None, "alert acknowledge"),
    "/sessions/{session_id}/revoke": Equivalents("/api/console-sessions/{session_id}/revoke", "session revoke"),
}
#: Links that show or download something, and have no form.
LINKS: Final = {
    "/rules/{rule_id}/test": Equivalents(f"{RULE}/test", "rule test"),
    "/exports/{export_id}/receipt": Equivalents(f"{EXPORT}/receipt", "receipt show"),
    "/projects/{project_id}/report/{report_format}": Equivalents(None, "report write"),
}
#: Sessions and preferences of a browser, and summaries before a decision: clients of the API need none of them.
OF_THE_BROWSER: Final = {
    *("/sign-in", "/sign-out", "/shortcuts/on", "/shortcuts/off"),
    *("/inbox/review", "/deliveries/review"),
}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the routes that change something in an installation that serves everything."""
    settings = make_settings(tmp_path_factory.mktemp("parity"), {"DEPLOYMENT_MODE": "cloud"})
    app = create_app(settings, FakeWakeUpQueue(), FakeResolver({}))
    methods, found = {"POST", "PATCH", "DELETE"}, inspect_routes(app)
    return {each.path for each in found for method in each.methods if method.method in methods and not method.internal}


def test_the_table_of_equivalents_has_exactly_the_forms_of_the_console(routes: set[str]) -> None:
    forms = {path.removeprefix(CONSOLE) for path in routes if path.startswith(f"{CONSOLE}/")}
    assert forms - OF_THE_BROWSER == {*BUTTONS}


@pytest.mark.parametrize("button", BUTTONS)
def test_every_button_has_an_equivalent_route_and_command(routes: set[str], button: str) -> None:
    route, command = BUTTONS[button]
    if route is None:
        assert not [path for path in routes if "secret" in path and not path.startswith(CONSOLE)]
    else:
        assert route in routes
    assert command is None or exists(command), command


def test_the_table_in_the_documentation_matches_the_tested_one() -> None:
    row = r"^\| ([A-Z][A-Za-z, ]+) \| (?:`(?:GET|POST|PATCH|DELETE) (/[^`]+)`|none[^|]*) \| (?:`([^`]+)`|none) \|$"
    shown = re.findall(row, DOCUMENT, re.MULTILINE)
    assert {Equivalents(route or None, command or None) for _, route, command in shown} == {
        *BUTTONS.values(),
        *LINKS.values(),
    }


def exists(command: str) -> bool:
    """Return whether a command exists, with its option, if one is named."""
    found: click.Command | None = riskrelay
    for word in command.split():
        if found is not None and word.startswith("--"):
            return any(word in option.opts for option in found.params)
        found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
    return found is not None and not isinstance(found, click.Group)


def test_unknown_commands_are_detected() -> None:
    assert not exists("export vanish")
    assert not exists("export")
    assert not exists("export recover --everything")
