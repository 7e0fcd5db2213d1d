"""Runs one soak: starts everything, applies load, injects faults, stops the faults, waits, stops everything, verifies."""

import hashlib
import json
import re
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.intake.grouping import TicketGrouping
from schemas.targets.target import TargetEdit
from soak.clients.api_connection import RETRY_FOR_S
from soak.clients.console import ConsoleClient
from soak.clients.hostile import HostileClient
from soak.clients.operator import OperatorClient
from soak.clients.scanner import EVERY_S, PAGES, RULES, ProjectToScan, ScanClient
from soak.clients.submitters import ClientAccess, Names, Pace, Shared, SoakClient
from soak.clients.triage import TriageClient
from soak.fault_injection import FaultInjector
from soak.installation import SETTINGS, SoakInstallation, SoakReceiverProcess
from soak.plan import SoakPlan, faults, intervals
from soak.receivers.behaviors import is_reliable
from soak.receivers.event_log import ACTS, ARRIVALS, ISSUES, EventLog, now_ms, read
from soak.receivers.receiver import FORBIDDEN_ADDRESS
from soak.receivers.tracker import is_tracker
from soak.verification.deliveries import FinalExport, Findings, RecordedAttempt, verify
from soak.verification.report import SoakReport, contains, read_logs
from soak.verification.samples import Sampler
from storage.accounts import accounts, tokens
from storage.accounts.projects import add_project, add_scan_run
from storage.db.engine import connection, execute, open_database, rows, transaction
from storage.secrets.vault import Vault
from storage.targets.changes import edit
from storage.targets.targets import set_secret
from tests.support.factories import (
    DEFAULT_SECRET,
    ENCRYPTION_KEY,
    Customer,
    make_customer,
    make_platform_token,
    make_project,
    make_target,
    make_tracker,
)
from tests.support.trackers.servers import REPOSITORY, TOKEN, FakeGitea

_POLL_S: Final = 0.05
#: Longer than a client's time limit for two requests.
_CLIENTS_END_WITHIN_S: Final = 200.0
#: Time limit of a run: this multiple of its planned length plus this many seconds.
_OVERTIME: Final = 1.5
_OVERTIME_S: Final = 120.0
_NAME: Final = re.compile(r"soak-\d+")
#: Above the numbers of all other scan runs.
_FIRST_RUN: Final = 1_000_000_000
#: The retry schedule plus the first attempt.
MAX_ATTEMPTS: Final = len(SETTINGS["RETRY_SCHEDULE"].split(",")) + 1
_FACTS: Final = "facts.json"
_EXPORTS: Final = (
    "SELECT e.id, e.source_id, e.ticket, e.status, e.status_reason, e.target_id, e.body, e.attempts, e.redacted_at, "
    "t.base_url, t.provider_key, e.provider_ticket_id FROM exports e LEFT JOIN targets t ON t.id = e.target_id "
    "WHERE e.account_id = 1"
)
_ATTEMPTS: Final = "SELECT id, outcome, started_at, total_ms FROM attempts"


def soak(plan: SoakPlan, folder: Path) -> SoakReport:
    """Run a soak with its files in `folder` and return the report."""
    with _installation(folder, plan) as installation:
        access, console_token, customer = _create_account(installation)
        projects, targets = _create_scan_projects(installation, customer)
        installation.start(access.project_id)
        events = EventLog(folder / ACTS)
        stop = threading.Event()
        counts: Counter[str] = Counter()
        shared = Shared(plan, access, events, Names(), Pace(plan.rate, stop), counts)
        scan_client = ScanClient(shared, installation.port, projects, targets)
        clients = [scan_client, *_clients(shared, installation, console_token)]
        sampler = Sampler(installation, plan.sample_s, lambda: shared.approved)
        injector = FaultInjector(installation, events)
        began_at = time.monotonic()
        for thread in (sampler, *clients):
            thread.start()
        try:
            _inject_faults(installation, injector, shared)
        finally:
            stop.set()
            injector.resume_all()
        problems = _stop_faults(installation, clients)
        elapsed_s, ended_at = time.monotonic() - began_at, time.monotonic()
        if not installation.wait_until(installation.is_settled, plan.settle_s):
            problems.append(f"Work is still pending {plan.settle_s:g} s after the last kill.")
        settled_s = time.monotonic() - ended_at
        installation.wait_until(installation.is_up)
        scan_client.record_final_state()
        sampler.stop()
        # Requests in progress arrive before their process exits and are verified too.
        installation.stop_product()
        attempts = _count_attempts()
        reliable = [access.targets[number] for number in range(plan.targets) if is_reliable(number)]
        facts = {"plan": plan.record(), "reliable": reliable, "began_at": installation.began_at_ms, "ended_at": now_ms()}
        (folder / _FACTS).write_text(json.dumps(facts))
        findings = _verified(folder)
    if injector.kills < plan.kills or shared.approved < plan.exports:
        problems.append(f"Only {injector.kills} kills and {shared.approved} approvals were reached.")
    if not installation.alerts.connections:
        problems.append("No alert arrived, although targets were disabled.")
    if counts["not acknowledged"]:
        problems.append(f"{counts['not acknowledged']} requests had no response after {RETRY_FOR_S:g} s of repeats.")
    problems += [f"{name} exited with {code}." for name, code in installation.exit_codes.items() if code != 0]
    problems += [
        f"{path.name} contains the token of a tracker." for path in sorted(folder.iterdir()) if contains(path, TOKEN)
    ]
    fenced, complaints = read_logs([child.log for child in installation.children])
    surprises = [
        f"{act['method']} {act['path']} returned {act['status']}: {act['body']}"
        for act in read(folder / ACTS)
        if act["what"] == "surprise"
    ]
    return SoakReport(
        plan=plan,
        findings=findings,
        counts=counts,
        faults=injector.done,
        kills=injector.kills,
        elapsed_s=elapsed_s,
        settled_s=settled_s,
        fenced=fenced,
        complaints=complaints,
        exit_codes=installation.exit_codes,
        surprises=surprises,
        attempts=attempts,
        samples=sampler.samples,
        problems=problems,
    )


def verify_again(folder: Path) -> Findings:
    """Verify the files of a SQLite soak in `folder` again; return the findings."""
    open_database(f"sqlite:///{folder / 'riskrelay.db'}")
    return _verified(folder)


def _verified(folder: Path) -> Findings:
    facts = json.loads((folder / _FACTS).read_text())
    arrivals = [line for path in sorted(folder.glob(ARRIVALS.format("*"))) for line in read(path)]
    tracked = [line for path in sorted(folder.glob(ISSUES.format("*"))) for line in read(path)]
    with connection():
        recorded = {row[0]: RecordedAttempt(row[1], row[2] + row[3]) for row in rows(_ATTEMPTS)}
        reliable = frozenset(facts["reliable"])
        return verify(read(folder / ACTS), arrivals, _rows(), recorded, MAX_ATTEMPTS, reliable, tracked)


@contextmanager
def _installation(folder: Path, plan: SoakPlan) -> Iterator[SoakInstallation]:
    """Yield an installation; afterwards stop it and move its servers' files to `folder`."""
    installation = SoakInstallation(folder, plan)
    try:
        installation.open_database()
        yield installation
    finally:
        installation.stop()
        installation.move_server_files()


def _create_account(installation: SoakInstallation) -> tuple[ClientAccess, str, Customer]:
    """Create an account with its rows; return the clients' access, a console token and its user."""
    plan, shop = installation.plan, "snow.shops.example"
    with connection():
        customer = make_customer()
        shop_project = make_project(customer, shop)
        platform = make_platform_token(customer)
        _, console = tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.CONSOLE,), "console")
        with transaction():
            targets = [_target(installation, customer, number) for number in range(plan.targets)]
            # Due now, so that workers validate them like the targets that clients register.
            execute("UPDATE targets SET created_at = ?, validation_due_at = ?", (now_ms(), now_ms()))
    bearer = {"Authorization": f"Bearer {platform}"}
    access = ClientAccess(customer.bearer, bearer, customer.project_id, shop_project, shop, targets)
    return access, console, customer


def _create_scan_projects(installation: SoakInstallation, customer: Customer) -> tuple[list[ProjectToScan], list[str]]:
    """Create a project for each grouping with its scan runs, and targets that receive events; return both."""
    now = utc_now()
    count = int((installation.plan.duration_s * _OVERTIME + _OVERTIME_S) / EVERY_S)
    with connection(), transaction():
        projects: list[ProjectToScan] = []
        for grouping, tickets in ((TicketGrouping.RULE, len(RULES)), (TicketGrouping.FINDING, len(PAGES) * len(RULES))):
            project_id = add_project(f"Scanned, by {grouping}", customer.account_id, now, ticket_grouping=grouping).id
            accounts.grant_project(customer.email, project_id, now)
            first = _FIRST_RUN + len(projects) * count
            for number in range(first, first + count):
                add_scan_run(project_id, now + timedelta(milliseconds=number - first), number)
            projects.append(ProjectToScan(project_id, range(first, first + count), tickets))
        webhooks = [
            make_target(customer, f"{_origin_of(installation.receivers, number)}/life/{number}").id for number in range(2)
        ]
        tracker = make_tracker(customer, f"{_origin_of(installation.trackers, 0)}/{REPOSITORY}")
        for target_id in (*webhooks, tracker):
            edit(target_id, TargetEdit(events=ALL_EVENTS), DEFAULT_SECRET, now, "operator")
        edit(tracker, TargetEdit(provider_settings={"on_fixed": "close"}), DEFAULT_SECRET, now, "operator")
    return projects, [*webhooks, tracker]


def _target(installation: SoakInstallation, customer: Customer, number: int) -> str:
    """Store target `number`, a repository of a tracker or a webhook; return its id."""
    if is_tracker(number):
        return make_tracker(customer, f"{_origin_of(installation.trackers, number)}/{REPOSITORY}")
    return make_target(customer, f"{_origin_of(installation.receivers, number)}/t/{number}").id


def _create_hostile_account(installation: SoakInstallation) -> tuple[Customer, list[str]]:
    """Create a second account with two targets that never respond, each with its own secret."""
    with connection():
        customer = make_customer()
        targets = [make_target(customer, installation.silent.url(path=f"/{number}")).id for number in range(2)]
        for target_id in targets:
            set_secret(target_id, "a secret of its own", Vault([b64decode(ENCRYPTION_KEY)]), utc_now())
    return customer, targets


def _origin_of(servers: Sequence[SoakReceiverProcess], number: int) -> str:
    """Return the origin of one of the servers."""
    return servers[number % len(servers)].origin


def _clients(shared: Shared, installation: SoakInstallation, console_token: str) -> list[SoakClient]:
    hostile, own_targets = _create_hostile_account(installation)
    origins = [receiver.origin for receiver in installation.receivers]
    forbidden = [origin.replace("127.0.0.1", FORBIDDEN_ADDRESS) for origin in origins]
    operator = OperatorClient(shared, installation.port, origins, forbidden)
    console_client = ConsoleClient(shared, installation.port, console_token)
    return [
        operator,
        console_client,
        TriageClient(shared, installation.port),
        HostileClient(shared, installation.port, hostile.bearer, own_targets),
        *(SoakClient(shared, number, installation.port) for number in range(shared.plan.clients)),
    ]


def _inject_faults(installation: SoakInstallation, injector: FaultInjector, shared: Shared) -> None:
    """Inject faults until the planned kills and approvals are reached."""
    plan, coming, pauses = shared.plan, faults(shared.plan), intervals(shared.plan)
    began_at = time.monotonic()
    deadline = began_at + plan.duration_s * _OVERTIME + _OVERTIME_S
    next_at = began_at + next(pauses)
    while time.monotonic() < deadline:
        now = time.monotonic()
        if injector.kills >= plan.kills and shared.approved >= plan.exports and now - began_at >= plan.duration_s * 0.9:
            return
        if injector.kills < plan.kills and now >= next_at:
            injector.inject(next(coming))
            # Relative to the plan, so that delays of restarts are caught up.
            next_at += next(pauses)
        injector.resume_due()
        installation.restart_exited()
        time.sleep(_POLL_S)


def _stop_faults(installation: SoakInstallation, clients: list[SoakClient]) -> list[str]:
    """Make receivers accept and let clients finish; return problems of clients."""
    for receiver in installation.recipients:
        receiver.accept_all()
    installation.wait_until(lambda: not any(client.is_alive() for client in clients), _CLIENTS_END_WITHIN_S)
    return [f"{client.name} failed: {client.failed!r}" for client in clients if client.failed] + [
        f"{client.name} has not ended." for client in clients if client.is_alive()
    ]


def _count_attempts() -> int:
    with connection():
        return int(rows("SELECT COUNT(*) FROM attempts")[0][0])


def _rows() -> Iterator[FinalExport]:
    """Yield every export from the database."""
    for export_id, source_id, ticket, status, reason, target, body, attempts, redacted_at, url, provider, issue in rows(
        _EXPORTS
    ):
        name = _NAME.search(f"{source_id} {ticket if isinstance(ticket, str) else json.dumps(ticket)}")
        sha256 = None if body is None else hashlib.sha256(body).hexdigest()
        path = url and urlsplit(url).path
        is_ours = provider == FakeGitea.provider_key
        yield FinalExport(
            export_id, name and name[0], status, reason, target, sha256, attempts, redacted_at, path, is_ours, issue
        )
