"""A storefront's compliance webhooks, and customers whose personal data is stored in every kind of input."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import ComplianceWebhook, Subject, Topic
from schemas.exports.record import Approval
from schemas.exports.state_machine import Transition
from service.app import create_app
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows, transaction, values_list
from storage.db.identifiers import CAPTURE, new_id
from storage.db.models import ALL
from storage.exports import claims_sql, queries
from storage.secrets.vault import Vault
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    capture,
    claim_due,
    cms_diagnostics,
    completed_attempt,
    issue,
    make_platform_token,
    make_settings,
    make_target,
    plain_email,
    postback,
    storefront_diagnostics,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue

SECRET: Final = "storefront-secret-for-tests"
EMAIL_SECRET: Final = "email-secret-for-tests"
SHOP: Final = "snow.shops.example"
WEBHOOKS: Final = "/api/storefront-app/webhooks/compliance"
#: The settings of an installation with these webhooks; the first account that a test creates is the operator's.
CLOUD: Final = {
    "DEPLOYMENT_MODE": "cloud",
    "OPERATOR_ACCOUNT_ID": "1",
    "STOREFRONT_WEBHOOK_SECRET": SECRET,
    "EMAIL_WEBHOOK_SECRET": EMAIL_SECRET,
}

_TABLES: Final = [str(model._meta.table_name) for model in ALL]
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class ShopCustomer:
    """A customer of a shop. No other test data contains these values."""

    id: int
    email: str
    phone: str
    orders: tuple[int, ...]

    @property
    def subject(self) -> Subject:
        """The customer as the subject of a compliance request."""
        return Subject(str(self.id), self.email, self.phone, tuple(map(str, self.orders)))

    @property
    def body(self) -> dict[str, Any]:
        """The member `customer` of a webhook's body."""
        return {"id": self.id, "email": self.email, "phone": self.phone}

    @property
    def traces(self) -> tuple[str, ...]:
        """Texts, in lower case, that no stored text may contain once the customer is erased."""
        name = self.email.partition("@")[0].lower()
        line = self.phone.split()[-2:]
        return (name, str(self.id), " ".join(line), "-".join(line), *map(str, self.orders))


ADA: Final = ShopCustomer(88191167, "Ada.Canary@mail.example", "+1 555 625 1199", (770299938, 770280263))
BOB: Final = ShopCustomer(88191168, "bob.canary@mail.example", "+1 555 625 1200", (770299939, 770280264))


def redact_body(person: ShopCustomer, shop: str = SHOP) -> dict[str, Any]:
    """Return the body of `customers/redact`."""
    return {"shop_id": 954889, "shop_domain": shop, "customer": person.body, "orders_to_redact": list(person.orders)}


def data_request_body(person: ShopCustomer, shop: str = SHOP) -> dict[str, Any]:
    """Return the body of `customers/data_request`."""
    body = {"shop_id": 954889, "shop_domain": shop, "customer": person.body, "orders_requested": list(person.orders)}
    return {**body, "data_request": {"id": 9999}}


def shop_body(shop: str = SHOP) -> dict[str, Any]:
    """Return the body of `shop/redact`."""
    return {"shop_id": 954889, "shop_domain": shop}


def signature(body: bytes, secret: str = SECRET) -> str:
    """Return the signature of a body in the platform's encoding."""
    return base64.b64encode(hmac.digest(secret.encode(), body, hashlib.sha256)).decode()


def send_webhook(client: TestClient, topic: str, body: Any, shop: str = SHOP, query: str = "", **headers: str) -> Result:
    """Post a signed webhook; `headers` replace its own headers, with `_` instead of `-` in their names."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"X-Platform-Hmac-Sha256": signature(raw), "X-Platform-Topic": topic, "X-Platform-Shop-Domain": shop, **_JSON}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return client.simulate_post(WEBHOOKS, body=raw, headers=sent, query_string=query)


def order(topic: Topic, person: ShopCustomer | None = None, shop: str = SHOP) -> tuple[ComplianceWebhook, bytes]:
    """Return a webhook, and the signature of its body."""
    bodies = {Topic.DATA_REQUEST: data_request_body, Topic.CUSTOMER_REDACT: redact_body}
    body = json.dumps(shop_body(shop) if person is None else bodies[topic](person, shop)).encode()
    signed = hmac.digest(SECRET.encode(), body, "sha256")
    return ComplianceWebhook(topic, shop, None if person is None else person.subject), signed


def receive(topic: Topic, vault: Vault, person: ShopCustomer | None = None, shop: str = SHOP) -> str:
    """Store a compliance request as the service does, and return its id."""
    request_id = compliance_requests.receive(*order(topic, person, shop), vault, utc_now(), "storefront")
    assert request_id is not None
    return request_id


def cloud_client(folder: Path, **changes: str) -> TestClient:
    """Return a client of a cloud installation's application on the open database."""
    return TestClient(create_app(make_settings(folder, {**CLOUD, **changes}), FakeWakeUpQueue(), FakeResolver({})))


def give_shop(customer: Customer, shop: str = SHOP) -> Customer:
    """Set the shop domain of a customer's project."""
    assert execute("UPDATE projects SET shop_domain = ? WHERE id = ?", (shop, customer.project_id)) == 1
    return customer


Ids = dict[str, set[str]]


def all_ids() -> Ids:
    """Return the ids of every row of every table."""
    return {name: {str(row[0]) for row in rows(f"SELECT * FROM {name}")} for name in _TABLES}  # noqa: S608 - our own names


def stored(only: Ids | None = None, without: Ids | None = None) -> str:
    """Return every value of every table in lower case. `only` selects rows by id, `without` excludes them."""
    reported = []
    for name in _TABLES:
        found = rows(f"SELECT * FROM {name}")  # noqa: S608 - our own names
        kept = [row for row in found if only is None or str(row[0]) in only[name]]
        reported += [repr(row) for row in kept if without is None or str(row[0]) not in without[name]]
    return "\n".join(sorted(reported)).lower()


def traces_of(person: ShopCustomer, text: str) -> list[str]:
    """Return the texts of `person.traces` that a text contains."""
    return [trace for trace in person.traces if trace in text]


def plant_captures(customer: Customer, person: ShopCustomer, count: int) -> None:
    """Store `count` captures with a person's email address, without exports."""
    now_ms = to_ms(utc_now())
    columns = "id, project_id, page_url, selected_text, created_at"
    for first in range(0, count, 500):
        made = [new_id(CAPTURE, utc_now()) for _ in range(min(500, count - first))]
        values = [(each, customer.project_id, "https://shop.example/", f"For {person.email}.", now_ms) for each in made]
        places = values_list(5, len(values))
        with transaction():
            execute(f"INSERT INTO evidence_captures ({columns}) VALUES {places}", [cell for row in values for cell in row])  # noqa: S608 - our own names


class PersonDataSeeder:
    """Stores personal data for one customer through the routes that accept it. Each request has an idempotency key."""

    def __init__(self, client: TestClient, customer: Customer) -> None:
        self.client = client
        self.customer = customer
        self._platform = {"Authorization": f"Bearer {make_platform_token(customer)}"}
        self._target = make_target(customer)

    def plant(self, person: ShopCustomer, shop: str | None = SHOP) -> dict[str, str]:
        """Store a person's data in every kind of input; return the id of each kind's export."""
        made = {
            "capture": self._capture(person),
            "diagnostics": self._diagnostics(person, shop),
            "cms": self._cms(person),
            "email": self._email(person),
            "finding": self._finding(person),
            "by hand": self._by_hand(person, "by hand", project_id=self.customer.project_id),
            "without a project": self._by_hand(person, "without a project"),
        }
        made |= self._on_their_way(person)
        assert set(made.values()) <= {row[0] for row in rows("SELECT id FROM exports")}
        return made

    def _post(self, path: str, headers: Mapping[str, str], body: Any, key: str) -> Any:
        answer = self.client.simulate_post(path, headers={**headers, **_JSON, "Idempotency-Key": key}, json=body)
        assert answer.status_code in {200, 201, 202}, answer.text
        return answer.json

    def _capture(self, person: ShopCustomer) -> str:
        # The email address is percent-encoded in the URL, and in capitals in the text. The heading has an order number.
        body = capture(
            self.customer.project_id,
            page_url=f"https://shop.example/account?email={person.email.replace('@', '%40')}",
            selected_text=f"Signed in as {person.email.upper()}.",
            heading_outline=[{"level": "h1", "text": f"Order #{person.orders[0]}"}],
        )
        made = self._post("/api/browser-extension/evidence-captures", self._platform, body, f"capture-{person.email}")
        return str(made["handoff"]["ticket_export_id"])

    def _diagnostics(self, person: ShopCustomer, shop: str | None) -> str:
        reported = {"visible_storefront_symptoms": [f"Customer {person.id} cannot pay order {person.orders[1]}."]}
        body = storefront_diagnostics(
            self.customer.project_id, shop_domain=shop or "any.shops.example", diagnostics=reported
        )
        made = self._post("/api/storefront-app/diagnostics", self._platform, body, f"diagnostics-{person.id}")
        return str(made["handoff"]["ticket_export_id"])

    def _cms(self, person: ShopCustomer) -> str:
        reported = {"visible_browser_symptoms": f"They called from {person.phone.lstrip('+').replace(' ', '-')}."}
        body = cms_diagnostics(self.customer.project_id, diagnostics=reported)
        made = self._post("/api/cms-plugins/cms-commerce/diagnostics", self._platform, body, f"cms-{person.id}")
        return str(made["handoff"]["ticket_export_id"])

    def _email(self, person: ShopCustomer) -> str:
        body = plain_email(
            message_id=f"<m-{self.customer.project_id}-{person.orders[0]}@mail.example>",
            from_=f"Somebody <{person.email}>",
            to=f"inbox+p{self.customer.project_id}@service.example",
            attachments=[{"name": f"invoice-{person.orders[0]}.pdf", "content_type": "application/pdf"}],
        )
        headers = {"X-Email-Webhook-Secret": EMAIL_SECRET}
        made = self._post("/api/email/webhook", headers, body, f"{self.customer.project_id}-{person.email}")
        return str(rows("SELECT export_id FROM inbound_emails WHERE id = ?", (made["id"],))[0][0])

    def _finding(self, person: ShopCustomer) -> str:
        run = self.customer.project_id * 1000 + person.id % 10
        execute(
            "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (?, ?, 'running', 1, 1)",
            (run, self.customer.project_id),
        )
        page = {
            "url": f"https://shop.example/{person.id}",
            "responseHeaders": {"X-Customer": person.email, f"X-{person.id}": "1"},
        }
        reported = issue(
            title=f"Name of {person.email} without a label", location=f"#order-{person.orders[0]}", seen=person.id
        )
        body = postback(run, [reported], page=page)
        made = self._post("/api/scanner/results", {"X-Scanner-Secret": SCANNER_SECRET}, body, f"scan-{run}-{person.id}")
        return str(made["ticket_exports"][0])

    def _by_hand(self, person: ShopCustomer, key: str, **members: Any) -> str:
        ticket = {"title": f"Call {person.phone}", "description": f"{person.email} waits for order {person.orders[0]}."}
        body = {"ticket": ticket, "source": {"type": "manual", "id": f"customer-{person.id}"}, **members}
        made = self._post("/api/ticket-exports", self.customer.bearer, body, f"{key}-{person.phone.replace(' ', '-')}")
        return str(made["id"])

    def _on_their_way(self, person: ShopCustomer) -> dict[str, str]:
        """Store exports in every status after an approval, with an attempt where a delivery was tried."""
        made = {name: self._approved(person, name) for name in ("exported", "failed", "retry_scheduled", "delivering")}
        now = utc_now()
        claims = {claim.export_id: claim for claim in claim_due(100, now, 3600, "worker:test")}
        due = completed_attempt(
            claims[made["retry_scheduled"]], Transition.RESCHEDULE, now, next_attempt_at=now.replace(year=2040)
        )
        reported = {
            "provider_ticket_id": f"T-{person.id}",
            "provider_ticket_url": f"https://tracker.example/?for={person.email}",
        }
        delivered = completed_attempt(claims[made["exported"]], Transition.DELIVER, now, **reported)
        failed = completed_attempt(claims[made["failed"]], Transition.FAIL, now, reason="receiver_rejected")
        # A receiver's response can contain personal data.
        failed = failed._replace(outcome=failed.outcome._replace(kept=f"No customer {person.email} here."))
        assert claims_sql.record_attempts([delivered, failed, due], now, "worker:test") == {
            made["exported"],
            made["failed"],
            made["retry_scheduled"],
        }
        made["approved"] = self._approved(person, "approved")
        execute("UPDATE exports SET due_at = ? WHERE id = ?", (to_ms(now.replace(year=2040)), made["approved"]))
        return made

    def _approved(self, person: ShopCustomer, name: str) -> str:
        export_id = self._by_hand(person, name, project_id=self.customer.project_id)
        path = f"/api/ticket-exports/{export_id}/approve"
        self._post(path, self.customer.bearer, {"target_id": self._target.id}, f"approve-{name}-{person.id}")
        assert queries.get(export_id).target_id == Approval(self._target.id, None).target_id
        return export_id
