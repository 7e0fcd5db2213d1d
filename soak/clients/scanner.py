"""A scanner during a soak: scan runs over a few pages whose findings go and come back, with targets that ask for events.

One project groups its findings by rule, one does not. The first run reports everything, but for the last page; its tickets
are approved before the second one adds that page. Later runs are completed, failed or partial, leave pages out, meet errors
or check fewer rules, and report what is on the pages then. `soak.verification.life_cycles` compares what became of it.
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
#: Shares of places that change between runs, pages that a run leaves out, and pages of which it checks fewer rules.
_CHANGES: Final = 0.3
_LEFT_OUT: Final = 0.1
_NARROWER: Final = 0.2
#: Mean seconds between runs, and between looks at what has not been delivered yet.
EVERY_S: Final = 1.2
_LOOK_S: Final = 1.0
_LOOKS: Final = 60
#: 409: it is not failed any more.
_RETRIED_OR_NOT: Final = frozenset({202, 409, 422})
_MAX_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class ProjectToScan:
    """A project, the ids of its scan runs, and how many tickets its findings become."""

    id: int
    runs: Sequence[int]
    tickets: int


class ScanClient(SoakClient):
    """Scans projects; `targets` get the tickets in turn."""

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
        """Begin every project, scan until the run is over, then see that every ticket is delivered."""
        for project in self._projects:
            self._begin(project)
        while not self.shared.pace.stop.wait(self.chance.uniform(0.5, 1.5) * EVERY_S):
            for project in self._projects:
                self._scan(project.id)
        for _ in range(_LOOKS):
            if not self._retry():
                break
            time.sleep(_LOOK_S)

    def tell(self) -> None:
        """Record what the product says of findings, tickets and their events at the end."""
        for project_id in self._runs:
            listed = self.ask("GET", f"/api/findings?project_id={project_id}&limit={_MAX_PAGE}")
            self.events.note("shown findings", project=project_id, items=[] if listed is None else listed.body["items"])
        for export_id in self._tickets:
            record = self.ask("GET", f"{EXPORTS}/{export_id}")
            if record is not None:
                shown = {name: record.body.get(name) for name in ("findings", "provider_ticket")}
                self.events.note("shown ticket", export=export_id, **shown, events=self._events_of(export_id))
        self.api.close()

    def _begin(self, project: ProjectToScan) -> None:
        name = self._names[project.id]
        self.events.note("asked", name=name, rows=project.tickets)
        first, second = next(self._runs[project.id]), next(self._runs[project.id])
        # The second page extends the groups of the first.
        ids = list(dict.fromkeys(each for page in PAGES[:-1] for each in self._post(project.id, first, page)))
        self._approve_all(ids)
        more = [each for page in PAGES for each in self._post(project.id, second, page)]
        self._acknowledge(name, ids + more)
        self._approve_all(more)

    def _approve_all(self, ids: Sequence[str]) -> None:
        for export_id, target_id in zip(ids, self._targets, strict=False):
            # Not at once if its target is being validated.
            while not self.approve(export_id, target_id):
                if self.shared.pace.stop.wait(_LOOK_S):
                    return
            self._tickets.append(export_id)

    def _scan(self, project_id: int) -> None:
        run = next(self._runs[project_id], None)
        if run is None:
            return
        for page, rule in itertools.product(PAGES, RULES):
            self._present[project_id, page, rule] ^= self.chance.random() < _CHANGES
        [status] = self.chance.choices(list(_STATUSES), list(_STATUSES.values()))
        for page in PAGES:
            if self.chance.random() < _LEFT_OUT:
                continue
            [status_code] = self.chance.choices(list(_STATUS_CODES), list(_STATUS_CODES.values()))
            rules = self.chance.sample(RULES, 2) if self.chance.random() < _NARROWER else None
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
        """Post a page; return the exports that were prepared or extended."""
        url = f"https://shop.example/{self._names[project_id]}/{page}/"
        found = [rule for rule in rules or RULES if self._present[project_id, page, rule]]
        about = {"url": url, "statusCode": status_code, **({"rules": rules} if rules else {})}
        issues: list[Mapping[str, Any]] = [issue(rule, location=f"#{rule}") for rule in found]
        headers = {"X-Scanner-Secret": SCANNER_SECRET, "Idempotency-Key": f"scan-{run}-{page}"}
        body = postback(run, issues, status=status, page=about)
        answer = self.api.request("POST", "/api/scanner/results", headers, body, ACCEPTED)
        if answer is None:
            return []
        self.shared.counts["scans"] += 1
        scanned = {"status": status, "status_code": status_code, "rules": rules, "found": found}
        self.events.note("scanned", project=project_id, run=run, url=url, **scanned, counts=answer.body["findings"])
        return list(answer.body["ticket_exports"])

    def _retry(self) -> bool:
        """Retry the tickets that failed; return whether any is not delivered yet."""
        read = [self.ask("GET", f"{EXPORTS}/{each}") for each in self._tickets]
        left = [answer.body for answer in read if answer is not None and answer.body["status"] != "exported"]
        for record in left:
            if record["status"] == "failed":
                self.ask("POST", f"{EXPORTS}/{record['id']}/retry", expected=_RETRIED_OR_NOT)
        return bool(left)

    def _events_of(self, export_id: str) -> list[dict[str, Any]]:
        """Return the events of a ticket, the oldest first."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            listed = self.ask("GET", f"{EXPORTS}/{export_id}/events?limit={_MAX_PAGE}{cursor}")
            if listed is None:
                return found
            found[:0] = [
                {name: each[name] for name in ("id", "type", "status", "attempts", "result")}
                for each in reversed(listed.body["items"])
            ]
            if listed.body["next_cursor"] is None:
                return found
            cursor = f"&cursor={listed.body['next_cursor']}"
