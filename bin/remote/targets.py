"""`target` at a remote installation; its settings check URLs, and its workers validate and ping."""

from typing import Any, Final

from bin.api_client.client import ApiClient, ApiRecord, ApiRefusal, path_to
from bin.cli.option_types import require_one
from bin.cli.output import echo
from bin.cli.provider_options import settings_from
from bin.cli.records import print_record
from bin.commands.target import TARGETS, changed_members, new_members, print_result, print_resumed
from bin.remote.remote_command import RemoteCommand, listing, posting, printing, removing, showing
from schemas.targets.target import PAUSES_BY_RECEIVER
from schemas.trackers.registry import GENERIC_WEBHOOK

_TARGETS: Final = "/api/ticket-export-targets"
_TARGET: Final = f"{_TARGETS}/{{target_id}}"


def _add(api: ApiClient, *, as_json: bool, **given: Any) -> None:
    """Create a target; a tracker gets its token on the server, as no secret is sent over the API."""
    made = api.post(_TARGETS, new_members(**given))
    print_record(made, as_json)
    if made["provider_key"] != GENERIC_WEBHOOK:
        fix = f"set it on the server with `riskrelay secret set target {made['id']}`"
        echo(f"riskrelay: the target has no token yet; {fix}.", err=True)


def _set(api: ApiClient, target_id: str, settings: tuple[str, ...], labels: tuple[str, ...], **given: Any) -> ApiRecord:
    path = path_to(_TARGET, target_id=target_id)
    members = changed_members(**given, has_settings=bool(settings or labels))
    if settings or labels:
        found = api.get(path)
        members["provider_settings"] = settings_from(found["provider_key"], settings, labels, found["provider_settings"])
    return api.patch(path, members)


def _resume(api: ApiClient, *, target_id: str | None, is_all: bool, as_json: bool) -> None:
    require_one("Use either a target id or --all.", target_id, is_all)
    if target_id is not None:
        print_record(_resume_target(api, target_id), as_json)
        return
    resumed, refusals = list[ApiRecord](), list[str]()
    for each in api.items(_TARGETS, status="paused"):
        if each.get("status_reason") in PAUSES_BY_RECEIVER:
            continue
        try:
            resumed.append(_resume_target(api, each["id"]))
        except ApiRefusal as refused:
            refusals.append(refused.message)
    print_resumed(resumed, refusals, as_json)


def _resume_target(api: ApiClient, target_id: str) -> ApiRecord:
    return api.post(path_to(f"{_TARGET}/resume", target_id=target_id))


def _validate(api: ApiClient, *, target_id: str, as_json: bool) -> None:
    target = api.post(path_to(f"{_TARGET}/validate", target_id=target_id))
    found = target["last_validation"] or ApiRecord(status="failed", reason=None)
    checked = {"by": "worker", "status": found["status"], "reason": found["reason"]}
    print_result({**target, "checked": checked}, found["reason"], as_json, is_good=found["status"] == "passed")


def _ping(api: ApiClient, *, target_id: str, as_json: bool) -> None:
    result = api.post(path_to(f"{_TARGET}/ping", target_id=target_id))
    print_result(result, result["error_code"], as_json, is_good=result["delivered"] is True)


REMOTE_COMMANDS: Final = {
    ("target", "list"): listing(_TARGETS, TARGETS),
    ("target", "show"): showing(_TARGET),
    ("target", "add"): RemoteCommand(_add, without=("account_id",)),
    ("target", "set"): printing(_set),
    ("target", "remove"): removing(_TARGET),
    ("target", "pause"): posting(f"{_TARGET}/pause"),
    ("target", "disable"): posting(f"{_TARGET}/disable"),
    ("target", "resume"): RemoteCommand(_resume),
    ("target", "limit"): printing(
        lambda api, target_id, limit_members: api.patch(path_to(_TARGET, target_id=target_id), limit_members)
    ),
    ("target", "validate"): RemoteCommand(_validate),
    ("target", "ping"): RemoteCommand(_ping),
}
