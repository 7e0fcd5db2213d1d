"""Decides on many exports during a soak: in bulk by ids and by filter, by a rule, after edits, with dismissals and restores.

Only its exports are manual and of severity `critical`, so that a filter finds them and no others. Only its findings have
rule codes that its approval rule matches.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from soak.clients.api_connection import RETRY_FOR_S
from soak.clients.submitters import CREATED, EXPORTS, Shared, SoakClient

_DONE: Final = frozenset({200})
#: 422: the target is paused at this moment, or its last validation failed.
_DECIDED_OR_REFUSED: Final = frozenset({200, 422})
#: 409: the count has changed, since an earlier request without a response was carried out.
_BEGUN_OR_REFUSED: Final = frozenset({202, 409, 422})
#: Mean seconds between decisions, and the maximum number of exports of each.
_EVERY_S: Final = 2.0
_MAX_TICKETS: Final = 6
#: The rule codes that the approval rule matches begin with this.
_BY_RULE: Final = "approved-by-rule"
_FILTER: Final = {"status": "prepared", "source": "manual", "severity": "critical"}


class TriageClient(SoakClient):
    """Decides on a few exports of its own at once."""

    def __init__(self, shared: Shared, port: int) -> None:
        super().__init__(shared, -3, port)
        self.name = "triage_client"
        self._actions: list[Callable[[list[str]], None]] = [
            self._approve_by_ids,
            self._approve_by_filter,
            self._dismiss_by_ids,
            self._restore_and_approve,
            self._edit_and_approve,
        ]
        self._rule_target = self.access.targets[0]

    def act(self) -> None:
        """Decide until the run is over."""
        action = {"type": "approve", "target_id": self._rule_target}
        rule = {"name": "By rule", "match": {"rule": f"{_BY_RULE}-*"}, "action": action}
        has_rule = self.call_api("POST", "/api/approval-rules", rule, CREATED) is not None
        while not self.shared.pace.stop.wait(self.rng.uniform(0.5, 1.5) * _EVERY_S):
            ids = [each for _ in range(self.rng.randint(1, _MAX_TICKETS)) for each in self._prepare_critical()]
            self.rng.choice(self._actions)(ids)
            if has_rule:
                self._approve_by_rule()

    def _prepare_critical(self) -> list[str]:
        name, _ = self.shared.names.new()
        body = {"ticket": {"title": f"Note {name}", "severity": "critical"}, "source": {"type": "manual", "id": name}}
        response = self.keyed_post(name, 1, EXPORTS, self.access.bearer, body, CREATED)
        return [] if response is None else self._acknowledge(name, [response.body["id"]])

    def _approve_by_rule(self) -> None:
        for export_id in self.post_back(*self.shared.names.new(), _BY_RULE):
            # The rule has approved the export, or approves it once the target is active.
            self.events.append("approving", export=export_id, target=self._rule_target)
            read = self.call_api("GET", f"{EXPORTS}/{export_id}")
            if read is not None and read.body["target_id"] == self._rule_target:
                self.shared.counts["approved by a rule"] += 1
                self._record_approval(export_id, self._rule_target, read.body["ticket_digest"])

    def _approve_by_ids(self, ids: list[str]) -> None:
        digests = {each: self._digest(each) for each in ids}
        target_id = self._choose_target(ids)
        references = [{"id": each, "ticket_digest": digest} for each, digest in digests.items() if digest is not None]
        for result in self._decide({"action": "approve", "target_id": target_id, "ids": references}) if references else ():
            if "status" in result:
                self._record_approval(result["id"], target_id, digests[result["id"]])

    def _approve_by_filter(self, _: list[str]) -> None:
        listed = self.call_api(
            "GET", f"{EXPORTS}?{'&'.join(f'{name}={value}' for name, value in _FILTER.items())}&limit=200"
        )
        if listed is None:
            return
        digests = {item["id"]: item["ticket_digest"] for item in listed.body["items"]}
        target_id = self._choose_target([*digests])
        body = {"action": "approve", "target_id": target_id, "filter": _FILTER, "expected_count": len(digests)}
        begun = self.call_api("POST", f"{EXPORTS}/bulk", body, _BEGUN_OR_REFUSED)
        if begun is None or begun.status != 202 or not self._is_ended(begun.body["id"]):
            return
        for export_id, digest in digests.items():
            read = self.call_api("GET", f"{EXPORTS}/{export_id}")
            if read is not None and read.body["target_id"] == target_id:
                self._record_approval(export_id, target_id, digest)

    def _dismiss_by_ids(self, ids: list[str]) -> None:
        for result in self._decide({"action": "dismiss", "reason": "test", "ids": [{"id": each} for each in ids]}):
            if result.get("status") == "dismissed":
                self.events.append("dismissed", export=result["id"])

    def _restore_and_approve(self, ids: list[str]) -> None:
        named = [{"id": each} for each in ids]
        if self._decide({"action": "dismiss", "note": "not now", "ids": named}):
            self._decide({"action": "restore", "ids": named})
        self._approve_by_ids(ids)

    def _edit_and_approve(self, ids: list[str]) -> None:
        for each in ids:
            edited = {"description": "Edited.", "labels": ["edited"]}
            self.api.request("PATCH", f"{EXPORTS}/{each}", self.access.bearer, edited, _DONE)
        self._approve_by_ids(ids)

    def _decide(self, body: Any) -> list[dict[str, Any]]:
        if not body["ids"]:
            return []
        response = self.call_api("POST", f"{EXPORTS}/bulk", body, _DECIDED_OR_REFUSED)
        return [] if response is None or response.status != 200 else list(response.body["results"])

    def _choose_target(self, ids: list[str]) -> str:
        """Return a target, and record that the exports may arrive there from now on."""
        target_id = self.rng.choice([each for each in self.access.targets if each not in self.access.paused_at_times])
        for each in ids:
            self.events.append("approving", export=each, target=target_id)
        return target_id

    def _record_approval(self, export_id: str, target_id: str, digest: str | None) -> None:
        self.shared.counts["approved"] += 1
        self.events.append("approved", export=export_id, target=target_id, digest=digest)

    def _digest(self, export_id: str) -> str | None:
        read = self.call_api("GET", f"{EXPORTS}/{export_id}")
        return None if read is None else str(read.body["ticket_digest"])

    def _is_ended(self, job_id: str) -> bool:
        deadline = time.monotonic() + RETRY_FOR_S
        while time.monotonic() < deadline:
            job = self.call_api("GET", f"/api/bulk-jobs/{job_id}")
            if job is not None and job.body["status"] != "running":
                self.shared.counts["bulk jobs"] += 1
                return True
            time.sleep(0.2)
        return False
