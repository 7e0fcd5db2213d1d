"""`audit` and `compliance` at a remote installation; nothing that they read holds personal data."""

from typing import Any, Final

from bin.api_client.client import ApiClient
from bin.cli.records import shown_of
from bin.commands.audit import show_entries
from bin.commands.compliance import REQUESTS
from bin.remote.remote_command import RemoteCommand, showing
from schemas.base.timestamps import format_rfc3339_or_none

_REQUESTS: Final = "/api/compliance-requests"


def _list_requests(api: ApiClient, *, as_json: bool) -> None:
    found = api.items(_REQUESTS)
    waiting = sorted((each for each in found if each["status"] == "received"), key=lambda each: str(each["due_at"]))
    REQUESTS.show([*waiting, *(each for each in found if each["status"] != "received")], as_json)


def _list_audit(api: ApiClient, *, limit: int | None, as_json: bool, **filters: Any) -> None:
    shown = shown_of(limit, as_json)
    filters["object"] = filters.pop("subject_id")
    times = {name: format_rfc3339_or_none(filters[name]) for name in ("created_after", "created_before")}
    # Read one entry more than is shown, to find out whether there are more.
    found = api.items("/api/audit", None if shown is None else shown + 1, **{**filters, **times})
    show_entries(found[:shown], as_json, are_more=shown is not None and len(found) > shown)


REMOTE_COMMANDS: Final = {
    ("audit", "list"): RemoteCommand(_list_audit),
    ("compliance", "list"): RemoteCommand(_list_requests),
    ("compliance", "show"): showing(
        f"{_REQUESTS}/{{request_id}}", without=("with_report",), why="personal data stays on the server"
    ),
}
