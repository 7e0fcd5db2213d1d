"""Accounts at a remote installation, with their users, projects, scan runs, grants and tokens.

A command names a user by email, the API by id: the first request finds the id.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import click

from bin.api_client.client import ApiClient, ApiRecord
from bin.cli.option_types import require_one
from bin.cli.output import Refused
from bin.cli.records import Record, print_record
from bin.cli.request_bodies import present
from bin.commands.accounts import ACCOUNTS, GRANTS, USERS, show_accounts
from bin.commands.projects import PROJECTS
from bin.commands.tokens import NO_VALID_TOKEN, TOKENS, print_token
from bin.remote.remote_command import RemoteCommand, listing, only, printing
from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.base.timestamps import format_rfc3339

_ACCOUNTS: Final = "/api/accounts"
_PROJECTS: Final = "/api/projects"
_USERS: Final = "/api/users"
_GRANTS: Final = "/api/grants"
_TOKENS: Final = "/api/tokens"
#: The abilities with which commands of this module are allowed.
_MANAGING: Final = frozenset({Ability.MANAGE_ACCOUNT, Ability.ADMIN})

_user = only(*USERS.columns)
_grant = only("id", "user", "project_id", "report_id", "role")


def _account(record: ApiRecord) -> dict[str, Any]:
    return {"id": record["id"], "name": record["name"], "webhooks": record["may_use_webhooks"]}


def _list_accounts(api: ApiClient, *, as_json: bool) -> None:
    found = reversed(api.items(_ACCOUNTS))
    show_accounts([{**_account(each), **_usage(each["usage"])} for each in found], as_json)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: usage[name] for name in ACCOUNTS.columns[3:]}


def _change_user(api: ApiClient, email: str, **changes: Any) -> Record:
    return _user(api.patch(f"{_USERS}/{user_id(api, email)}", changes))


def _remove_user(api: ApiClient, email: str) -> Record:
    user = _user_record(api, email)
    api.delete(f"{_USERS}/{user['id']}")
    # Not read again: the token of this command may be the user's.
    return _user(ApiRecord({**user, "email": None, "state": "removed"}))


def _add_grant(api: ApiClient, email: str, project_id: int | None, report_id: int | None, role: str | None) -> Record:
    if role is not None and project_id is None:
        raise click.UsageError("--role needs --project.")
    require_one("Use either --project or --report.", project_id, report_id)
    scope = {"project_id": project_id, "report_id": report_id, "role": role}
    return _grant(api.post(_GRANTS, {"user_id": user_id(api, email), **present(scope)}))


def _list_grants(api: ApiClient, *, email: str | None, as_json: bool) -> None:
    found = api.items(_GRANTS, user_id=None if email is None else user_id(api, email))
    states = {each["id"]: each["state"] for each in api.items(_USERS, email=email)}
    GRANTS.show([{**_grant(each), "user_state": states.get(each["user_id"])} for each in reversed(found)], as_json)


def _remove_grant(
    api: ApiClient, grant_id: int | None, email: str | None, project_id: int | None, report_id: int | None
) -> Record:
    scope = (project_id, report_id)
    if (grant_id is None) == (email is None) or (scope.count(None) == 1) != (email is not None):
        raise click.UsageError("Use either a grant id, or --user with --project or --report.")
    if email is None:
        found = api.get(f"{_GRANTS}/{grant_id}")
    else:
        of_user = api.items(_GRANTS, user_id=user_id(api, email))
        matching = [each for each in of_user if (each["project_id"], each["report_id"]) == scope]
        if not matching:
            raise Refused("This user has no such grant; see `bin/riskrelay grant list`.")
        found = matching[0]
    api.delete(f"{_GRANTS}/{found['id']}")
    return _grant(found)


def _create_token(
    api: ApiClient, *, email: str, kind: str, abilities: tuple[str, ...], name: str, expires_days: int | None, as_json: bool
) -> None:
    expires_at = format_rfc3339(utc_now() + timedelta(days=expires_days)) if expires_days else None
    named = present({"abilities": [*abilities] or None, "expires_at": expires_at})
    user = _user_record(api, email)
    # Before the token exists, so that no failure of this request loses its text.
    project_roles = [] if user["role"] else [each["role"] for each in api.items(_GRANTS, user_id=user["id"])]
    made = api.post(_TOKENS, {"user_id": user["id"], "kind": kind, "name": name, **named})
    if made["token"] is None:
        # A replayed response: the first attempt created the token, and the stored response does not contain its text.
        raise Refused(f"Token {made['id']} was created, but the response with its text was lost; revoke it, create another.")
    print_token(made, email, user["role"], project_roles, as_json)


def _revoke_token(api: ApiClient, *, token_id: int | None, email: str | None, as_json: bool) -> None:
    require_one("Use either a token id or --user.", token_id, email)
    if email is None:
        print_record(_revoke(api, api.get(f"{_TOKENS}/{token_id}")), as_json)
        return
    listed = reversed(api.items(_TOKENS, user_id=user_id(api, email)))
    valid = [each for each in listed if each["revoked_at"] is None]
    # Last those that manage accounts: the token of this command is one of them, and can revoke nothing after itself.
    ordered = sorted(valid, key=lambda each: not _MANAGING.isdisjoint(each["abilities"]))
    TOKENS.show([_revoke(api, each) for each in ordered], as_json, NO_VALID_TOKEN)


def _revoke(api: ApiClient, token: ApiRecord) -> Record:
    api.delete(f"{_TOKENS}/{token['id']}")
    # Not read again: the token may be that of this command.
    return {**token, "revoked_at": token["revoked_at"] or format_rfc3339(utc_now())}


def user_id(api: ApiClient, email: str) -> Any:
    """Return the id of a user. Raises Refused as `_user_record` does."""
    return _user_record(api, email)["id"]


def _user_record(api: ApiClient, email: str) -> ApiRecord:
    """Return a user. Raises Refused if there is none with this email, in upper or lower case, or several."""
    found = api.items(_USERS, email=email)
    if not found:
        raise Refused("There is no user with this email; see `bin/riskrelay user list`.")
    if len(found) > 1:
        found = [each for each in found if each["email"] == email]
    if not found:
        raise Refused("Several users have this email; write it as `bin/riskrelay user list` does.")
    return found[0]


def _role(name: str) -> str | None:
    return None if name == "none" else name


REMOTE_COMMANDS: Final = {
    ("account", "add"): printing(
        lambda api, name, no_webhooks: _account(api.post(_ACCOUNTS, {"name": name, "may_use_webhooks": not no_webhooks}))
    ),
    ("account", "list"): RemoteCommand(_list_accounts),
    ("account", "set"): printing(
        lambda api, account_id, webhooks: _account(
            api.patch(f"{_ACCOUNTS}/{account_id}", {"may_use_webhooks": webhooks == "on"})
        )
    ),
    ("user", "add"): printing(lambda api, role, **given: _user(api.post(_USERS, {"role": _role(role), **present(given)}))),
    ("user", "list"): listing(_USERS, USERS, _user),
    ("user", "set"): printing(lambda api, email, role: _change_user(api, email, role=_role(role))),
    ("user", "disable"): printing(lambda api, email: _change_user(api, email, state="disabled")),
    ("user", "enable"): printing(lambda api, email: _change_user(api, email, state="active")),
    ("user", "remove"): printing(_remove_user),
    ("project", "add"): printing(lambda api, **given: api.post(_PROJECTS, present(given))),
    ("project", "set"): printing(lambda api, project_id, **changes: api.patch(f"{_PROJECTS}/{project_id}", changes)),
    ("project", "list"): listing(_PROJECTS, PROJECTS, lambda record: record),
    ("scan-run", "add"): printing(
        lambda api, project_id, scan_run_id: only("id", "project_id", "status")(
            api.post("/api/scan-runs", present({"project_id": project_id, "id": scan_run_id}))
        )
    ),
    ("grant", "add"): printing(_add_grant),
    ("grant", "list"): RemoteCommand(_list_grants),
    ("grant", "remove"): printing(_remove_grant),
    ("token", "create"): RemoteCommand(_create_token),
    ("token", "list"): listing(_TOKENS, TOKENS, lambda record: record),
    ("token", "revoke"): RemoteCommand(_revoke_token),
}
