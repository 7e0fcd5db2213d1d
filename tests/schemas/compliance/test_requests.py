"""The meaning of the headers and the body together; the route's tests have the table of rejections."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.api.administration import dump_compliance_request
from schemas.base.errors import ValidationFailed
from schemas.compliance.requests import (
    ComplianceForm,
    ComplianceRequest,
    ComplianceResult,
    ComplianceStatus,
    ComplianceWebhook,
    Subject,
    Topic,
    read_headers,
    read_webhook,
    report_record,
    subject_from,
    without_mentions,
)
from schemas.compliance.subject_matching import Mentions
from tests.support.factories import NOW

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "shop_domain": st.just("snow.shops.example") | JSON,
        "customer": st.fixed_dictionaries({}, optional={"id": JSON, "email": JSON, "phone": JSON}) | JSON,
        "orders_requested": JSON,
        "orders_to_redact": st.lists(st.integers() | st.text()) | JSON,
        "data_request": JSON,
    },
)


@given(MEMBERS | JSON, st.sampled_from(Topic))
def test_any_body_is_read_or_rejected(body: Any, topic: Topic) -> None:
    try:
        order = read_webhook(ComplianceWebhook(topic, "snow.shops.example"), ComplianceForm().read(body))
    except ValidationFailed:
        return
    assert order.topic is topic
    assert (order.subject is None) is (topic is Topic.SHOP_REDACT)
    if order.subject is not None:
        assert order.subject != Subject()
        assert subject_from(json.loads(json.dumps(order.subject.record()))) == order.subject


@given(st.none() | st.text(), st.none() | st.text())
def test_any_headers_are_read_or_rejected(topic: str | None, shop: str | None) -> None:
    try:
        read = read_headers(topic, shop)
    except ValidationFailed:
        return
    assert read.topic.value == topic


@pytest.mark.parametrize(
    ("subject", "identity"),
    [
        (Subject("7", "a@b.c", "1", ("2",)), "id:7"),
        (Subject(email="A@B.c", phone="1"), "email:a@b.c"),  # letter case does not matter
        (Subject(phone="+1 (555) 2"), "phone:15552"),  # only its digits count
        (Subject(order_ids=("2",)), None),  # orders do not identify a person
    ],
)
def test_a_person_is_identified_by_id_email_or_phone(subject: Subject, identity: str | None) -> None:
    assert subject.identity == identity


def line(**changes: Any) -> ComplianceRequest:
    problems: dict[str, Any] = {
        "id": "cpl_1",
        "topic": Topic.CUSTOMER_REDACT,
        "shop_domain": "snow.shops.example",
        "subject_pseudonym": "ps:1",
        "status": ComplianceStatus.RECEIVED,
        "result": None,
        "counts": {},
        "attempts": 0,
        "last_error": None,
        "has_report": False,
        "received_at": NOW,
        "due_at": NOW + timedelta(days=30),
        "next_run_at": NOW,
        "finished_at": None,
    }
    return ComplianceRequest(**{**problems, **changes})


def test_a_request_states_its_due_time_and_whether_it_is_late() -> None:
    due = NOW + timedelta(days=30)
    record = dump_compliance_request(line(), due - timedelta(seconds=1))
    assert (record["due_at"], record["overdue"]) == ("2026-03-31T12:00:00.000Z", False)
    assert dump_compliance_request(line(), due)["overdue"] is True
    done = line(status=ComplianceStatus.DONE, result=ComplianceResult.REDACTED, finished_at=NOW, next_run_at=None)
    assert dump_compliance_request(done, due)["overdue"] is False
    assert (record["status"], record["result"], record["subject"]) == ("received", None, "ps:1")


def report(subject: Subject, *texts: str) -> dict[str, Any]:
    records = [{"table": "diagnostics", "id": f"dia_{n}", "texts": {"a": text}} for n, text in enumerate(texts)]
    return report_record("cpl_1", "snow.shops.example", subject, ComplianceResult.REPORTED, records, NOW)


def test_a_person_is_removed_from_a_report() -> None:
    ada, bob = Subject("7001", "ada@x.de"), Subject("7002", "bob@x.de")
    about_bob = report(bob, "bob@x.de", "bob@x.de and ada@x.de")
    rest = without_mentions(about_bob, Mentions(ada).in_text)
    assert rest is not None
    assert [record["id"] for record in rest["records"]] == ["dia_0"]
    assert without_mentions(report(bob, "both: 7001"), Mentions(ada).in_text) is None  # nothing is left
    assert without_mentions(report(Subject(email="ADA@x.de"), "x"), Mentions(ada).in_text) is None  # it is about her
    assert without_mentions(report(bob), Mentions(ada).in_text) == report(bob)  # a report of "nothing stored" remains
