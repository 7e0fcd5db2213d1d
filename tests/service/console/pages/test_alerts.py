"""`/console/alerts`: open alerts first, only the account's own, and a button that acknowledges one."""

import re
from typing import Final

from schemas.base.principal import Ability
from schemas.settings.alert_channels import AlertKind
from schemas.triage.approval_rules import RuleAction, RuleActionType
from storage.db.columns import JsonField
from storage.db.engine import execute, rows
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_alert, make_customer, make_rule, make_target
from tests.support.http.console_user import ConsoleBrowser, make_console_token

# The queries are tested on both databases elsewhere.
pytestmark = on_sqlite

HOSTILE: Final = "<img src=x onerror=alert(1)>\u202e"


def test_open_alerts_are_listed_first_with_the_advice(person: ConsoleBrowser, customer: Customer) -> None:
    make_alert(customer, 1, "open", "The first one")
    make_alert(customer, 2, "recovered", "The second one")
    page = person.get("/alerts").text
    assert page.index("The first one") < page.index("The second one")
    assert "Start the receiver and check its port." in page
    assert page.count("Acknowledge</button>") == 1
    assert 'href="/console/targets/tgt_1">Target fails</a>' in page


def test_without_a_channel_the_page_names_the_settings(person: ConsoleBrowser) -> None:
    assert "ALERT_SLACK_URL" in person.get("/alerts").text


def test_a_hostile_name_is_text(person: ConsoleBrowser, customer: Customer) -> None:
    make_alert(customer, name=HOSTILE)
    page = person.get("/alerts").text
    assert "<img" not in page
    assert "\u202e" not in page


def test_an_alert_is_acknowledged_once_and_then_has_no_button(person: ConsoleBrowser, customer: Customer) -> None:
    alert_id = make_alert(customer)
    done = person.post(f"/alerts/{alert_id}/acknowledge")
    assert (done.status_code, done.headers["location"]) == (303, "/console/alerts?done=alert_acknowledged")
    assert rows("SELECT acknowledged_by FROM alerts") == [(f"user:{customer.user_id}",)]
    page = person.get("/alerts").text
    assert "acknowledged" in page
    assert "Acknowledge</button>" not in page
    assert person.post("/alerts/alr_01J00000000000000000000000/acknowledge").status_code == 404
    assert person.post("/alerts/nothing%00/acknowledge").status_code == 404


def test_an_account_has_its_own_alerts_and_the_operator_all(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_customer()
    stranger = ConsoleBrowser(person.client, "Another browser")
    stranger.sign_in(make_console_token(other))
    own, of_operator, of_installation = (make_alert(each) for each in (other, customer, make_customer()))
    execute("UPDATE alerts SET account_id = NULL WHERE id = ?", (of_installation,))

    def seen_by(somebody: ConsoleBrowser) -> set[str]:
        return set(re.findall("/alerts/(alr_[0-9A-Z]+)/acknowledge", somebody.get("/alerts").text))

    assert seen_by(stranger) == {own}
    assert seen_by(person) == {own, of_operator, of_installation}
    assert stranger.post(f"/alerts/{of_operator}/acknowledge").status_code == 404
    assert stranger.post(f"/alerts/{of_installation}/acknowledge").status_code == 404
    assert stranger.post(f"/alerts/{own}/acknowledge").status_code == 303


def test_closed_alerts_are_paged(person: ConsoleBrowser, customer: Customer) -> None:
    make_alert(customer, 9, "open", "The open one")
    for number in range(4):
        make_alert(customer, number, "recovered", f"Number {number}")
    first = person.get("/alerts", "limit=3").text
    following = first.split('rel="next" href="')[1].split('"')[0].partition("?")[2].replace("&amp;", "&")
    second = person.get("/alerts", following).text
    assert "The open one" in first
    assert "The open one" not in second
    assert sorted(re.findall(r"Number \d", first) + re.findall(r"Number \d", second)) == [f"Number {n}" for n in range(4)]


def test_every_alert_links_to_a_page(person: ConsoleBrowser, customer: Customer) -> None:
    target, rule = make_target(customer), make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("team",)))
    details: dict[str, object] = {"name": "T", "host": "h", "status": "failing", "reason": "connect_refused", "count": 3}
    details |= {"is_cut": False, "topic": "shop/redact", "due_on": "2026-03-31", "days": 7, "last_on": None}
    details |= dict.fromkeys(("delivered", "failed", "open_alerts", "targets", "exports"), 0) | {"anchor": None}
    for number, kind in enumerate(AlertKind):
        alert_id = make_alert(customer, number)
        subject = rule.id if kind is AlertKind.RULE else target.id
        changes = (kind.value, subject, JsonField.text(details), alert_id)
        execute("UPDATE alerts SET kind = ?, subject_id = ?, details = ? WHERE id = ?", changes)
    manager = ConsoleBrowser(person.client)
    manager.sign_in(make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES))
    # Backups have no page. Two kinds link to the queue, and only users who may change rules get links to rules.
    for reader, unlinked in ((manager, 2), (person, 3)):
        page = reader.get("/alerts").text
        table = page[page.index("<tbody>") : page.index("</tbody>")]
        paths = {path.replace("&amp;", "&") for path in re.findall('href="/console(/[^"]+)"', table)}
        assert len(paths) == len(AlertKind) - unlinked
        for path in paths:
            assert reader.get(*path.split("?")).status_code == 200, path
