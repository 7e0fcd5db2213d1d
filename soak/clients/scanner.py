"""A scanner during a soak: scan runs over a few pages whose findings disappear and return, with targets that receive events.

One project groups its findings by rule, one does not. The first run reports all findings except those of the last page; its
tickets are approved before the second run adds that page. Later runs are completed, failed or partial, skip pages, get error
statuses or check fewer rules, and report the findings that are present then. `soak.verification.life_cycles` verifies the
results.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from soak.clients.submitters import ACCEPTED, EXPORTS, Shared, SoakClient
from tests.support.factories import SCANNER_SECRET, issue, postback

PAGES: Final = ("one", "two", "three")
RULES: Final = ("alt", "label", "title")
_STATUSES: Final = {"completed": 8, "failed": 1, "partial": 1}
_STATUS_CODES: Final = {200: 8, None: 1, 503: 1}
#: Shares of places that change between runs, of pages that a run skips, and of pages on which it checks fewer rules.
_CHANGES: Final = 0.3
_SKIPPED_PAGES: Final = 0.1
_FEWER_RULES: Final = 0.2
#: Mean seconds between runs, seconds between polls of undelivered tickets, and the maximum number of these polls.
EVERY_S: Final = 1.2
_POLL_S: Final = 1.0
_MAX_POLLS: Final = 60
#: 409: the export is no longer failed.
_RETRIED_OR_NOT: Final = frozenset({202, 409, 422})
_MAX_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class ProjectToScan:
    """A project, the ids of its scan runs, and the number of its tickets."""

    id: int
    runs: Sequence[int]
    tickets: int


class ScanClient(SoakClient):
    """Scans projects; its tickets are approved for the `targets` in rotation."""

    def __init__(self, shared: Shared, port: int, projects: Sequence[ProjectToScan], targets: Sequence[str]) -> None:
        super().__init__(shared, -4, port)
        self.name = "scan_client"
        self._projects = projects
        self._targets = itertools.cycle(targets)
        self._runs = {project.id: iter(project.runs) for project in projects}
        self._names = {project.id: shared.names.new()[0] for project in projects}
        self._present = dict.fromkeys(itertools.product(self._runs, PAGES, RULES), True)
        self._tickets: list[str] = []

    def act(self) -> None:
        """Make the first scans of every project, scan until the run is over, then retry until every ticket is delivered."""
        for project in self._projects:
            self._begin(project)
        while not self.shared.pace.stop.wait(self.rng.uniform(0.5, 1.5) * EVERY_S):
            for project in self._projects:
                self._scan(project.id)
        for _ in range(_MAX_POLLS):
            if not self._retry():
                break
            time.sleep(_POLL_S)

    def record_final_state(self) -> None:
        """Record the findings, tickets and events that the API returns at the end."""
        for project_id in self._runs:
            listed = self.call_api("GET", f"/api/findings?project_id={project_id}&limit={_MAX_PAGE}")
            self.events.append("shown findings", project=project_id, items=[] if listed is None else listed.body["items"])
        for export_id in self._tickets:
            record = self.call_api("GET", f"{EXPORTS}/{export_id}")
            if record is not None:
                shown = {name: record.body.get(name) for name in ("findings", "provider_ticket")}
                self.events.append("shown ticket", export=export_id, **shown, events=self._events_of(export_id))
        self.api.close()

    def _begin(self, project: ProjectToScan) -> None:
        name = self._names[project.id]
        self.events.append("submitting", name=name, rows=project.tickets)
        first, second = next(self._runs[project.id]), next(self._runs[project.id])
        # The second page extends the groups of the first.
        ids = list(dict.fromkeys(each for page in PAGES[:-1] for each in self._post(project.id, first, page)))
        self._approve_all(ids)
        more = [each for page in PAGES for each in self._post(project.id, second, page)]
        self._acknowledge(name, ids + more)
        self._approve_all(more)

    def _approve_all(self, ids: Sequence[str]) -> None:
        for export_id, target_id in zip(ids, self._targets, strict=False):
            # The approval fails while the target is being validated.
            while not self.approve(export_id, target_id):
                if self.shared.pace.stop.wait(_POLL_S):
                    return
            self._tickets.append(export_id)

    def _scan(self, project_id: int) -> None:
        run = next(self._runs[project_id], None)
        if run is None:
            return
        for page, rule in itertools.product(PAGES, RULES):
            self._present[project_id, page, rule] ^= self.rng.random() < _CHANGES
        [status] = self.rng.choices(list(_STATUSES), list(_STATUSES.values()))
        for page in PAGES:
            if self.rng.random() < _SKIPPED_PAGES:
                continue
            [status_code] = self.rng.choices(list(_STATUS_CODES), list(_STATUS_CODES.values()))
            rules = self.rng.sample(RULES, 2) if self.rng.random() < _FEWER_RULES else None
            self._post(project_id, run, page, status, status_code, rules)

    def _post(
        self,
        project_id: int,
        run: int,
        page: str,
        status: str = "completed",
        status_code: int | None = 200,
        rules: Sequence[str] | None = None,
    ) -> list[str]:
        """Post the result for a page; return the ids of the exports that were prepared or extended."""
        url = f"https://shop.example/{self._names[project_id]}/{page}/"
        found = [rule for rule in rules or RULES if self._present[project_id, page, rule]]
        about = {"url": url, "statusCode": status_code, **({"rules": rules} if rules else {})}
        issues: list[Mapping[str, Any]] = [issue(rule, location=f"#{rule}") for rule in found]
        headers = {"X-Scanner-Secret": SCANNER_SECRET, "Idempotency-Key": f"scan-{run}-{page}"}
        body = postback(run, issues, status=status, page=about)
        response = self.api.request("POST", "/api/scanner/results", headers, body, ACCEPTED)
        if response is None:
            return []
        self.shared.counts["scans"] += 1
        scanned = {"status": status, "status_code": status_code, "rules": rules, "found": found}
        self.events.append("scanned", project=project_id, run=run, url=url, **scanned, counts=response.body["findings"])
        return list(response.body["ticket_exports"])

    def _retry(self) -> bool:
        """Retry failed tickets; return whether any ticket is not delivered yet."""
        read = [self.call_api("GET", f"{EXPORTS}/{each}") for each in self._tickets]
        left = [response.body for response in read if response is not None and response.body["status"] != "exported"]
        for record in left:
            if record["status"] == "failed":
                self.call_api("POST", f"{EXPORTS}/{record['id']}/retry", expected=_RETRIED_OR_NOT)
        return bool(left)

    def _events_of(self, export_id: str) -> list[dict[str, Any]]:
        """Return the events of a ticket, the oldest first."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            listed = self.call_api("GET", f"{EXPORTS}/{export_id}/events?limit={_MAX_PAGE}{cursor}")
            if listed is None:
                return found
            found[:0] = [
                {name: each[name] for name in ("id", "type", "status", "attempts", "result")}
                for each in reversed(listed.body["items"])
            ]
            if listed.body["next_cursor"] is None:
                return found
            cursor = f"&cursor={listed.body['next_cursor']}"
