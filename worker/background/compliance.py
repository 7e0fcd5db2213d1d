"""Processes compliance requests: search and report, or search and erase, in steps that may be interrupted anywhere.

A step is one transaction: it erases, counts what it erased and renews the lease, or does none of the three. Erased records
are not found again, so the next worker starts the search again and finds what is left. A search that erases nothing writes
its report at the end, in one piece. Logs name the request and never the person.
"""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from schemas.base.errors import WrongEncryptionKey
from schemas.compliance.requests import ComplianceResult, Subject, Topic, report_record, without_mentions
from schemas.compliance.subject_matching import Mentions
from storage.compliance import erasure
from storage.compliance import requests as compliance_requests
from storage.compliance.erasure import ERASABLE_TABLES, NAMES, UNASSIGNED, UPLOADS_AND_EMAILS, SubjectMatch
from storage.compliance.requests import ComplianceLease, LeaseLost
from storage.db import write_ahead_log_sql
from storage.db.engine import OUTAGES, connection, transact, transaction
from storage.exports.search import export_words_sql
from storage.secrets.vault import Vault

#: A request is due within a month, so it may wait this long; a wake-up starts it sooner.
POLL_S: Final = 5.0

_log: Final = logging.getLogger(__name__)


class ComplianceTask:
    """Processes waiting requests one after the other; counts those `done` and those `failed`."""

    def __init__(self, vault: Vault, worker: str, now: Callable[[], datetime]) -> None:
        self.done = 0
        self.failed = 0
        self._vault = vault
        self._worker = worker
        self._now = now

    def run_once(self) -> bool:
        """Process the request that has waited longest; return whether there was one."""
        with connection():
            lease = compliance_requests.claim_next(self._now())
            if lease is None:
                return False
            self._process(lease)
        return True

    def _process(self, lease: ComplianceLease) -> None:
        _log.info("compliance request %s claimed", lease.id, extra={"worker": self._worker})
        try:
            if _ComplianceRun(lease, self._vault, self._worker, self._now).run():
                # If others use the log now, the next run of retention empties it.
                write_ahead_log_sql.empty()
            self.done += 1
        except OUTAGES:
            # Nothing can be written now, not even the failure: the lease expires.
            raise
        except LeaseLost:
            _log.warning("compliance request %s was taken over", lease.id, extra={"worker": self._worker})
        except Exception as broken:  # noqa: BLE001 - the request is postponed with the error's name, and others go on
            _log.exception("compliance request %s failed", lease.id, extra={"worker": self._worker})
            self.failed += 1
            compliance_requests.postpone(lease, type(broken).__name__, self._now())


class _ComplianceRun:
    """One request that this worker has leased, and the counts so far."""

    def __init__(self, lease: ComplianceLease, vault: Vault, worker: str, now: Callable[[], datetime]) -> None:
        self._lease = lease
        self._vault = vault
        self._worker = worker
        self._now = now
        # A search counts from 0; an erasure continues the counts of the previous worker.
        self._counts: Counter[str] = Counter() if lease.topic is Topic.DATA_REQUEST else Counter(lease.counts)

    def run(self) -> bool:
        """Process the whole request, and return whether it erased anything.

        Raises LeaseLost, and WrongEncryptionKey if the subject cannot be decrypted.
        """
        if not self._counts and not erasure.is_known(self._lease.shop_domain):
            self._finish(ComplianceResult.UNKNOWN_SHOP)
        elif self._lease.topic is Topic.DATA_REQUEST:
            self._report()
        elif self._lease.topic is Topic.CUSTOMER_REDACT:
            self._redact_customer()
        else:
            self._redact_shop()
        return self._lease.topic is not Topic.DATA_REQUEST and self._counts.total() > 0

    def _report(self) -> None:
        subject = compliance_requests.subject_of(self._lease, self._vault)
        mentions, records = Mentions(subject), list[dict[str, Any]]()
        for table in (*ERASABLE_TABLES, UNASSIGNED, *NAMES):
            for found in erasure.search(table, self._lease.shop_domain, mentions):
                records += [each.record() for each in found]
                self._step(partial(Counter, {table.name: len(found)}))
        result = ComplianceResult.REPORTED if records else ComplianceResult.NOTHING_HELD
        report = report_record(self._lease.id, self._lease.shop_domain, subject, result, records, self._now())
        self._finish(result, compliance_requests.seal_report(self._lease.id, report, self._vault))

    def _redact_customer(self) -> None:
        subject = compliance_requests.subject_of(self._lease, self._vault)
        mentions = Mentions(subject)
        self._step(partial(erasure.wait_for_writers, self._lease.shop_domain))
        self._erase_waiting_reports()
        for table in (*ERASABLE_TABLES, UNASSIGNED, *UPLOADS_AND_EMAILS, *NAMES):
            self._erase_mentioning(table, mentions)
        self._redact_responses(mentions)
        for request_id, pseudonym in compliance_requests.reported(self._lease.shop_domain):
            is_theirs = pseudonym is not None and pseudonym == self._lease.subject_pseudonym
            self._step(partial(self._redact_report, request_id, None if is_theirs else mentions))
        self._overwrite_words()
        self._finish(ComplianceResult.REDACTED)

    def _redact_shop(self) -> None:
        shop, project_ids = self._lease.shop_domain, None
        # Another project may get the shop's domain meanwhile.
        while project_ids is None or not erasure.projects_of(shop) <= project_ids:
            project_ids = erasure.projects_of(shop)
            self._erase_shop(shop)
        self._redact_responses(None)
        for request_id, _ in compliance_requests.reported(shop):
            self._step(partial(self._redact_report, request_id, None))
        self._overwrite_words()
        self._finish(ComplianceResult.REDACTED, before=partial(erasure.anonymize_shop, shop, project_ids))

    def _erase_shop(self, shop: str) -> None:
        # First, because users could submit data after its table was searched, and nothing would find this data later.
        self._step(partial(erasure.revoke_access, shop, self._now(), self._lease.id))
        self._erase_waiting_reports()
        for table in (*ERASABLE_TABLES, UNASSIGNED, *UPLOADS_AND_EMAILS):
            for ids in erasure.ids_of_shop(table, shop):
                self._step(partial(table.erase, ids, self._now(), self._lease.id))
            if table.owner_alone is not None:
                self._erase_mentioning(table, Mentions(Subject(), [shop]))

    def _erase_waiting_reports(self) -> None:
        self._step(partial(erasure.erase_waiting_reports, self._lease.shop_domain, self._now(), self._lease.id))

    def _erase_mentioning(self, table: erasure.ErasableTable, mentions: Mentions) -> None:
        for found in erasure.search(table, self._lease.shop_domain, mentions):
            self._step(partial(self._erase, table, found))

    def _erase(self, table: erasure.ErasableTable, found: list[SubjectMatch]) -> Counter[str]:
        return table.erase([each.id for each in found], self._now(), self._lease.id) if found else Counter()

    def _redact_responses(self, mentions: Mentions | None) -> None:
        for responses in erasure.responses_with_erased_data(self._lease.shop_domain, mentions):
            self._step(partial(erasure.erase_responses, responses, mentions, self._now(), self._lease.id))

    def _redact_report(self, request_id: str, mentions: Mentions | None) -> Counter[str]:
        """Remove mentions of the subject from the report of another request; without `mentions` erase the report."""
        report = None if mentions is None else self._readable_report(request_id)
        rest = None if report is None or mentions is None else without_mentions(report, mentions.in_text)
        if report is not None and rest == report:
            return Counter()
        sealed = None if rest is None else compliance_requests.seal_report(request_id, rest, self._vault)
        compliance_requests.replace_report(request_id, sealed, self._now(), self._lease.id)
        return Counter({"compliance_requests": 1})

    def _readable_report(self, request_id: str) -> dict[str, Any] | None:
        """Return a report; None if it cannot be decrypted: its key may come back, so it must be erased."""
        try:
            return compliance_requests.report_of(request_id, self._vault)
        except WrongEncryptionKey:
            return None

    def _overwrite_words(self) -> None:
        """Remove erased words from SQLite's text index. Call it before `_finish`: after a kill, nothing would repeat it."""
        if self._counts.total():
            export_words_sql.overwrite_removed(partial(self._step, Counter))

    def _step(self, work: Callable[[], Counter[str]]) -> None:
        """Run one step, add its counts and renew the lease, all in one transaction. Raises LeaseLost."""

        def renewed() -> Counter[str]:
            # Before the work, too: this locks the request, so that no worker claims it, however long the work takes.
            compliance_requests.renew(self._lease, self._counts, self._now())
            counts = self._counts + work()
            compliance_requests.renew(self._lease, counts, self._now())
            return counts

        self._counts = transact(renewed)

    def _finish(
        self, result: ComplianceResult, report_sealed: bytes | None = None, before: Callable[[], Counter[str]] = Counter
    ) -> None:
        with transaction():
            counts = self._counts + before()
            compliance_requests.finish(self._lease, result, counts, report_sealed, self._now(), self._worker)
        self._counts = counts
        _log.info("compliance request %s done", self._lease.id, extra={"worker": self._worker})
