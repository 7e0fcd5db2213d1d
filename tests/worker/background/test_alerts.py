"""Alerts open, recover and reopen; a cause sends one message per hour, across all workers, on every channel."""

import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.alerts.alert import AlertState
from schemas.base.errors import NotFound
from schemas.base.timestamps import to_ms
from schemas.settings.alert_channels import AlertChannel, AlertKind
from schemas.targets.target import Target
from schemas.targets.validations import EXPIRES_SOON
from schemas.triage.approval_rules import RuleAction, RuleActionType
from storage.accounts import audit_chain
from storage.db import disk_space, locks
from storage.db.engine import database, execute, release, rows
from storage.db.locks import Lock
from storage.exports import worker_heartbeats
from storage.reporting import alert_causes, alerts
from storage.reporting.alert_causes import DUE_WITHIN, AlertSources
from tests.support.factories import NOW, Customer, make_approved, make_customer, make_failed, make_rule, make_target
from worker.background.alert_channels import SEND_LEASE_S, ChannelResponse
from worker.background.alerts import AlertTask

#: All kinds except the weekly summary, which has its own tests, and those that depend on this machine.
KINDS: Final = frozenset(AlertKind) - {AlertKind.WEEKLY, AlertKind.DISK, AlertKind.BACKUP, AlertKind.WORKER}
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


@dataclass
class FakeChannels:
    """Records messages, and whether a connection was held while sending; channels in `broken` fail."""

    broken: set[AlertChannel] = field(default_factory=set)
    sent: list[tuple[AlertChannel, dict[str, Any]]] = field(default_factory=list)
    failed: int = 0
    held: list[bool] = field(default_factory=list)

    def send(self, channel: AlertChannel, body: dict[str, Any], now: datetime) -> ChannelResponse:
        self.held.append(not database.is_closed())
        if channel in self.broken:
            self.failed += 1
            return ChannelResponse(is_sent=False, text="HTTP 500")
        self.sent.append((channel, body))
        return ChannelResponse(is_sent=True, text="HTTP 200")

    def titles(self) -> list[str]:
        """Return the headlines sent since the last call."""
        found = [each["headline"] for _channel, body in self.sent for each in body["alerts"]]
        self.sent.clear()
        return found


@dataclass
class Site:
    """An installation whose workers share the channels; tests set `now`."""

    folder: Path
    channels: FakeChannels = field(default_factory=FakeChannels)
    now: datetime = NOW

    def worker(
        self, kinds: Collection[AlertKind] = KINDS, channels: tuple[AlertChannel, ...] = (AlertChannel.SLACK,)
    ) -> AlertTask:
        sources = AlertSources(kinds, self.folder, timedelta(days=7))
        return AlertTask(sources, channels, self.channels.send, "https://relay.example.com/console", lambda: self.now)

    def run(self, worker: AlertTask, after: timedelta = timedelta()) -> list[str]:
        """Let time pass and a worker do everything that is due; return the headlines that were sent."""
        self.now += after
        while worker.run_once():
            pass
        return self.channels.titles()


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    worker_heartbeats.beat("worker:here:1:ab", NOW + timedelta(days=300))
    return Site(tmp_path)


def set_target(target: Target, status: str = "active", reason: str | None = None, connected: str = "connected") -> None:
    sql = "UPDATE targets SET status = ?, status_reason = ?, connected_status = ?, failing_since = ? WHERE id = ?"
    execute(sql, (status, reason, connected, to_ms(NOW - HOUR) if connected == "failing" else None, target.id))


def keep_alive(site: Site) -> None:
    execute("UPDATE workers SET seen_at = ?", (to_ms(site.now),))


def test_without_problems_nothing_is_written_or_sent(site: Site, target: Target) -> None:
    keep_alive(site)
    assert site.run(site.worker()) == []
    assert rows("SELECT 1 FROM alerts") == rows("SELECT 1 FROM alert_messages") == []


def test_a_target_that_fails_is_reported_once_and_again_when_it_recovered(site: Site, target: Target) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    assert site.run(worker) == ["Target fails"]
    assert site.run(worker, 24 * HOUR) == []
    set_target(target)
    assert site.run(worker, HOUR) == ["Over: target fails"]
    [alert] = alerts.list_recovered(10)
    assert (alert.state, alert.count, alert.account_id, alert.last_at) == (
        AlertState.RECOVERED,
        1,
        target.account_id,
        site.now,
    )
    assert site.run(worker, HOUR) == []


def test_a_failing_target_is_reported_with_the_last_error_of_its_scheduled_exports(
    site: Site, target: Target, customer: Customer
) -> None:
    """During an outage, no export has failed for good yet."""
    set_target(target, connected="failing")
    for _ in range(3):
        make_approved(customer, target.id)
    retried = make_approved(customer, target.id)
    later = "UPDATE exports SET status = 'retry_scheduled', last_error_code = 'connect_refused', due_at = ? WHERE id = ?"
    execute(later, (to_ms(NOW + HOUR), retried))
    site.run(site.worker())
    assert rows("SELECT details FROM alerts")[0][0].count('"connect_refused"') == 1


def test_a_warning_of_a_validation_that_passed_is_not_why_a_target_fails(
    site: Site, target: Target, customer: Customer
) -> None:
    set_target(target, connected="failing")
    execute("UPDATE targets SET validation_status = 'passed', validation_reason = ?", (EXPIRES_SOON,))
    make_approved(customer, target.id)
    execute("UPDATE exports SET status = 'retry_scheduled', last_error_code = 'connect_refused', due_at = ?", (to_ms(NOW),))
    site.run(site.worker())
    assert '"connect_refused"' in rows("SELECT details FROM alerts")[0][0]


@pytest.mark.parametrize(
    ("status", "reason", "headline"),
    [("blocked", "private_address", "Target blocked"), ("disabled", "client", "Target disabled")],
)
def test_a_target_that_is_turned_off_is_reported(
    site: Site, target: Target, status: str, reason: str, headline: str
) -> None:
    keep_alive(site)
    set_target(target, status, reason)
    worker = site.worker()
    while worker.run_once():
        pass
    [(_channel, body)] = site.channels.sent
    [alert] = body["alerts"]
    assert (alert["headline"], alert["subject"]) == (headline, "Tracker (tracker.example.com)")
    assert alert["url"] == f"https://relay.example.com/console/targets/{target.id}"
    assert "resume" in alert["what_to_do"].lower()


def test_a_target_that_lost_its_secret_is_reported_while_exports_wait_for_it(
    site: Site, target: Target, customer: Customer
) -> None:
    worker = site.worker()
    set_target(target, "inactive", "no_secret")
    assert site.run(worker) == []
    set_target(target)
    waiting = make_approved(customer, target.id)
    set_target(target, "inactive", "no_secret")
    assert site.run(worker, MINUTE) == ["Target inactive"]
    execute("UPDATE exports SET status = 'exported', due_at = NULL, finished_at = 0 WHERE id = ?", (waiting,))
    assert site.run(worker, HOUR) == ["Over: target inactive"]


def test_a_paused_target_is_reported_once_an_export_has_waited_for_a_day(
    site: Site, target: Target, customer: Customer
) -> None:
    worker = site.worker()
    make_approved(customer, target.id)
    set_target(target, "paused", "restored")
    assert site.run(worker, 23 * HOUR) == []
    assert site.run(worker, HOUR) == ["Target paused"]
    set_target(target)
    assert site.run(worker, HOUR) == ["Over: target paused"]


def test_a_target_that_fails_and_is_then_blocked_is_reported_again_after_an_hour(site: Site, target: Target) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    assert site.run(worker) == ["Target fails"]
    set_target(target, "blocked", "address_private", connected="failing")
    assert site.run(worker, timedelta(minutes=5)) == []
    assert site.run(worker, HOUR) == ["Target blocked"]
    assert site.run(worker, HOUR) == []
    assert rows("SELECT count, state FROM alerts") == [(1, "open")]


def test_a_failure_of_thirty_seconds_causes_no_alert(site: Site, target: Target) -> None:
    keep_alive(site)
    set_target(target, connected="failing")
    execute("UPDATE targets SET failing_since = ?", (to_ms(NOW - timedelta(seconds=30)),))
    assert site.run(site.worker()) == []


def test_a_recurring_cause_is_reported_once_an_hour(site: Site, target: Target) -> None:
    worker = site.worker()
    sent = []
    for minute in range(121):
        set_target(target, connected="failing" if minute % 2 == 0 else "connected")
        sent += [(minute, each) for each in site.run(worker, timedelta(minutes=1))]
    assert [minute for minute, _ in sent] == [0, 60, 120]
    assert [headline for _, headline in sent] == ["Target fails"] * 3
    assert rows("SELECT count FROM alerts") == [(61,)]


def test_two_workers_send_one_message(site: Site, target: Target) -> None:
    first, second = site.worker(), site.worker()
    set_target(target, connected="failing")
    # Both workers compare before one of them sends.
    assert first.run_once()
    assert second.run_once()
    assert site.run(second) + site.run(first) == ["Target fails"]


def test_only_one_worker_at_a_time_compares_alerts(site: Site, target: Target) -> None:
    set_target(target, connected="failing")
    with locks.exclusive(Lock.ALERTS):
        # Another connection, as another process has.
        other = threading.Thread(target=site.worker().run_once)
        other.start()
        other.join()
        assert rows("SELECT 1 FROM alerts") == []
    assert site.run(site.worker()) == ["Target fails"]


def test_no_connection_is_held_during_a_request_to_a_channel(site: Site, target: Target) -> None:
    set_target(target, connected="failing")
    release()
    site.run(site.worker())
    assert site.channels.held == [False]
    assert database.is_closed()


def test_a_failing_channel_does_not_affect_others_and_gets_its_message_later(site: Site, target: Target) -> None:
    both = (AlertChannel.EMAIL, AlertChannel.SLACK)
    worker = site.worker(KINDS, both)
    site.channels.broken = {AlertChannel.EMAIL}
    set_target(target, connected="failing")
    assert site.run(worker) == ["Target fails"]
    assert rows("SELECT channel, attempts, lease FROM alert_messages") == [("email", 1, None)]
    assert site.run(worker, timedelta(seconds=50)) == []
    assert site.channels.failed == 1
    site.run(worker, timedelta(seconds=40))
    assert site.channels.failed == 2
    site.channels.broken = set()
    assert site.run(worker, HOUR) == ["Target fails"]
    assert rows("SELECT 1 FROM alert_messages") == []


def test_a_new_cause_does_not_wait_for_all_messages(site: Site, customer: Customer, target: Target) -> None:
    worker = site.worker(KINDS, (AlertChannel.EMAIL, AlertChannel.SLACK))
    set_target(target, connected="failing")
    # The worker compares, and sends the first of two messages; a message may take a minute.
    assert worker.run_once()
    assert worker.run_once()
    make_failed(customer, target.id, 1)
    assert worker.run_once()
    assert rows("SELECT kind FROM alerts ORDER BY kind") == [("exports",), ("target",)]
    assert rows("SELECT count(*) FROM alert_messages WHERE channel = 'slack'") == [(2,)]


def test_an_undeliverable_message_is_dropped_after_a_day(site: Site, target: Target) -> None:
    worker = site.worker()
    site.channels.broken = {AlertChannel.SLACK}
    set_target(target, connected="failing")
    site.run(worker)
    site.channels.broken = set()
    assert site.run(worker, alerts.DROPPED_AFTER + timedelta(seconds=1)) == []
    assert rows("SELECT 1 FROM alert_messages") == []


def test_a_killed_sender_s_message_is_sent_by_another(site: Site, target: Target) -> None:
    set_target(target, connected="failing")
    assert site.worker().run_once()
    killed = alerts.claim_message(site.now, SEND_LEASE_S)
    assert killed is not None
    other = site.worker()
    assert site.run(other) == []
    assert site.run(other, timedelta(seconds=SEND_LEASE_S)) == ["Target fails"]
    alerts.finish_message(killed, is_sent=False, now=site.now)
    assert rows("SELECT 1 FROM alert_messages") == []


def test_a_channel_that_is_no_longer_configured_gets_nothing(site: Site, target: Target) -> None:
    set_target(target, connected="failing")
    assert site.worker().run_once()
    assert site.run(site.worker(KINDS, (AlertChannel.TEAMS,))) == []
    assert rows("SELECT 1 FROM alert_messages") == []


def test_an_acknowledged_alert_is_not_sent_again_until_it_recurs(site: Site, target: Target) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    site.run(worker)
    [alert] = alerts.list_open()
    alerts.acknowledge(alert.id, None, site.now, "user:test")
    alerts.acknowledge(alert.id, None, site.now, "user:another")
    assert rows("SELECT acknowledged_by FROM alerts") == [("user:test",)]
    assert rows("SELECT actor FROM audit_entries WHERE action = 'acknowledge_alert'") == [("user:test",)]
    set_target(target)
    assert site.run(worker, 2 * HOUR) == []
    set_target(target, connected="failing")
    assert site.run(worker, 2 * HOUR) == ["Target fails"]
    [again] = alerts.list_open()
    assert (again.id, again.count, again.acknowledged_at) == (alert.id, 2, None)


# The target's status and reason before and after the acknowledgement.
WORSE: Final = [("blocked", "address_private"), ("disabled", "failing_for_days")]


@pytest.mark.parametrize(("status", "reason"), WORSE)
def test_an_acknowledged_alert_that_gets_worse_is_sent(site: Site, target: Target, status: str, reason: str) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    site.run(worker)
    [alert] = alerts.list_open()
    alerts.acknowledge(alert.id, None, site.now, "user:test")
    set_target(target, status, reason)
    assert site.run(worker, 2 * HOUR) == [f"Target {status}"]
    [worse] = alerts.list_open()
    assert (worse.id, worse.acknowledged_at, worse.acknowledged_by) == (alert.id, None, None)
    alerts.acknowledge(alert.id, None, site.now, "user:test")
    set_target(target, connected="failing")
    assert site.run(worker, 2 * HOUR) == []


def test_an_acknowledgement_covers_further_failed_exports_for_a_day(site: Site, customer: Customer, target: Target) -> None:
    worker = site.worker({AlertKind.EXPORTS})
    make_failed(customer, target.id, 2)
    site.run(worker)
    [alert] = alerts.list_open()
    alerts.acknowledge(alert.id, None, site.now, "user:test")
    for hours in (6, 12, 18, 24):
        make_failed(customer, target.id, 1, NOW + hours * HOUR)
        assert site.run(worker, 6 * HOUR) == (["6 exports failed in a day"] if hours == 24 else [])
    assert alerts.list_open()[0].acknowledged_by is None


def test_an_account_acknowledges_its_own_alerts_alone(site: Site, target: Target) -> None:
    set_target(target, connected="failing")
    site.run(site.worker())
    [alert] = alerts.list_open(target.account_id)
    stranger = make_customer()
    assert alerts.list_open(stranger.account_id) == []
    with pytest.raises(NotFound):
        alerts.acknowledge(alert.id, stranger.account_id, site.now, "user:stranger")
    assert alerts.list_open()[0].acknowledged_at is None


def test_exports_that_fail_are_counted_and_new_failures_reported_after_an_hour(
    site: Site, customer: Customer, target: Target
) -> None:
    worker = site.worker({AlertKind.EXPORTS})
    make_failed(customer, target.id, 2)
    assert site.run(worker) == ["2 exports failed in a day"]
    make_failed(customer, target.id, 1, NOW + timedelta(minutes=5))
    assert site.run(worker, timedelta(minutes=10)) == []
    assert site.run(worker, HOUR) == ["3 exports failed in a day"]
    assert site.run(worker, HOUR) == []
    assert site.run(worker, timedelta(days=1)) == ["Over: 3 exports failed in a day"]


def test_an_alert_of_exports_stays_open_while_more_fail_than_are_counted(
    site: Site, customer: Customer, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_causes, "MAX_FAILED", 5)
    worker, busy = site.worker({AlertKind.EXPORTS}), make_target(customer)
    make_failed(customer, target.id, 2)
    assert site.run(worker) == ["2 exports failed in a day"]
    make_failed(customer, busy.id, 7, NOW + MINUTE)
    assert site.run(worker, 2 * MINUTE) == ["5+ exports failed in a day"]
    [failed] = make_failed(customer, target.id, 1, NOW + 3 * MINUTE)
    # One export of the first target is among those that are counted.
    assert sorted(site.run(worker, 2 * HOUR)) == ["1+ export failed in a day"]
    execute("UPDATE exports SET status = 'exported' WHERE target_id = ? OR id = ?", (busy.id, failed))
    assert site.run(worker, HOUR) == ["Over: 5+ exports failed in a day"]
    assert {alert.subject_id for alert in alerts.list_open()} == {target.id}


def test_alerts_of_a_kind_that_is_no_longer_configured_are_not_sent(site: Site, customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2)
    set_target(target, connected="failing")
    both = site.worker({AlertKind.EXPORTS, AlertKind.TARGET})
    assert sorted(site.run(both)) == ["2 exports failed in a day", "Target fails"]
    # A change that the quiet hour held back.
    make_failed(customer, target.id, 1, NOW + 5 * MINUTE)
    assert site.run(both, 10 * MINUTE) == []
    assert site.run(site.worker({AlertKind.TARGET}), HOUR) == []
    assert {alert.kind for alert in alerts.list_open()} == {AlertKind.EXPORTS, AlertKind.TARGET}
    assert site.run(both, MINUTE) == ["3 exports failed in a day"]


def test_a_clock_that_was_ahead_suppresses_no_cause(site: Site, target: Target) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    site.now += DAY
    assert site.run(worker) == ["Target fails"]
    site.now -= DAY
    set_target(target, "blocked", "address_private", connected="failing")
    assert site.run(worker, MINUTE) == ["Target blocked"]
    set_target(target)
    assert site.run(worker, MINUTE) == []
    assert site.run(worker, HOUR) == ["Over: target blocked"]


def test_a_clock_of_another_host_that_is_a_little_ahead_repeats_nothing(site: Site, target: Target) -> None:
    worker = site.worker()
    set_target(target, connected="failing")
    assert site.run(worker) == ["Target fails"]
    assert site.run(worker, -timedelta(seconds=50)) == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_clock_that_was_ahead_delays_no_message(site: Site, target: Target, is_killed: bool) -> None:
    """Even if the attempt of the message failed or never finished."""
    worker = site.worker()
    set_target(target, connected="failing")
    assert worker.run_once()
    site.now += DAY / 2
    held = alerts.claim_message(site.now, SEND_LEASE_S)
    assert held is not None
    if not is_killed:
        alerts.finish_message(held, is_sent=False, now=site.now)
    site.now -= DAY / 2
    assert site.run(worker, MINUTE) == ["Target fails"]


def test_no_alert_has_the_text_of_a_ticket(site: Site, customer: Customer, target: Target) -> None:
    [export_id] = make_failed(customer, target.id)
    execute("UPDATE exports SET ticket = ? WHERE id = ?", ('{"title": "a title that is private"}', export_id))
    assert site.worker({AlertKind.EXPORTS}).run_once()
    stored = str(rows("SELECT * FROM alerts") + rows("SELECT * FROM alert_messages"))
    assert target.name in stored
    assert "private" not in stored


def test_a_rule_that_stopped_is_reported(site: Site, customer: Customer) -> None:
    rule_id = make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("team",))).id
    execute("UPDATE approval_rules SET enabled = ?, stopped_reason = 'target_removed' WHERE id = ?", (False, rule_id))
    worker = site.worker({AlertKind.RULE})
    assert site.run(worker) == ["Approval rule stopped"]
    execute("UPDATE approval_rules SET stopped_reason = NULL")
    assert site.run(worker, HOUR) == ["Over: approval rule stopped"]


def test_a_compliance_request_is_reported_a_week_before_its_deadline(
    site: Site, make_request: Callable[[], datetime]
) -> None:
    due_at = make_request()
    worker = site.worker({AlertKind.COMPLIANCE})
    site.now = due_at - DUE_WITHIN - timedelta(minutes=1)
    assert site.run(worker) == []
    [headline] = site.run(worker, timedelta(minutes=2))
    assert headline == f"Compliance request (shop/redact) is due on {due_at.date()}"


@pytest.fixture
def make_request(database: str) -> Callable[[], datetime]:
    def made() -> datetime:
        due_at = NOW + timedelta(days=30)
        execute(
            "INSERT INTO compliance_requests (id, topic, shop_domain, body_sha256, status, counts, attempts, due_at, "
            "next_run_at, created_at) VALUES ('cpl_1', 'shop/redact', 'shop.example', 'ab', 'received', '{}', 0, ?, ?, ?)",
            (to_ms(due_at), to_ms(NOW), to_ms(NOW)),
        )
        return due_at

    return made


def test_a_killed_worker_is_reported_and_a_stopped_one_only_if_exports_wait(
    site: Site, customer: Customer, target: Target
) -> None:
    sweep = site.worker({AlertKind.WORKER})
    keep_alive(site)
    assert site.run(sweep) == []
    assert site.run(sweep, timedelta(minutes=2)) == ["No worker is running"]
    keep_alive(site)
    assert site.run(sweep, HOUR + timedelta(seconds=1)) == []
    keep_alive(site)
    assert site.run(site.worker({AlertKind.WORKER})) == ["Over: no worker is running"]
    worker_heartbeats.remove("worker:here:1:ab")
    assert site.run(sweep, 2 * HOUR) == []


def fill_disk(monkeypatch: pytest.MonkeyPatch, host: str, *, is_low: bool = True) -> None:
    """Pretend from now on to be this host, and that its disk is nearly full or has space."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(disk_space, "LOW_BYTES", 2**63 if is_low else 0)


def beat(site: Site, host: str) -> None:
    worker_heartbeats.beat(f"worker:{host}:1:ab", site.now)
    execute("UPDATE workers SET started_at = ?", (to_ms(NOW - DAY),))


def test_a_full_disk_is_the_alert_of_its_host(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = site.worker({AlertKind.DISK})
    beat(site, "first")
    fill_disk(monkeypatch, "first")
    assert site.run(worker) == ["Disk nearly full"]
    assert rows("SELECT cause FROM alerts") == [("disk:first",)]
    # The worker of this host has stopped; `sweep` still finds the disk full, and later finds space.
    worker_heartbeats.remove("worker:first:1:ab")
    assert site.run(worker, 2 * HOUR) == []
    fill_disk(monkeypatch, "first", is_low=False)
    assert site.run(worker, MINUTE) == ["Over: disk nearly full"]


def test_another_host_closes_the_alert_of_a_disk_only_when_its_own_is_silent_for_an_hour(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, sent = site.worker({AlertKind.DISK}), []
    for _ in range(180):
        beat(site, "first")
        fill_disk(monkeypatch, "first")
        sent += site.run(worker, timedelta(seconds=30))
        fill_disk(monkeypatch, "second", is_low=False)
        sent += site.run(worker, timedelta(seconds=30))
    assert sent == ["Disk nearly full"]
    assert site.run(worker, timedelta(minutes=45)) == []
    assert site.run(worker, timedelta(minutes=15)) == ["Over: disk nearly full"]


def test_hosts_without_a_worker_share_the_alert_of_their_disks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that runs `sweep` has another host name every minute."""
    sweep, sent = site.worker({AlertKind.DISK}), []
    for minute in range(180):
        fill_disk(monkeypatch, f"container-{minute}")
        sent += site.run(sweep, timedelta(seconds=30))
        # A worker on another host.
        beat(site, "first")
        fill_disk(monkeypatch, "first", is_low=False)
        sent += site.run(sweep, timedelta(seconds=30))
    assert sent == ["Disk nearly full"]
    assert rows("SELECT COUNT(*) FROM alerts") == [(1,)]
    assert site.run(sweep, HOUR) == ["Over: disk nearly full"]


def test_an_open_alert_of_a_disk_is_stored_again_every_ten_minutes_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stored = site.worker({AlertKind.DISK}), set()
    fill_disk(monkeypatch, "first")
    for _ in range(60):
        site.run(worker, MINUTE)
        stored |= set(rows("SELECT details FROM alerts"))
    assert len(stored) == 6


def test_an_old_backup_is_reported_until_the_next_backup(site: Site) -> None:
    execute("INSERT INTO installation (id, key_canary, created_at) VALUES (1, ?, ?)", (b"k", to_ms(NOW)))
    worker = site.worker({AlertKind.BACKUP})
    assert site.run(worker, timedelta(days=6)) == []
    assert site.run(worker, timedelta(days=2)) == ["No backup for 7 days"]
    execute("UPDATE installation SET backup_at = ?", (to_ms(site.now),))
    assert site.run(worker, HOUR) == ["Over: no backup for 7 days"]


def test_the_summary_is_sent_once_a_week(site: Site, customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2)
    first, second = site.worker({AlertKind.WEEKLY}), site.worker({AlertKind.WEEKLY})
    # NOW is a Sunday: the first summary comes at once, the next ones on Mondays.
    sent = [(day, each) for day in range(10) for each in site.run(first, DAY if day else timedelta()) + site.run(second)]
    assert sent == [(day, "Weekly summary") for day in (0, 1, 8)]
    assert alerts.list_open() == []


def test_the_summary_has_an_anchor_of_the_audit_log(site: Site, customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2)
    audit_chain.extend_to_end()
    worker = site.worker({AlertKind.WEEKLY})
    while worker.run_once():
        pass
    [(_channel, body)] = site.channels.sent
    head = audit_chain.head()
    assert f"--anchor: {head.position}:{head.hash}" in body["alerts"][0]["what_to_do"]


def test_the_summary_counts_what_failed_in_the_week_and_was_not_retried(
    site: Site, customer: Customer, target: Target
) -> None:
    make_failed(customer, target.id, 2, NOW - 6 * DAY)
    make_failed(customer, target.id, 3, NOW - 8 * DAY)
    [retried] = make_failed(customer, target.id, 1, NOW - DAY)
    begun = "UPDATE exports SET status = 'approved', due_at = 0, finished_at = NULL, status_reason = NULL WHERE id = ?"
    execute(begun, (retried,))
    worker = site.worker({AlertKind.WEEKLY})
    while worker.run_once():
        pass
    [(_channel, body)] = site.channels.sent
    assert "Exports that failed in 7 days and were not retried: 2." in body["alerts"][0]["what_to_do"]
