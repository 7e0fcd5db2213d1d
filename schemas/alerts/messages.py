"""Messages about alerts: the record, which a webhook receives unchanged, and its format for email and for each chat service.

Untrusted text cannot notify a channel, load an image, create a link or add a header. It is plain text or code; in chats, a
zero-width space follows each `@`, `#` and `!`; control characters are removed.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final, TypeAlias

from schemas.alerts.alert import Alert, AlertState, describe
from schemas.base.timestamps import format_rfc3339
from schemas.trackers.text.neutral import cut, harmless_title, one_line

AlertBody: TypeAlias = dict[str, Any]

#: Maximum number of alerts in a message; further alerts are only counted.
MAX_LISTED: Final = 10
#: Discord accepts 4,096 characters, Mattermost at least 4,000.
_MAX_MARKDOWN: Final = 3_500
_MAX_SUBJECT: Final = 150
#: Maximum length of a target's or rule's name in a message, in characters.
_MAX_NAME: Final = 120


def message_body(message_id: str, alerts: Sequence[Alert], console: str | None, now: datetime) -> AlertBody:
    """Return the record of a message about `alerts`; `console` is the URL of the console, if there is one."""
    return {
        "id": message_id,
        "type": "alert",
        "version": 1,
        "created_at": format_rfc3339(now),
        "alerts": [_record(alert, console) for alert in alerts[:MAX_LISTED]],
        "more": max(0, len(alerts) - MAX_LISTED),
        "url": f"{console}/alerts" if console else None,
    }


def trial_body(message_id: str, now: datetime) -> AlertBody:
    """Return the record of a message that tests a channel."""
    trial = {
        "id": message_id,
        "kind": "test",
        "state": AlertState.OPEN.value,
        "headline": "Test of a channel for alerts",
        "subject": "",
        "what_to_do": "Nothing is wrong: somebody ran riskrelay alert test.",
        "url": None,
        "first_at": format_rfc3339(now),
        "last_at": format_rfc3339(now),
        "count": 1,
    }
    return message_body(message_id, [], None, now) | {"alerts": [trial]}


def email(body: AlertBody, sender: str, to: Sequence[str], now: datetime) -> EmailMessage:
    """Return the message as a plain-text email; if it is sent again, it has the same Message-ID."""
    subject = cut(one_line(f"RiskRelay: {_summary(body, str)}"), _MAX_SUBJECT)
    parts = ["\n".join([_title(each, str), each["what_to_do"], *_links(each)]) for each in body["alerts"]]
    return plain_email(body["id"], sender, to, subject, "\n\n".join([*parts, *_more(body)]) + "\n", now)


def plain_email(message_id: str, sender: str, to: Sequence[str], subject: str, text: str, now: datetime) -> EmailMessage:
    """Return an email from this installation, marked so that mail servers send no automatic reply."""
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Date"] = format_datetime(now)
    message["Message-ID"] = f"<{message_id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


def slack(body: AlertBody) -> AlertBody:
    """Return the message for an incoming webhook of Slack; without `<`, `>` and `&` its text has no mention and no link."""
    texts = [
        f"*{_title(each, _slack_text)}*\n{_slack_text(each['what_to_do'])}{_slack_link(each)}" for each in body["alerts"]
    ]
    sections = [
        # Verbatim: Slack does not turn names of channels and users in the text into links.
        {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
        for text in [*texts, *_more(body)]
    ]
    return {"text": _summary(body, _slack_text), "blocks": sections, "unfurl_links": False, "unfurl_media": False}


def mattermost(body: AlertBody) -> AlertBody:
    """Return the message for an incoming webhook of Mattermost."""
    return {"text": _markdown(body)}


def discord(body: AlertBody) -> AlertBody:
    """Return the message for a webhook of Discord; it mentions nobody."""
    embed = {"title": cut(_summary(body, harmless_title), _MAX_SUBJECT), "description": _markdown(body)}
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def teams(body: AlertBody) -> AlertBody:
    """Return the message for a webhook of Microsoft Teams: an Adaptive Card, whose text runs contain no markup."""
    items: list[AlertBody] = []
    for each in body["alerts"]:
        run = {"type": "TextRun", "text": _title(each, harmless_title), "weight": "Bolder"}
        items += [{"type": "RichTextBlock", "inlines": [run]}, _rich(each["what_to_do"])]
    items += [_rich(line) for line in _more(body)]
    links = [{"type": "Action.OpenUrl", "title": "Open the console", "url": body["url"]}] if body["url"] else []
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": items,
        "actions": links,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _record(alert: Alert, console: str | None) -> AlertBody:
    headline, subject, advice, path = describe(alert)
    return {
        "id": alert.id,
        "kind": alert.kind.value,
        "state": alert.state.value,
        "headline": headline,
        "subject": cut(one_line(subject), _MAX_NAME),
        "what_to_do": advice,
        "url": f"{console}{path}" if console and path else None,
        "first_at": format_rfc3339(alert.first_at),
        "last_at": format_rfc3339(alert.last_at),
        "count": alert.count,
    }


def _summary(body: AlertBody, quote: Callable[[str], str]) -> str:
    number = len(body["alerts"]) + body["more"]
    first = _title(body["alerts"][0], quote)
    return first if number == 1 else f"{number} alerts. {first}"


def _title(alert: AlertBody, quote: Callable[[str], str]) -> str:
    return f"{alert['headline']}: {quote(alert['subject'])}" if alert["subject"] else str(alert["headline"])


def _links(alert: AlertBody) -> list[str]:
    return [alert["url"]] if alert["url"] else []


def _more(body: AlertBody) -> list[str]:
    return [f"And {body['more']} more: {body['url'] or 'run riskrelay alert list'}"] if body["more"] else []


def _markdown(body: AlertBody) -> str:
    """Return the alerts that fit into a message, and the number of alerts that do not."""
    parts = ["\n".join([f"**{_title(each, _code)}**", each["what_to_do"], *_links(each)]) for each in body["alerts"]]
    kept = len(parts)
    while len("\n\n".join(parts[:kept])) > _MAX_MARKDOWN:
        kept -= 1
    return "\n\n".join([*parts[:kept], *_more(body | {"more": body["more"] + len(parts) - kept})])


def _code(text: str) -> str:
    # Markup and mentions have no effect in inline code. A backtick would end the code.
    return f"`{harmless_title(text).replace('`', chr(39))}`"


def _slack_link(alert: AlertBody) -> str:
    return f"\n<{alert['url'].replace('&', '&amp;')}|Open>" if alert["url"] else ""


def _slack_text(text: str) -> str:
    return harmless_title(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _rich(text: str) -> AlertBody:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]}
