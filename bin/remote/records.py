"""`rule`, `session` and `receipt` at a remote installation."""

from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from bin.api_client.client import ApiClient, ApiRecord, ApiRefusal, path_to
from bin.cli.option_types import require_one
from bin.cli.records import print_record
from bin.cli.request_bodies import present
from bin.commands.exports.receipt import print_receipt
from bin.commands.exports.rule import RULES, match_and_action
from bin.commands.tokens import NO_SESSIONS, SESSIONS
from bin.remote.accounts import user_id
from bin.remote.remote_command import RemoteCommand, listing, posting, printing, removing, showing

_RULES: Final = "/api/approval-rules"
_RULE: Final = f"{_RULES}/{{rule_id}}"
_SESSIONS: Final = "/api/console-sessions"


def _add_rule(api: ApiClient, name: str, is_disabled: bool, **given: Any) -> ApiRecord:
    return api.post(_RULES, {"name": name, "enabled": not is_disabled, "match": {}, **match_and_action(given)})


def _set_rule(api: ApiClient, rule_id: str, name: str | None, is_enabled: bool | None, **given: Any) -> ApiRecord:
    body = present({"name": name, "enabled": is_enabled, **match_and_action(given)})
    return api.patch(path_to(_RULE, rule_id=rule_id), body)


def _show_receipt(api: ApiClient, *, export_id: str, file: Path | None) -> None:
    print_receipt(api.get(path_to("/api/ticket-exports/{export_id}/receipt", export_id=export_id)), file)


def _list_sessions(api: ApiClient, *, email: str | None, as_json: bool) -> None:
    SESSIONS.show(_sessions(api, email), as_json)


def _revoke_session(api: ApiClient, *, session_id: str | None, email: str | None, as_json: bool) -> None:
    require_one("Use either a session id or --user.", session_id, email)
    if session_id is not None:
        print_record(_end_session(api, session_id), as_json)
        return
    ended = [_end_session(api, each["id"]) for each in _sessions(api, email)]
    SESSIONS.show(ended, as_json, NO_SESSIONS)


def _sessions(api: ApiClient, email: str | None) -> list[ApiRecord]:
    """Return the open sessions, of one user if an email is given. Raises Refused for a user that does not exist."""
    found = [each for each in api.items(_SESSIONS) if email is None or str(each["user"]).lower() == email.lower()]
    if email is not None and not found:
        try:
            user_id(api, email)
        except ApiRefusal as refused:
            # A token may lack the ability to read users.
            if refused.status != HTTPStatus.FORBIDDEN:
                raise
    return found


def _end_session(api: ApiClient, session_id: str) -> ApiRecord:
    return api.post(path_to(f"{_SESSIONS}/{{session_id}}/revoke", session_id=session_id))


REMOTE_COMMANDS: Final = {
    ("rule", "add"): printing(_add_rule, without=("email",)),
    ("rule", "list"): listing(_RULES, RULES),
    ("rule", "show"): showing(_RULE),
    ("rule", "set"): printing(_set_rule, without=("email",)),
    ("rule", "remove"): removing(_RULE),
    ("rule", "test"): posting(f"{_RULE}/test"),
    ("session", "list"): RemoteCommand(_list_sessions),
    ("session", "revoke"): RemoteCommand(_revoke_session),
    ("receipt", "show"): RemoteCommand(_show_receipt),
}
