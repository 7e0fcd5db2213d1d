"""The nine endpoints of the specification, with a valid request to each."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import Settings
from schemas.triage.approval_rules import RuleAction, RuleActionType, RuleMatch
from storage.accounts import accounts, projects, tokens
from storage.db import identifiers
from storage.db.engine import rows
from storage.exports import recoveries
from tests.support.factories import (
    NOW,
    SCANNER_SECRET,
    Customer,
    make_bulk_job,
    make_colleague,
    make_customer,
    make_handoff,
    make_rule,
    make_session,
    make_target,
    postback,
)
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, RESULTS, TARGETS, Call, prepared, target_request

EMAIL_SECRET: Final = "email-secret-for-tests"
STOREFRONT_SECRET: Final = "storefront-secret-for-tests"
SHOP: Final = "snowdevil.example.com"

EMAIL: Final = "/api/email/webhook"
HANDOFF: Final = "/api/handoffs/{handoff_id}"
CAPTURES: Final = "/api/browser-extension/evidence-captures"
CMS: Final = "/api/cms-plugins/cms-commerce/diagnostics"
STOREFRONT: Final = "/api/storefront-app/diagnostics"
COMPLIANCE: Final = "/api/storefront-app/webhooks/compliance"

#: A value for `changed` and `send` that removes the member.
ABSENT: Final = object()


@dataclass
class CloudInstallation:
    """An installation in `cloud` mode with a customer, tokens of every kind, a target, and a second customer.

    Rows that most tests do not need are created when a test first reads their id.
    """

    settings: Settings
    client: TestClient
    wake_ups: FakeWakeUpQueue
    customer: Customer
    other: Customer
    platform_token: str
    report_id: int
    other_project_id: int
    other_report_id: int
    export_id: str
    target_id: str

    @cached_property
    def recovery_id(self) -> str:
        """The id of a recovery of another target of the customer."""
        return recoveries.begin(make_target(self.customer).id, NOW, utc_now(), "user:test").id

    @cached_property
    def job_id(self) -> str:
        """A bulk job."""
        return make_bulk_job(self.customer)

    @cached_property
    def rule_id(self) -> str:
        """An approval rule that matches nothing."""
        action = RuleAction(RuleActionType.APPROVE, target_id=self.target_id)
        return make_rule(self.customer, action, RuleMatch(rule="none")).id

    @cached_property
    def session_id(self) -> str:
        """A session of the customer's user at the console."""
        return make_session(self.customer)

    @cached_property
    def handoff_id(self) -> str:
        """The handoff of a capture."""
        return make_handoff(self.customer).id

    @cached_property
    def finding_id(self) -> str:
        """The first finding."""
        return str(rows("SELECT MIN(id) FROM findings")[0][0])

    @property
    def account_id(self) -> str:
        """The account of the second customer."""
        return str(self.other.account_id)

    @cached_property
    def colleague(self) -> Customer:
        """Another user of the customer's account."""
        return make_colleague(self.customer)

    @property
    def user_id(self) -> str:
        """The colleague's id."""
        return str(self.colleague.user_id)

    @cached_property
    def grant_id(self) -> str:
        """The colleague's grant."""
        return str(accounts.grant_project(self.colleague.email, self.other_project_id, NOW).id)

    @cached_property
    def token_id(self) -> str:
        """A token of the colleague's."""
        return str(tokens.create(self.colleague.email, TokenKind.API, utc_now())[0].id)

    @cached_property
    def scan_run_id(self) -> str:
        """A scan run of the customer's second project."""
        return str(projects.add_scan_run(self.other_project_id, NOW).id)

    @cached_property
    def compliance_id(self) -> str:
        """The id of a compliance request that does not exist."""
        return identifiers.new_id(identifiers.COMPLIANCE, NOW)

    def call(self, endpoint: int) -> Call:
        """Return a valid request to one of the nine endpoints."""
        return _CALLS[endpoint](self)

    def send(self, endpoint: int, /, **members: Any) -> Result:
        """Send a valid request with changed members: `page__url=…` changes `page.url`."""
        return self.changed(endpoint, **members).send(self.client)

    def changed(self, endpoint: int, /, **members: Any) -> Call:
        """Return a valid request with changed members. A signed body is signed again."""
        call = self.call(endpoint)
        if not members:
            return call
        body = json.loads(call.body)
        for path, value in members.items():
            _put(body, path.split("__"), value)
        changed = call.with_json(body)
        return signed(changed) if endpoint == 9 else changed

    def status(self, export_id: str | None = None) -> dict[str, Any]:
        """Return the record of an export that the API returns."""
        path = f"{EXPORTS}/{export_id or self.export_id}"
        record: dict[str, Any] = self.client.simulate_get(path, headers=self.customer.bearer).json
        return record


def everything(customer: Customer) -> dict[str, str]:
    """Return the settings with which an installation serves every route, with every secret set."""
    return {
        "DEPLOYMENT_MODE": "cloud",
        "OPERATOR_ACCOUNT_ID": str(customer.account_id),
        "DEFAULT_PROJECT_ID": str(customer.project_id),
        "EMAIL_WEBHOOK_SECRET": EMAIL_SECRET,
        "STOREFRONT_WEBHOOK_SECRET": STOREFRONT_SECRET,
    }


def make_world(settings: Settings, client: TestClient, wake_ups: FakeWakeUpQueue, customer: Customer) -> CloudInstallation:
    """Fill an installation whose default project belongs to the customer."""
    project = projects.add_project("Another", customer.account_id, NOW)
    abilities = (Ability.UPLOAD_EVIDENCE, Ability.UPLOAD_CMS_DIAGNOSTICS, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS)
    return CloudInstallation(
        settings=settings,
        client=client,
        wake_ups=wake_ups,
        customer=customer,
        other=make_customer(),
        platform_token=tokens.create(customer.email, TokenKind.PLATFORM, utc_now(), abilities)[1],
        report_id=projects.add_report("Report", customer.project_id, NOW).id,
        other_project_id=project.id,
        other_report_id=projects.add_report("Elsewhere", project.id, NOW).id,
        export_id=prepared(client, 1),
        target_id=make_target(customer).id,
    )


def signed(call: Call, secret: str = STOREFRONT_SECRET) -> Call:
    """Return a copy of a request with the signature of its body."""
    digest = hmac.new(secret.encode(), call.body, hashlib.sha256).digest()
    return call.without("X-Platform-Hmac-Sha256").plus(("X-Platform-Hmac-Sha256", base64.b64encode(digest).decode()))


def with_header(call: Call, name: str, value: str) -> Call:
    """Return a copy of a request with another value of a header."""
    return call.without(name).plus((name, value))


def _put(body: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, name = path
    for parent in parents:
        body = body[parent]
    if value is ABSENT:
        del body[name]
    else:
        body[name] = value


def _call(path: str, headers: dict[str, str], body: Any) -> Call:
    accepted = {**headers, **JSON, "Accept": "application/json"}
    return Call("POST", path, tuple(accepted.items())).with_json(deepcopy(body))


def _email(_world: CloudInstallation) -> Call:
    body = {
        "message_id": "<1@mail.example>",
        "from": "Jane <jane@mail.example>",
        "to": "inbox@service.example",
        "subject": "The checkout is broken",
        "text": "The button does nothing.",
        "html": "<p>The button does nothing.</p>",
        "received_at": "2026-03-01T12:00:00Z",
    }
    return _call(EMAIL, {"X-Email-Webhook-Secret": EMAIL_SECRET}, body)


def _capture(world: CloudInstallation) -> Call:
    body = {
        "project_id": world.customer.project_id,
        "report_id": world.report_id,
        "page_url": "https://shop.example/cart",
        "page_title": "Your cart",
        "selected_text": "The total is wrong.",
        "meta_description": "A cart.",
        "canonical_url": "https://shop.example/cart",
        "heading_outline": [{"level": "h1", "text": "Cart"}],
        "captured_at": "2026-03-01T12:00:00Z",
        "extension_version": "1.2.3",
    }
    return _call(CAPTURES, _platform(world), body)


def _cms(world: CloudInstallation) -> Call:
    body = {
        "project_id": world.customer.project_id,
        "report_id": world.report_id,
        "platform": "cms_commerce",
        "site_url": "https://shop.example/",
        "plugin_version": "4.5.6",
        "diagnostics": {
            "cms_version": "6.5",
            "commerce_plugin_version": "9.1",
            "active_theme": "Plain",
            "active_plugin_names": ["Forms", "Gallery"],
            "checkout_page_url": "https://shop.example/checkout",
            "commerce_plugin_status": "active",
            "visible_browser_symptoms": ["The button does nothing."],
        },
    }
    return _call(CMS, _platform(world), body)


def _storefront(world: CloudInstallation) -> Call:
    body = {
        "project_id": world.customer.project_id,
        "report_id": world.report_id,
        "shop_domain": SHOP,
        "shop_name": "Snow Devil",
        "granted_scopes": ["read_content", "read_products", "read_themes"],
        "app_version": "7.8.9",
        "diagnostics": {
            "primary_domain": "shop.example",
            "published_theme_name": "Dawn",
            "theme_count": 3,
            "product_count_bucket": "100-999",
            "checkout_profile_status": "published",
            "app_embed_status": "enabled",
            "visible_storefront_symptoms": ["The price is missing."],
        },
    }
    return _call(STOREFRONT, _platform(world), body)


def _compliance(_world: CloudInstallation) -> Call:
    headers = {"X-Platform-Topic": "customers/redact", "X-Platform-Shop-Domain": SHOP}
    body = {
        "shop_id": 954889,
        "shop_domain": SHOP,
        "customer": {"id": 191167, "email": "john@mail.example", "phone": "555-625-1199"},
        "orders_to_redact": [299938, 280263],
    }
    return signed(_call(COMPLIANCE, headers, body))


def _platform(world: CloudInstallation) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.platform_token}"}


def _approve(world: CloudInstallation) -> Call:
    return _call(f"{EXPORTS}/{world.export_id}/approve", world.customer.bearer, {"target_id": world.target_id})


def _read(world: CloudInstallation) -> Call:
    return Call("GET", f"{EXPORTS}/{world.export_id}", (*world.customer.bearer.items(), ("Accept", "application/json")))


_CALLS: Final[dict[int, Callable[[CloudInstallation], Call]]] = {
    1: lambda _world: _call(RESULTS, {"X-Scanner-Secret": SCANNER_SECRET}, postback(42)),
    2: _email,
    3: lambda world: _call(TARGETS, world.customer.bearer, target_request(deployment_mode="webhook-only")),
    4: _approve,
    5: _read,
    6: _capture,
    7: _cms,
    8: _storefront,
    9: _compliance,
}
