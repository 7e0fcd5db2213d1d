"""The life of a ticket with the real processes, through public interfaces only: HTTP and the command line."""

import http.client
import json
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.compliance.requests import Topic
from schemas.exports.tickets.ticket import REDACTED_TICKET
from tests.support.database.databases import on_postgresql
from tests.support.factories import LOOPBACK, WEBHOOK_SECRET, environment, issue, postback
from tests.support.http.raw_http import EXPORTS, RESULTS, SCANNER, TARGETS
from tests.support.http.storefront import ADA, CLOUD, SHOP, WEBHOOKS, redact_body, signature, traces_of
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY, CountingReceiver, WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.trackers.servers import REPOSITORY, TOKEN, FakeGitea
from worker.http.signing import SignatureVerdict, verify

# This test waits for real delays, so it runs on one database only. Other tests run its steps on both databases.
pytestmark = on_postgresql

USER: Final = "user@shop.example"
RULE: Final = "img-alt"
PAGES: Final = [f"https://{SHOP}/page-{number}" for number in range(6)]
HALF: Final = PAGES[3:]
#: Found only after the approval, so that the approved ticket does not contain the customer's data.
ACCOUNT: Final = f"https://{SHOP}/account"
OF_ADA: Final = f"img[alt='{ADA.email}']"
#: The postbacks of a run arrive within milliseconds; a busy machine needs more.
SETTLE_S: Final = "2"


class Installation:
    """A shop's installation in cloud mode, with a webhook and a tracker that receive every event."""

    def __init__(self, folder: Path, database_url: str, redis: RedisServer, stack: ExitStack) -> None:
        settings = {**CLOUD, **LOOPBACK, "EVENT_SETTLE_SECONDS": SETTLE_S, "RATE_LIMIT_PER_MINUTE": "100000"}
        account = str(Shell(folder, database_url, **settings).json("account", "add", "Example Ltd")["id"])
        settings["OPERATOR_ACCOUNT_ID"] = account
        self.shell = Shell(folder, database_url, REDIS_URL=redis.url, **settings)
        self.shell.json("user", "add", USER, "--account", account)
        project = str(self.shell.json("project", "add", "Shop", "--account", account, "--shop-domain", SHOP)["id"])
        self.shell.json("grant", "add", "--user", USER, "--project", project)
        self._bearer = {"Authorization": f"Bearer {self.shell.run('token', 'create', '--user', USER).stdout.strip()}"}
        self._runs = count(1)
        self.receiver = stack.enter_context(CountingReceiver())
        self.gitea = stack.enter_context(FakeGitea())
        served = folder / "served"
        served.mkdir()
        settings["DEFAULT_PROJECT_ID"] = project
        given = environment(served, DATABASE_URL=database_url, REDIS_URL=redis.url, **settings)
        self.service = stack.enter_context(Service(given))
        self.worker = stack.enter_context(WorkerProcess(folder / "data", database_url, redis.url, **settings))

    def get(self, path: str) -> Any:
        """Send a GET request to the API as the user; return the body."""
        answer = self.service.request("GET", path, self._bearer)
        assert answer.status == 200, answer.content
        return answer.json

    def post(self, path: str, body: Any) -> Any:
        """Send a POST request to the API as the user; return the body."""
        answer = self.service.request("POST", path, self._bearer, body)
        assert answer.status in {200, 201, 202}, answer.content
        return answer.json

    def add_targets(self) -> tuple[str, str]:
        """Add the webhook and the tracker, and wait until a worker has validated both; return their ids."""
        webhook = {"provider_key": "generic_webhook", "name": "Ours", "base_url": self.receiver.url(), "events": ALL_EVENTS}
        tracker = {"provider_key": "gitea", "base_url": self.gitea.base_url, "provider_settings": {"on_fixed": "close"}}
        ids = [str(self.post(TARGETS, each)["id"]) for each in (webhook, {**tracker, "name": "Issues"})]
        self.shell.json("secret", "set", "target", ids[1], standard_input=f"{TOKEN}\n")
        for each in ids:
            wait_until(partial(self._is_usable, each))
        return ids[0], ids[1]

    def scan(self, broken: Collection[str] = (), runs: int = 1) -> dict[str, int]:
        """Post `runs` scan runs of all pages, with an issue on the pages `broken`; return the last run's finding counts."""
        for _ in range(runs):
            run, changed = next(self._runs), {"new": 0, "seen": 0, "fixed": 0, "reopened": 0}
            for url in (*PAGES, ACCOUNT):
                found = issue(RULE, location=OF_ADA if url == ACCOUNT else "main > img")
                body = postback(run, [found] if url in broken else [], page={"url": url, "statusCode": 200})
                answer = self.service.request("POST", RESULTS, SCANNER, body)
                assert answer.status == 202, answer.content
                changed = {name: number + answer.json["findings"][name] for name, number in changed.items()}
        return changed

    def events(self, export_id: str) -> list[dict[str, Any]]:
        """Return the events of a ticket, oldest first."""
        return [*reversed(self.get(f"{EXPORTS}/{export_id}/events")["items"])]

    def wait_for_events(self, number: int, *export_ids: str) -> None:
        """Wait until each ticket has `number` events and all of them are delivered."""
        for each in export_ids:
            wait_until(partial(self._have_arrived, each, number))

    def wait_for_delivery(self, *export_ids: str) -> None:
        """Wait until tickets are delivered."""
        for each in export_ids:
            wait_until(partial(self._is_delivered, each))

    def _is_usable(self, target_id: str) -> bool:
        validation = self.get(f"{TARGETS}/{target_id}")["last_validation"]
        return validation is not None and validation["status"] == "passed"

    def _is_delivered(self, export_id: str) -> bool:
        return bool(self.get(f"{EXPORTS}/{export_id}")["status"] == "exported")

    def _have_arrived(self, export_id: str, number: int) -> bool:
        return [each["status"] for each in self.events(export_id)] == ["delivered"] * number

    def set_by_hand(self, state: str) -> None:
        """Close or reopen the issue in the tracker, as a user would."""
        client = http.client.HTTPConnection("127.0.0.1", self.gitea.port, timeout=30)
        headers = {"Authorization": f"token {TOKEN}"}
        client.request("PATCH", f"/api/v1/repos/{REPOSITORY}/issues/1", json.dumps({"state": state}), headers)
        assert client.getresponse().status == 200
        client.close()


@pytest.fixture
def shop(database_url: str, redis: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield Installation(tmp_path, database_url, redis, stack)


def verify_receipt(file: Path) -> subprocess.CompletedProcess[str]:
    """Verify a receipt without access to the installation."""
    elsewhere = {"PATH": "/usr/bin:/bin", "RISKRELAY_ENV_FILE": "/nonexistent/.env"}
    words = [RISKRELAY, "receipt", "verify", str(file), "--secret-stdin"]
    return subprocess.run(
        words, cwd=file.parent, env=elsewhere, input=WEBHOOK_SECRET, capture_output=True, text=True, timeout=60, check=False
    )


def counts(added: int, fixed: int, still_open: int) -> dict[str, int]:
    return {"places_added": added, "places_fixed": fixed, "places_open": still_open}


@pytest.mark.timeout(240)
def test_a_ticket_is_prepared_delivered_updated_reopened_and_erased(shop: Installation, tmp_path: Path) -> None:
    gitea, target_ids = shop.gitea, shop.add_targets()

    # Six places of one rule make one ticket, which a user approves for both targets.
    assert shop.scan(PAGES) == {"new": 6, "seen": 0, "fixed": 0, "reopened": 0}
    [prepared] = shop.get(EXPORTS)["items"]
    assert (prepared["rule"], prepared["findings"]) == (RULE, {"total": 6, "fixed": 0})
    approval = {"target_ids": target_ids, "ticket_digest": prepared["ticket_digest"], "events": True}
    webhook, tracker = [each["id"] for each in shop.post(f"{EXPORTS}/{prepared['id']}/approve", approval)["items"]]
    both = (webhook, tracker)
    shop.wait_for_delivery(*both)
    [delivery], [opened] = shop.receiver.of(webhook), gitea.issues_of(tracker)
    assert json.loads(delivery.body)["ticket"]["title"] == prepared["ticket"]["title"] == opened["title"]

    # A new place causes an event. Half of the others are gone; this causes an event after two runs.
    assert shop.scan([*HALF, ACCOUNT])["new"] == 1
    shop.wait_for_events(1, *both)
    assert shop.scan([*HALF, ACCOUNT])["fixed"] == 3
    shop.wait_for_events(2, *both)
    assert [shop.get(f"{EXPORTS}/{each}")["findings"] for each in both] == [{"total": 7, "fixed": 3}] * 2
    assert [len(gitea.comments_of(1)), opened["state"]] == [2, "open"]
    assert "3 places fixed, 4 still open." in gitea.comments_of(1)[1]

    # All places are gone: the issue is closed. One returns: the issue is reopened, without a second ticket.
    assert shop.scan(runs=2)["fixed"] == 4
    shop.wait_for_events(3, *both)
    assert opened["state"] == "closed"
    assert shop.scan([ACCOUNT])["reopened"] == 1
    shop.wait_for_events(4, *both)
    assert opened["state"] == "open"
    assert shop.get(EXPORTS)["total"] == 2

    # A user reopens the closed issue: RiskRelay never closes it again.
    assert shop.scan(runs=2)["fixed"] == 1
    shop.wait_for_events(5, *both)
    assert opened["state"] == "closed"
    shop.set_by_hand("open")
    assert shop.scan([ACCOUNT])["reopened"] == 1
    shop.wait_for_events(6, *both)
    assert shop.scan(runs=2)["fixed"] == 1
    shop.wait_for_events(7, *both)
    assert (opened["state"], len(gitea.comments_of(1))) == ("open", 7)
    assert [len(gitea.issues), shop.get(EXPORTS)["total"]] == [1, 2]

    # The receipt of the approved and delivered ticket, before its erasure.
    receipt = tmp_path / "receipt.json"
    # A worker adds the entries to the audit chain within some seconds.
    wait_until(lambda: shop.shell.run("receipt", "show", webhook, "--output", str(receipt)).exit_code == 0)
    assert (proven := verify_receipt(receipt)).returncode == 0, proven.stdout + proven.stderr
    digest = prepared["ticket_digest"].encode()
    flipped = digest[:-1] + (b"1" if digest.endswith(b"0") else b"0")
    receipt.write_bytes(receipt.read_bytes().replace(digest, flipped, 1))
    assert verify_receipt(receipt).returncode == 1

    # The shop erases the customer, whose data is only in the place that was found later.
    assert traces_of(ADA, gitea.comments_of(1)[0].lower())
    body = json.dumps(redact_body(ADA)).encode()
    headers = {"X-Platform-Hmac-Sha256": signature(body), "X-Platform-Topic": Topic.CUSTOMER_REDACT}
    headers |= {"X-Platform-Shop-Domain": SHOP, "Content-Type": "application/json"}
    assert shop.service.request("POST", WEBHOOKS, headers, body).status == 204
    shop.wait_for_events(8, *both)
    for each in both:
        redacted = shop.get(f"{EXPORTS}/{each}")
        assert (redacted["status"], redacted["ticket"]) == ("exported", REDACTED_TICKET.record())
    assert opened["title"] == f"Erased ticket {tracker}"
    assert prepared["ticket"]["title"] not in opened["body"]

    # The final state at the receiver, in the API and in the receipt.
    requests = [each for each in shop.receiver.requests if each is not delivery]
    events = [json.loads(each.body) for each in requests]
    assert [(each["type"], {name: each["change"][name] for name in counts(0, 0, 0)}) for each in events] == [
        ("ticket.updated", counts(1, 0, 7)),
        ("ticket.updated", counts(0, 3, 4)),
        ("ticket.fixed", counts(0, 4, 0)),
        ("ticket.reopened", counts(1, 0, 1)),
        ("ticket.fixed", counts(0, 1, 0)),
        ("ticket.reopened", counts(1, 0, 1)),
        ("ticket.fixed", counts(0, 1, 0)),
        ("ticket.redact", counts(0, 0, 0)),
    ]
    assert [each["ticket"]["title"] for each in events] == [prepared["ticket"]["title"]] * 7 + [None]
    assert {each["provider_ticket"]["id"] for each in events} == {"T-1"}
    keys = [each.headers["idempotency-key"] for each in requests]
    assert keys == [each["id"] for each in events] == [each["id"] for each in shop.events(webhook)]
    assert len({*keys, webhook}) == 9
    assert len({each.headers["x-service-nonce"] for each in shop.receiver.requests}) == 9
    for each in shop.receiver.requests:
        signed_at = int(each.headers["x-service-timestamp"])
        verdict = verify(WEBHOOK_SECRET.encode(), each.headers, each.body, signed_at, lambda _: False)
        assert verdict is SignatureVerdict.OK
    for export_id in both:
        for event in shop.events(export_id):
            assert [each["outcome"] for each in event["deliveries"]] == ["delivered"]
    verified = shop.shell.json("audit", "verify")
    assert shop.shell.run("audit", "export", str(tmp_path / "audit.jsonl")).exit_code == 0
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert verified["entries"] == len(log)
    approvals = [(each["subject_id"], each["reason"]) for each in log if each["action"] == "approve_events"]
    assert sorted(approvals) == sorted((each, " ".join(ALL_EVENTS)) for each in both)
    assert len([each for each in log if each["action"] == "ticket.redact_delivered"]) == 2
