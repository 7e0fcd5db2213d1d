"""An alert message says what is wrong, what to do and where; hostile names cannot mention users or add links or headers."""

import json
import re
from dataclasses import replace
from email import message_from_bytes, policy
from typing import Any, Final

import pytest

from schemas.alerts.alert import Alert, AlertState
from schemas.alerts.messages import MAX_LISTED, discord, email, mattermost, message_body, slack, teams
from schemas.settings.alert_channels import AlertKind
from tests.support.factories import NOW

CONSOLE: Final = "https://relay.example.com/console"
HOSTILE: Final = [
    "<!channel> <!here> <@U012AB3CD> <!subteam^S012>",
    "@channel @here @all @everyone <@123456789012345678> <@&123456789012345678>",
    "x\r\nBcc: victim@evil.example\r\n\r\nbody",
    "x\nBcc: victim@evil.example\u2028Cc: victim@evil.example\x85To: victim@evil.example",
    "` @all ` ``@all`` ```\n@all\n```",
    "[click](https://evil.example/) ![pixel](https://evil.example/t.png) <https://evil.example|click>",
    "\u202egnp.exe \x1b[31m \x00 *bold* _it_ ~s~ **b** # title",
    "<at>everyone</at> &lt;!channel&gt;",
    "@" * 500,
]


def alert(name: str = "Shop tracker", number: int = 1, **changes: Any) -> Alert:
    details = {"name": name, "host": "tracker.example.com", "status": "failing", "reason": "connect_refused"}
    values: dict[str, Any] = {
        "id": f"alr_{number}",
        "cause": f"target:tgt_{number}",
        "kind": AlertKind.TARGET,
        "state": AlertState.OPEN,
        "account_id": 1,
        "subject_id": f"tgt_{number}",
        "details": details,
        "first_at": NOW,
        "last_at": NOW,
        "count": 1,
        "acknowledged_at": None,
        "acknowledged_by": None,
    }
    return Alert(**{**values, **changes})


def body_of(*alerts: Alert, console: str | None = CONSOLE) -> dict[str, Any]:
    return message_body("alm_1", alerts, console, NOW)


def test_the_record_names_cause_advice_and_page() -> None:
    body = body_of(alert())
    assert {name: body[name] for name in ("id", "type", "version", "more", "url")} == {
        "id": "alm_1",
        "type": "alert",
        "version": 1,
        "more": 0,
        "url": f"{CONSOLE}/alerts",
    }
    [only] = body["alerts"]
    assert only == {
        "id": "alr_1",
        "kind": "target",
        "state": "open",
        "headline": "Target fails",
        "subject": "Shop tracker (tracker.example.com)",
        "what_to_do": "Start the receiver and check its port. Deliveries are retried.",
        "url": f"{CONSOLE}/targets/tgt_1",
        "first_at": "2026-03-01T12:00:00.000Z",
        "last_at": "2026-03-01T12:00:00.000Z",
        "count": 1,
    }


def test_without_a_console_there_is_no_link() -> None:
    body = body_of(alert(), console=None)
    assert body["url"] is body["alerts"][0]["url"] is None
    assert teams(body)["attachments"][0]["content"]["actions"] == []
    assert "http" not in slack(body)["blocks"][0]["text"]["text"]


def test_a_recovered_alert_is_headed_over() -> None:
    [only] = body_of(alert(state=AlertState.RECOVERED))["alerts"]
    assert (only["headline"], only["what_to_do"]) == ("Over: target fails", "Nothing is left to do.")


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        (AlertKind.TARGET, {"status": "blocked", "reason": "address_private"}),
        (AlertKind.TARGET, {"status": "disabled", "reason": "receiver_gone"}),
        (AlertKind.EXPORTS, {"count": 3, "is_cut": False}),
    ],
)
def test_a_recovered_alert_advises_a_retry_of_failed_and_blocked_exports(kind: AlertKind, details: dict[str, Any]) -> None:
    over = alert(kind=kind, state=AlertState.RECOVERED)
    [only] = body_of(replace(over, details={**over.details, **details}))["alerts"]
    assert only["what_to_do"] == "Retry its exports that are still failed or blocked, if there are any."


# Columns: the status and reason of a target; the advice in the message.
ADVICE: Final = [
    ("failing", None, "See the last attempts on its page."),
    ("failing", "receiver_unauthorized", "Check the access rules of the receiver and the proxy, then retry."),
    ("failing", "certificate_expired", "Renew the certificate. Deliveries are retried."),
    ("disabled", "failing_for_days", "Fix the receiver, then resume the target. Until then it gets nothing."),
    ("blocked", "tracker_moved", "as the browser shows it. Then resume the target: until then it gets nothing."),
    ("inactive", "no_secret", "or with `secret set target`. Until then it gets nothing."),
    ("paused", "restored", "then resume the target. Until then it gets nothing."),
]


@pytest.mark.parametrize(("status", "reason", "advice"), ADVICE)
def test_a_target_s_alert_says_what_happens_to_its_exports(status: str, reason: str | None, advice: str) -> None:
    made = alert()
    [only] = body_of(replace(made, details={**made.details, "status": status, "reason": reason}))["alerts"]
    assert only["what_to_do"].endswith(advice)


def test_many_alerts_are_counted() -> None:
    body = body_of(*(alert(number=number) for number in range(MAX_LISTED + 5)))
    assert (len(body["alerts"]), body["more"]) == (MAX_LISTED, 5)
    text = email(body, "relay@example.com", ["ops@example.com"], NOW).get_content()
    assert text.count("Target fails") == MAX_LISTED
    assert f"And 5 more: {CONSOLE}/alerts" in text


def test_alerts_with_the_longest_names_stay_within_the_limits_of_every_chat() -> None:
    body = body_of(*(alert("@!#" * 200, number) for number in range(MAX_LISTED + 5)))
    [embed] = discord(body)["embeds"]
    assert len(embed["title"]) <= 256
    assert len(embed["description"]) <= 4096
    assert len(mattermost(body)["text"]) <= 4000
    listed = embed["description"].count("Target fails")
    assert f"And {MAX_LISTED + 5 - listed} more" in embed["description"]
    assert all(len(block["text"]["text"]) <= 3000 for block in slack(body)["blocks"])
    assert len(json.dumps(teams(body))) <= 28_000


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_adds_no_header_to_an_email(name: str) -> None:
    sent = email(body_of(alert(name)), "relay@example.com", ["ops@example.com", "eve@example.com"], NOW)
    read = message_from_bytes(bytes(sent), policy=policy.SMTP)
    assert sorted(read.keys()) == sorted(
        [
            *("Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted"),
            *("MIME-Version", "Content-Type", "Content-Transfer-Encoding"),
        ]
    )
    assert read["To"] == "ops@example.com, eve@example.com"
    assert read["Message-ID"] == "<alm_1@example.com>"
    assert str(read["Subject"]).strip().startswith("RiskRelay: Target fails: ")
    assert re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e]", str(read["Subject"])) is None
    assert not read.is_multipart()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_mentions_nobody_in_slack(name: str) -> None:
    message = slack(body_of(alert(name)))
    [block] = message["blocks"]
    text = block["text"]["text"]
    assert block["text"]["verbatim"] is True
    # The only control sequence is our own link.
    assert re.findall("<[^>]*>", text) == [f"<{CONSOLE}/targets/tgt_1|Open>"]
    assert not set(message["text"]) & set("<>")
    assert re.search(r"[@!]\w", text + message["text"]) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_code_in_mattermost_and_discord(name: str) -> None:
    body = body_of(alert(name))
    message = discord(body)
    assert message["allowed_mentions"] == {"parse": []}
    assert "content" not in message
    for text in (mattermost(body)["text"], message["embeds"][0]["description"]):
        first, *others = text.split("\n")
        assert others == ["Start the receiver and check its port. Deliveries are retried.", f"{CONSOLE}/targets/tgt_1"]
        # One pair of backticks, which nothing inside can close.
        assert re.fullmatch(r"\*\*Target fails: `[^`]+`\*\*", first)
        assert re.search(r"[@!#]\w", first) is None
    assert re.search(r"[@!#]\w", message["embeds"][0]["title"]) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_a_text_run_in_teams(name: str) -> None:
    [attachment] = teams(body_of(alert(name)))["attachments"]
    card = attachment["content"]
    # A TextBlock would interpret Markdown; mentions would need entities, of which there are none.
    assert {item["type"] for item in card["body"]} == {"RichTextBlock"}
    assert {run["type"] for item in card["body"] for run in item["inlines"]} == {"TextRun"}
    assert "msteams" not in card
    assert [action["url"] for action in card["actions"]] == [f"{CONSOLE}/alerts"]
    assert re.search(r"@\w", json.dumps(card["body"], ensure_ascii=False)) is None


@pytest.mark.parametrize("kind", list(AlertKind))
def test_every_kind_of_alert_has_a_message(kind: AlertKind) -> None:
    details = dict(alert().details)
    details |= {"count": 3, "is_cut": False, "topic": "customers/redact", "due_on": "2026-03-31", "status": "low"}
    details |= {"days": 7, "last_on": None, "delivered": 5, "failed": 1, "open_alerts": 2, "targets": 1, "exports": 3}
    details |= {"anchor": None}
    [said] = body_of(alert(kind=kind, details=details))["alerts"]
    assert said["headline"]
    assert said["what_to_do"].endswith((".", "tgt_1"))
