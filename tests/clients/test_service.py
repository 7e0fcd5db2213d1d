"""The client against a real installation: its requests are accepted, and a lost response causes no duplicates."""

from datetime import UTC, datetime
from typing import Final

import httpx
import pytest

from riskrelay_client import Conflict, Forbidden, NotFound, RiskRelay, ValidationFailed, WaitTimeout
from riskrelay_client.filters import ExportFilter
from riskrelay_client.models import WebhookTargetInput
from storage.db.engine import connection
from tests.support.factories import Customer, make_platform_token
from tests.support.http.scripted_api import Script

#: A target that gets no deliveries.
TARGET: Final[WebhookTargetInput] = {"provider_key": "generic_webhook", "base_url": "http://127.0.0.1:9/", "name": "T"}


class LossyTransport(httpx.HTTPTransport):
    """Loses the responses to the first requests, after the service has processed them. Records the other statuses."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self._losses = losses
        self.statuses: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Forward a request."""
        response = super().handle_request(request)
        if self._losses:
            self._losses -= 1
            response.close()
            raise httpx.ReadError("lost")
        self.statuses.append(response.status_code)
        return response


def test_a_lost_response_causes_no_duplicate(installation: tuple[str, Customer]) -> None:
    url, customer = installation
    with RiskRelay(url, customer.token, transport=LossyTransport(2)) as client:
        prepared = client.exports.prepare({"title": "A marmot in the checkout"})
        assert [each["id"] for each in client.exports.list(q="marmot")] == [prepared["id"]]
        with RiskRelay(url, customer.token, transport=LossyTransport(1)) as lossy:
            target = client.targets.create(TARGET)
            lossy.targets.remove(target["id"])
        with pytest.raises(NotFound):
            client.targets.get(target["id"])


def test_an_unchanged_export_is_polled_with_304s(installation: tuple[str, Customer]) -> None:
    url, customer = installation
    transport, script = LossyTransport(0), Script([])
    with RiskRelay(url, customer.token, transport=transport) as client:
        client._sender._sleep, client._sender._clock = script.pause, lambda: script.now
        prepared = client.exports.prepare({"title": "Nobody approves it"})
        with pytest.raises(WaitTimeout) as raised:
            client.exports.wait(prepared["id"], 4)
    assert (raised.value.last["id"], transport.statuses) == (prepared["id"], [201, 200, 304, 304, 304])


def test_the_service_accepts_the_requests_of_every_method(installation: tuple[str, Customer]) -> None:
    """Calls the methods that the program in test_package.py does not call."""
    url, customer = installation
    with RiskRelay(url, customer.token) as client:
        target_id = client.targets.create(TARGET)["id"]
        first, second, third = (client.exports.prepare({"title": f"Ticket {each}"})["id"] for each in "abc")
        assert client.exports.snooze(first, datetime(2100, 1, 1, tzinfo=UTC))["snoozed_until"] == "2100-01-01T00:00:00.000Z"
        assert client.exports.restore(first)["status"] == "prepared"
        with pytest.raises(Conflict):
            client.exports.split(first)
        with pytest.raises(Conflict):
            client.exports.retry(first, target_id=target_id)
        assert (list(client.exports.attempts(first)), list(client.exports.events(first))) == ([], [])
        assert client.exports.decide({"action": "dismiss", "reason": "test", "ids": [{"id": first}]})["changed"] == 1
        matching: ExportFilter = {"q": "Ticket", "status": ["prepared"], "created_after": datetime(2020, 1, 1, tzinfo=UTC)}
        with pytest.raises(Conflict) as raised:
            client.exports.decide_matching({"action": "dismiss"}, matching, 3)
        assert raised.value.details == {"count": 2}
        job = client.exports.decide_matching({"action": "dismiss"}, matching, 2)
        assert client.bulk_jobs.wait(job["id"], 60)["changed"] == 2
        assert [each["id"] for each in client.bulk_jobs.list()] == [job["id"]]
        assert client.bulk_jobs.cancel(job["id"])["status"] == "done"
        assert {client.exports.get(each)["status"] for each in (second, third)} == {"dismissed"}

        rule = client.approval_rules.create(
            {"name": "Labels", "match": {"severity_at_least": "critical"}, "action": {"type": "label", "labels": ["urgent"]}}
        )
        assert client.approval_rules.edit(rule["id"], enabled=False)["enabled"] is False
        assert client.approval_rules.test(rule["id"])["matched"] == 0
        client.approval_rules.remove(rule["id"])
        assert list(client.approval_rules.list()) == []

        assert client.targets.edit(target_id, name="Renamed", max_per_minute=None)["name"] == "Renamed"
        assert client.targets.validate(target_id)["last_validation"] is not None
        assert [client.targets.pause(target_id)["status"], client.targets.resume(target_id)["status"]] == [
            "paused",
            "active",
        ]
        assert target_id in [each["id"] for each in client.targets.list(status="active")]
        assert "github" in [each["key"] for each in client.targets.providers()]
        recovery = client.recoveries.begin(target_id, datetime(2026, 1, 1, tzinfo=UTC))
        assert client.recoveries.wait(recovery["id"], 60)["status"] == "done"
        assert client.targets.disable(target_id)["status"] == "disabled"

        assert [each["id"] for each in client.projects.list()] == [customer.project_id]
        assert client.projects.get(customer.project_id)["ticket_grouping"] == "finding"
        assert list(client.findings.list(severity=["high", "critical"], state="open")) == []
        with pytest.raises(Forbidden):
            list(client.console_sessions.list())
        with pytest.raises(ValidationFailed) as invalid:
            client.exports.prepare({"title": ""})
        assert [each["path"] for each in invalid.value.fields] == ["/ticket/title"]


def test_platforms_upload_data_and_poll_the_handoffs(installation: tuple[str, Customer]) -> None:
    url, customer = installation
    with connection():
        token = make_platform_token(customer)
    project_id = customer.project_id
    with RiskRelay(url, token) as client:
        uploaded = [
            client.uploads.evidence_capture({"project_id": project_id, "page_url": "https://shop.example/"})["handoff"],
            client.uploads.cms_diagnostics(
                {
                    "project_id": project_id,
                    "platform": "cms_commerce",
                    "site_url": "https://shop.example/",
                    "diagnostics": {},
                }
            )["handoff"],
            client.uploads.storefront_diagnostics(
                {
                    "project_id": project_id,
                    "shop_domain": "shop.example",
                    "granted_scopes": ["read_themes"],
                    "diagnostics": {},
                }
            )["handoff"],
        ]
        assert {client.uploads.handoff(each["id"])["status"] for each in uploaded} == {"prepared"}
        with pytest.raises(Forbidden):
            client.exports.get(uploaded[0]["ticket_export_id"])
