"""The permissions of every route, tested with every kind of credential of this account and of others.

A route without a row fails here. Permissions are checked before the body is parsed, except for uploads, whose project is in
the body; therefore these rows have valid bodies.
"""

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import ABILITIES, PROJECT_ROLES, ROLE_ABILITIES, Ability, Role, TokenKind
from schemas.compliance.requests import Topic
from schemas.intake.scanner import PostbackForm
from schemas.targets.pings import PingResult
from schemas.targets.validations import Validation
from schemas.triage.approval_rules import RuleAction, RuleActionType
from service.app import App, create_app
from storage.accounts import accounts, grants, projects, tokens, users
from storage.db.engine import execute, rows
from storage.exports import recoveries
from storage.secrets.vault import Vault
from storage.targets import pings, validations
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    SCANNER_SECRET,
    WEBHOOK_SECRET,
    Customer,
    capture,
    cms_diagnostics,
    make_approved,
    make_bulk_job,
    make_colleague,
    make_customer,
    make_exports,
    make_handoff,
    make_rule,
    make_session,
    make_settings,
    make_target,
    plain_email,
    postback,
    record_postback,
    storefront_diagnostics,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    EXPORTS,
    JSON,
    RECOVERIES,
    RESULTS,
    RULES,
    SESSIONS,
    TARGETS,
    Call,
    assert_is_error,
    is_of_the_console,
    response_fingerprint,
    target_request,
)
from tests.support.http.storefront import ADA as SOMEBODY
from tests.support.http.storefront import CLOUD, EMAIL_SECRET, SHOP, WEBHOOKS, receive, redact_body, signature
from tests.support.http.storefront import SECRET as STOREFRONT_SECRET

# Permission checks do not depend on the database; other tests cover the lookup of tokens and owners on both databases.
pytestmark = on_sqlite

SCANNER_HEADER: Final = "X-Scanner-Secret"
EMAIL_HEADER: Final = "X-Email-Webhook-Secret"
STOREFRONT_HEADER: Final = "X-Platform-Hmac-Sha256"
TARGET: Final = f"{TARGETS}/{{target_id}}"
EXPORT: Final = f"{EXPORTS}/{{export_id}}"
BULK_JOBS: Final = "/api/bulk-jobs"
FINDINGS: Final = "/api/findings"
PROJECTS: Final = "/api/projects"
ACCOUNTS: Final = "/api/accounts"
USERS: Final = "/api/users"
GRANTS: Final = "/api/grants"
GRANT: Final = f"{GRANTS}/{{grant_id}}"
TOKENS: Final = "/api/tokens"
SCAN_RUNS: Final = "/api/scan-runs"
HANDOFF: Final = "/api/handoffs/{handoff_id}"
RECOVERY: Final = f"{RECOVERIES}/{{recovery_id}}"
RULE: Final = f"{RULES}/{{rule_id}}"

#: Open to every client.
OPEN: Final = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/{file}"}

LET_THROUGH: Final = "let through"
#: An ID that no row has.
UNKNOWN_ID: Final = "999999999"


@dataclass(frozen=True, slots=True)
class RequiredCredential:
    """The callers that a route accepts: a token with one ability, any API token, or a sender with a shared secret."""

    ability: Ability | None = None
    #: Whether the account must be allowed generic_webhook targets.
    requires_webhooks: bool = False
    header: str = ""

    @property
    def kind(self) -> TokenKind:
        """The kind of token that can have this ability."""
        if self.ability is None:
            return TokenKind.API
        [kind] = (kind for kind, abilities in ABILITIES.items() if self.ability in abilities)
        return kind


@dataclass(frozen=True, slots=True)
class PermissionScene:
    """The application, an account with a target and an export, and three other users."""

    app: App
    customer: Customer
    colleague: Customer
    poor: Customer
    other: Customer
    ids: Mapping[str, str]


Body = Callable[[PermissionScene], Any]


@dataclass(frozen=True, slots=True)
class RoutePermission:
    """One method of one route."""

    method: str
    path: str
    credential: RequiredCredential
    body: Body = lambda _: {}

    def call(self, scene: PermissionScene, offer: "Offer") -> Call:
        """Return the request of a caller who sends these headers."""
        call = Call(self.method, self.path.format(**self._ids(scene)))
        if self.method in {"POST", "PATCH"}:
            # Without a signature, these two headers have no effect, and no other route reads them.
            webhook = {"X-Platform-Topic": "customers/redact", "X-Platform-Shop-Domain": SHOP}
            call = call.plus(*JSON.items(), *webhook.items()).with_json(self.body(scene))
        return call.plus(*offer(call.body))

    def _ids(self, scene: PermissionScene) -> Mapping[str, str]:
        """Return the IDs of the scene; a deletion gets another record's ID, so that the first one remains."""
        if (self.method, self.path) == ("DELETE", GRANT) and scene.ids["grant_id"] != UNKNOWN_ID:
            return {**scene.ids, "grant_id": make_grant(scene.customer, scene.ids["user_id"])}
        if (self.method, self.path) != ("DELETE", RULE) or not rule_ids(scene.ids["rule_id"]):
            return scene.ids
        spare = [each for each in rule_ids() if each != scene.ids["rule_id"]]
        return {**scene.ids, "rule_id": spare[0] if spare else make_rule(scene.customer, LABELLING).id}


def make_grant(customer: Customer, user_id: str) -> str:
    """Create a grant for a user of the customer's account if there is none; return its ID."""
    user = accounts.get_user(int(user_id))
    if not grants.list_all(user.email):
        accounts.grant_project(user.email, customer.project_id, utc_now())
    return str(grants.list_all(user.email)[0].id)


def rule_ids(like: str = "%") -> list[str]:
    return [row[0] for row in rows("SELECT id FROM approval_rules WHERE id LIKE ?", (like,))]


MANAGE = RequiredCredential(Ability.MANAGE_TARGETS)
MANAGE_WEBHOOKS = RequiredCredential(Ability.MANAGE_TARGETS, requires_webhooks=True)
PREPARE = RequiredCredential(Ability.PREPARE_EXPORTS)
CONSOLE = RequiredCredential(Ability.CONSOLE)
APPROVE = RequiredCredential(Ability.APPROVE_EXPORTS)
APPROVE_WEBHOOKS = RequiredCredential(Ability.APPROVE_EXPORTS, requires_webhooks=True)
READ = RequiredCredential(Ability.READ_EXPORTS)
READ_FINDINGS = RequiredCredential(Ability.READ_FINDINGS)
MANAGE_RULES = RequiredCredential(Ability.MANAGE_RULES)
#: The ability `admin` includes this one.
MANAGE_ACCOUNT = RequiredCredential(Ability.MANAGE_ACCOUNT)
ADMIN = RequiredCredential(Ability.ADMIN)
#: Requires no further ability.
LABELLING: Final = RuleAction(RuleActionType.LABEL, labels=("later",))
ANY_API_TOKEN = RequiredCredential()

ROWS: Final = [
    RoutePermission("POST", RESULTS, RequiredCredential(header=SCANNER_HEADER), lambda _: postback()),
    RoutePermission("POST", "/api/email/webhook", RequiredCredential(header=EMAIL_HEADER), lambda _: plain_email()),
    RoutePermission("GET", TARGETS, MANAGE),
    RoutePermission("HEAD", TARGETS, MANAGE),
    RoutePermission("POST", TARGETS, MANAGE_WEBHOOKS, lambda _: target_request()),
    RoutePermission("GET", TARGET, MANAGE),
    RoutePermission("HEAD", TARGET, MANAGE),
    RoutePermission("PATCH", TARGET, MANAGE_WEBHOOKS, lambda _: {"name": "Other"}),
    RoutePermission("DELETE", TARGET, MANAGE),
    RoutePermission("POST", f"{TARGET}/validate", MANAGE_WEBHOOKS),
    RoutePermission("POST", f"{TARGET}/ping", MANAGE_WEBHOOKS),
    RoutePermission("POST", f"{TARGET}/resume", MANAGE_WEBHOOKS),
    # An account without the right to webhook targets may still turn off existing ones.
    RoutePermission("POST", f"{TARGET}/pause", MANAGE),
    RoutePermission("POST", f"{TARGET}/disable", MANAGE),
    RoutePermission("GET", "/api/providers", MANAGE),
    RoutePermission("HEAD", "/api/providers", MANAGE),
    RoutePermission("GET", EXPORTS, READ),
    RoutePermission("HEAD", EXPORTS, READ),
    RoutePermission(
        "POST", EXPORTS, PREPARE, lambda _: {"ticket": {"title": "By hand"}, "source": {"type": "manual", "id": "1"}}
    ),
    RoutePermission("GET", EXPORT, READ),
    RoutePermission("HEAD", EXPORT, READ),
    RoutePermission("GET", f"{EXPORT}/attempts", READ),
    RoutePermission("HEAD", f"{EXPORT}/attempts", READ),
    RoutePermission("GET", f"{EXPORT}/events", READ),
    RoutePermission("HEAD", f"{EXPORT}/events", READ),
    RoutePermission("GET", f"{EXPORT}/receipt", READ),
    RoutePermission("HEAD", f"{EXPORT}/receipt", READ),
    RoutePermission("POST", f"{EXPORT}/approve", APPROVE, lambda scene: {"target_id": scene.ids["target_id"]}),
    RoutePermission("POST", f"{EXPORT}/retry", APPROVE),
    RoutePermission("POST", f"{EXPORT}/dismiss", APPROVE),
    RoutePermission(
        "POST", f"{EXPORTS}/bulk", APPROVE, lambda scene: {"action": "dismiss", "ids": [{"id": scene.ids["export_id"]}]}
    ),
    RoutePermission("POST", f"{EXPORT}/restore", APPROVE),
    RoutePermission("POST", f"{EXPORT}/snooze", APPROVE),
    # A caller with the ability gets 409, because this export has no group.
    RoutePermission("POST", f"{EXPORT}/split", APPROVE),
    RoutePermission("PATCH", EXPORT, APPROVE, lambda _: {"title": "Edited"}),
    RoutePermission("GET", BULK_JOBS, READ),
    RoutePermission("HEAD", BULK_JOBS, READ),
    RoutePermission("GET", f"{BULK_JOBS}/{{job_id}}", READ),
    RoutePermission("HEAD", f"{BULK_JOBS}/{{job_id}}", READ),
    RoutePermission("POST", f"{BULK_JOBS}/{{job_id}}/cancel", APPROVE),
    RoutePermission("GET", PROJECTS, ANY_API_TOKEN),
    RoutePermission("HEAD", PROJECTS, ANY_API_TOKEN),
    RoutePermission("GET", f"{PROJECTS}/{{project_id}}", ANY_API_TOKEN),
    RoutePermission("HEAD", f"{PROJECTS}/{{project_id}}", ANY_API_TOKEN),
    RoutePermission("PATCH", f"{PROJECTS}/{{project_id}}", MANAGE_ACCOUNT, lambda _: {"ticket_grouping": "finding"}),
    RoutePermission("POST", PROJECTS, MANAGE_ACCOUNT, lambda _: {"name": "Shop"}),
    RoutePermission("GET", "/api/account", MANAGE_ACCOUNT),
    RoutePermission("HEAD", "/api/account", MANAGE_ACCOUNT),
    RoutePermission("PATCH", "/api/account", MANAGE_ACCOUNT, lambda _: {"name": "Other"}),
    RoutePermission("GET", ACCOUNTS, ADMIN),
    RoutePermission("HEAD", ACCOUNTS, ADMIN),
    RoutePermission("POST", ACCOUNTS, ADMIN, lambda _: {"name": "Client"}),
    RoutePermission("GET", f"{ACCOUNTS}/{{account_id}}", ADMIN),
    RoutePermission("HEAD", f"{ACCOUNTS}/{{account_id}}", ADMIN),
    RoutePermission("PATCH", f"{ACCOUNTS}/{{account_id}}", ADMIN, lambda _: {"name": "Other"}),
    RoutePermission("GET", USERS, MANAGE_ACCOUNT),
    RoutePermission("HEAD", USERS, MANAGE_ACCOUNT),
    RoutePermission("POST", USERS, MANAGE_ACCOUNT, lambda _: {"email": "ada@shop.example"}),
    RoutePermission("GET", f"{USERS}/{{user_id}}", MANAGE_ACCOUNT),
    RoutePermission("HEAD", f"{USERS}/{{user_id}}", MANAGE_ACCOUNT),
    RoutePermission("PATCH", f"{USERS}/{{user_id}}", MANAGE_ACCOUNT, lambda _: {"role": "triager"}),
    RoutePermission("DELETE", f"{USERS}/{{user_id}}", MANAGE_ACCOUNT),
    RoutePermission("GET", GRANTS, MANAGE_ACCOUNT),
    RoutePermission("HEAD", GRANTS, MANAGE_ACCOUNT),
    RoutePermission(
        "POST",
        GRANTS,
        MANAGE_ACCOUNT,
        lambda scene: {"user_id": int(scene.ids["user_id"]), "project_id": scene.customer.project_id},
    ),
    RoutePermission("GET", GRANT, MANAGE_ACCOUNT),
    RoutePermission("HEAD", GRANT, MANAGE_ACCOUNT),
    RoutePermission("DELETE", GRANT, MANAGE_ACCOUNT),
    RoutePermission("GET", TOKENS, MANAGE_ACCOUNT),
    RoutePermission("HEAD", TOKENS, MANAGE_ACCOUNT),
    RoutePermission("POST", TOKENS, MANAGE_ACCOUNT, lambda _: {"kind": "platform"}),
    RoutePermission("GET", f"{TOKENS}/{{token_id}}", MANAGE_ACCOUNT),
    RoutePermission("HEAD", f"{TOKENS}/{{token_id}}", MANAGE_ACCOUNT),
    RoutePermission("DELETE", f"{TOKENS}/{{token_id}}", MANAGE_ACCOUNT),
    RoutePermission("GET", SCAN_RUNS, MANAGE_ACCOUNT),
    RoutePermission("HEAD", SCAN_RUNS, MANAGE_ACCOUNT),
    RoutePermission("POST", SCAN_RUNS, MANAGE_ACCOUNT, lambda scene: {"project_id": scene.customer.project_id}),
    RoutePermission("GET", "/api/audit", MANAGE_ACCOUNT),
    RoutePermission("HEAD", "/api/audit", MANAGE_ACCOUNT),
    RoutePermission("GET", "/api/compliance-requests", ADMIN),
    RoutePermission("HEAD", "/api/compliance-requests", ADMIN),
    RoutePermission("GET", "/api/compliance-requests/{compliance_id}", ADMIN),
    RoutePermission("HEAD", "/api/compliance-requests/{compliance_id}", ADMIN),
    RoutePermission("GET", f"{SCAN_RUNS}/{{scan_run_id}}", MANAGE_ACCOUNT),
    RoutePermission("HEAD", f"{SCAN_RUNS}/{{scan_run_id}}", MANAGE_ACCOUNT),
    RoutePermission("GET", FINDINGS, READ_FINDINGS),
    RoutePermission("HEAD", FINDINGS, READ_FINDINGS),
    RoutePermission("GET", f"{FINDINGS}/{{finding_id}}", READ_FINDINGS),
    RoutePermission("HEAD", f"{FINDINGS}/{{finding_id}}", READ_FINDINGS),
    RoutePermission("GET", RECOVERIES, APPROVE),
    RoutePermission("HEAD", RECOVERIES, APPROVE),
    RoutePermission(
        "POST", RECOVERIES, APPROVE_WEBHOOKS, lambda scene: {"target_id": scene.ids["target_id"], "since": "1h"}
    ),
    RoutePermission("GET", RECOVERY, APPROVE),
    RoutePermission("HEAD", RECOVERY, APPROVE),
    RoutePermission("POST", f"{RECOVERY}/cancel", APPROVE_WEBHOOKS),
    RoutePermission("GET", RULES, MANAGE_RULES),
    RoutePermission("HEAD", RULES, MANAGE_RULES),
    RoutePermission(
        "POST", RULES, MANAGE_RULES, lambda _: {"name": "A rule", "match": {"rule": "*"}, "action": LABELLING.record()}
    ),
    RoutePermission("GET", RULE, MANAGE_RULES),
    RoutePermission("HEAD", RULE, MANAGE_RULES),
    RoutePermission("PATCH", RULE, MANAGE_RULES, lambda _: {"name": "Another name"}),
    RoutePermission("DELETE", RULE, MANAGE_RULES),
    RoutePermission("POST", f"{RULE}/test", MANAGE_RULES),
    RoutePermission("GET", SESSIONS, CONSOLE),
    RoutePermission("HEAD", SESSIONS, CONSOLE),
    RoutePermission("POST", f"{SESSIONS}/{{session_id}}/revoke", CONSOLE),
    RoutePermission(
        "POST",
        "/api/browser-extension/evidence-captures",
        RequiredCredential(Ability.UPLOAD_EVIDENCE),
        lambda scene: capture(scene.customer.project_id),
    ),
    RoutePermission(
        "POST",
        "/api/cms-plugins/cms-commerce/diagnostics",
        RequiredCredential(Ability.UPLOAD_CMS_DIAGNOSTICS),
        lambda scene: cms_diagnostics(scene.customer.project_id),
    ),
    RoutePermission(
        "POST",
        "/api/storefront-app/diagnostics",
        RequiredCredential(Ability.UPLOAD_STOREFRONT_DIAGNOSTICS),
        lambda scene: storefront_diagnostics(scene.customer.project_id),
    ),
    # The handoff is of a capture; each kind needs the ability of its upload.
    RoutePermission("GET", HANDOFF, RequiredCredential(Ability.UPLOAD_EVIDENCE)),
    RoutePermission("HEAD", HANDOFF, RequiredCredential(Ability.UPLOAD_EVIDENCE)),
    RoutePermission("POST", WEBHOOKS, RequiredCredential(header=STOREFRONT_HEADER), lambda _: redact_body(SOMEBODY)),
]

#: Open to roles in single projects, which see only the records of these projects; all other routes need a role in the
#: account.
IN_PROJECTS: Final = {
    EXPORTS,
    EXPORT,
    f"{EXPORTS}/bulk",
    *(f"{EXPORT}/{part}" for part in ("attempts", "events", "receipt")),
    *(f"{EXPORT}/{decision}" for decision in ("approve", "retry", "dismiss", "restore", "snooze", "split")),
    FINDINGS,
    f"{FINDINGS}/{{finding_id}}",
    PROJECTS,
    f"{PROJECTS}/{{project_id}}",
    SESSIONS,
    f"{SESSIONS}/{{session_id}}/revoke",
}
#: Abilities that no role in a project includes.
OF_ACCOUNTS: Final = {Ability.PREPARE_EXPORTS, Ability.MANAGE_ACCOUNT}

#: Returns the headers that authenticate a request with the given body.
Offer = Callable[[bytes], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with a credential, and the permissions that it gives."""

    name: str
    offer: Offer
    #: Set for a valid token.
    kind: TokenKind | None = None
    abilities: frozenset[Ability] = frozenset()
    of: Customer | None = None
    #: The one header for which this caller has the right secret or signature.
    header: str = ""


def expected(row: RoutePermission, caller: Caller, scene: PermissionScene) -> int | str:
    """Return the expected status: 401 for an unknown caller, 403 without permission, 404 for the IDs of other accounts."""
    credential = row.credential
    if credential.header:
        return LET_THROUGH if caller.header == credential.header else 401
    if caller.kind is None or caller.of is None:
        return 401
    if caller.kind is not credential.kind or credential.ability not in {
        None,
        *_effective_abilities(caller, credential, scene),
    }:
        return 403
    if credential.requires_webhooks and caller.of is scene.poor:
        return 403
    if credential.kind is TokenKind.PLATFORM:
        # The project was granted to one user; for others, it does not differ from one that does not exist.
        other_user = 404 if "{" in row.path else 403
        return LET_THROUGH if caller.of is scene.customer else other_user
    is_own = caller.of.account_id == scene.customer.account_id
    return LET_THROUGH if is_own or "{" not in row.path else 404


def _effective_abilities(caller: Caller, credential: RequiredCredential, scene: PermissionScene) -> frozenset[Ability]:
    """Return the effective abilities: `admin` counts only for the operator's account, where it includes MANAGE_ACCOUNT."""
    if caller.of is None or caller.of.account_id != scene.customer.account_id:
        return caller.abilities - {Ability.ADMIN}
    counts = credential is MANAGE_ACCOUNT and Ability.ADMIN in caller.abilities
    return caller.abilities | ({Ability.MANAGE_ACCOUNT} if counts else frozenset())


def fixed(*headers: tuple[str, str]) -> Offer:
    return lambda _body: list(headers)


def bearer(token: str) -> Offer:
    return fixed(("Authorization", f"Bearer {token}"))


def with_token(name: str, of: Customer, kind: TokenKind, abilities: frozenset[Ability]) -> Caller:
    text = tokens.create(of.email, kind, utc_now(), sorted(abilities))[1]
    return Caller(name, bearer(text), kind, abilities, of)


def known_callers(scene: PermissionScene) -> Iterator[Caller]:
    """Yield callers with a valid token: one ability each, all but one, or all; of this account and of others."""
    for kind, abilities in ABILITIES.items():
        everything = frozenset(abilities)
        for ability in abilities:
            yield with_token(f"{kind} token: {ability}", scene.customer, kind, frozenset({ability}))
            yield with_token(f"{kind} token: all but {ability}", scene.customer, kind, everything - {ability})
        yield with_token(f"{kind} token", scene.customer, kind, everything)
        yield with_token(f"a colleague's {kind} token", scene.colleague, kind, everything)
        yield with_token(f"{kind} token of another account", scene.other, kind, everything)
        yield with_token(f"{kind} token of an account without webhooks", scene.poor, kind, everything)
        yield _with_foreign_abilities(scene.customer, kind)
        yield from _with_other_headers(scene.customer, kind, everything)


def _with_other_headers(of: Customer, kind: TokenKind, abilities: frozenset[Ability]) -> Iterator[Caller]:
    """Yield callers with an unusual spelling of the scheme, or with other credentials too: each header counts by itself."""
    text = tokens.create(of.email, kind, utc_now(), sorted(abilities))[1]
    for scheme in ("bearer", "BEARER", "Bearer "):
        yield Caller(f"{kind} token with {scheme}", fixed(("Authorization", f"{scheme} {text}")), kind, abilities, of)
    right = ("Authorization", f"Bearer {text}")
    wrong = [(header, "wrong") for header in (SCANNER_HEADER, EMAIL_HEADER, STOREFRONT_HEADER)]
    yield Caller(f"{kind} token beside wrong secrets", fixed(right, *wrong), kind, abilities, of)
    scanner = (SCANNER_HEADER, SCANNER_SECRET)
    yield Caller(f"{kind} token beside the scanner's", fixed(right, scanner), kind, abilities, of, SCANNER_HEADER)
    yield Caller(
        f"the scanner's beside a wrong {kind} token", fixed(("Authorization", "Bearer x"), scanner), header=SCANNER_HEADER
    )


def _with_foreign_abilities(of: Customer, kind: TokenKind) -> Caller:
    """Return a caller whose token row has every ability, which no command stores: only the abilities of its kind count."""
    made, text = tokens.create(of.email, kind, utc_now())
    assert execute("UPDATE tokens SET abilities = ? WHERE id = ?", (json.dumps(list(Ability)), made.id)) == 1
    return Caller(f"{kind} token with every ability", bearer(text), kind, frozenset(Ability), of)


def holders_of_secrets() -> Iterator[Caller]:
    """Yield the senders with the right secret in the right header, or a valid signature."""
    yield Caller("scanner", fixed((SCANNER_HEADER, SCANNER_SECRET)), header=SCANNER_HEADER)
    yield Caller("email provider", fixed((EMAIL_HEADER, EMAIL_SECRET)), header=EMAIL_HEADER)
    yield Caller("storefront", lambda body: [(STOREFRONT_HEADER, signature(body))], header=STOREFRONT_HEADER)


def unknown_callers(scene: PermissionScene) -> Iterator[Caller]:
    """Yield callers that no route accepts: missing, malformed, expired, revoked or misplaced credentials."""
    token = scene.customer.token
    yield Caller("nobody", fixed())
    yield Caller("a made-up token", bearer("rrt_" + "0" * 33))
    yield Caller("an empty token", bearer(""))
    yield Caller("a token of another scheme", fixed(("Authorization", f"Basic {token}")))
    yield Caller("a token sent twice", fixed(("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")))
    for kind in TokenKind:
        for name, text in _tokens_that_were(scene.customer, kind).items():
            yield Caller(f"{kind} token that {name}", bearer(text))
    for header in (SCANNER_HEADER, EMAIL_HEADER, STOREFRONT_HEADER):
        yield Caller(f"a token as {header}", fixed((header, token)))
        yield Caller(f"an empty {header}", fixed((header, "")))
    yield from _misspelled(token)
    yield from _secrets_in_wrong_places()


def _misspelled(token: str) -> Iterator[Caller]:
    """Yield callers who send a valid token in a wrong form or in the wrong place."""
    written = {
        "a scheme alone": "Bearer",
        "a scheme and a space": "Bearer ",
        "a scheme and two spaces": "Bearer  ",
        "a token without a scheme": token,
        "a token behind a tab": f"Bearer\t{token}",
        "a token with a colon": f"Bearer: {token}",
        "a token in quotes": f'Bearer "{token}"',
        "two tokens with a comma": f"Bearer {token},{token}",
        "two tokens with a space": f"Bearer {token} {token}",
        "two schemes": f"Bearer Bearer {token}",
        "a parameter": f"Bearer token={token}",
        "basic with the token as its user": f"Basic {base64.b64encode(f'{token}:'.encode()).decode()}",
        "a token cut off": f"Bearer {token[:-1]}",
        "a token and a letter": f"Bearer {token}a",
        "a token in capitals": f"Bearer {token.upper()}",
        "another prefix": f"Bearer RRT_{token[4:]}",
        "a token with a letter beyond ASCII": f"Bearer {token[:-1]}\xe9",
        "letters beyond ASCII": "Bearer \xff\xfe\xe9",
        "ten kilobytes": f"Bearer {token}{'0' * 10_000}",
        "the digest of a token": f"Bearer {hashlib.sha256(token.encode()).hexdigest()}",
    }
    for name, text in written.items():
        yield Caller(name, fixed(("Authorization", text)))
    for header in ("Cookie", "Proxy-Authorization", "X-Authorization", "X-Api-Key", "X-Original-Authorization"):
        yield Caller(f"a token in {header}", fixed((header, f"Bearer {token}")))


def _tokens_that_were(customer: Customer, kind: TokenKind) -> dict[str, str]:
    now = utc_now()
    every = ABILITIES[kind]
    expired = tokens.create(customer.email, kind, now - timedelta(days=2), every, expires=timedelta(days=1))
    just_now = tokens.create(customer.email, kind, now - timedelta(days=1), every, expires=timedelta(days=1))
    revoked = tokens.create(customer.email, kind, now, every)
    tokens.revoke(revoked[0].id, now)
    deleted = tokens.create(customer.email, kind, now, every)
    assert execute("DELETE FROM tokens WHERE id = ?", (deleted[0].id,)) == 1
    return {
        "has expired": expired[1],
        "has just expired": just_now[1],
        "was revoked": revoked[1],
        "is not there any more": deleted[1],
    }


def _secrets_in_wrong_places() -> Iterator[Caller]:
    homes = {
        "the scanner's secret": (SCANNER_SECRET, SCANNER_HEADER),
        "the email provider's secret": (EMAIL_SECRET, EMAIL_HEADER),
        "the storefront's secret": (STOREFRONT_SECRET, ""),
        "the receivers' secret": (WEBHOOK_SECRET, ""),
    }
    for name, (secret, home) in homes.items():
        yield Caller(f"{name} as a token", bearer(secret))
        for spelling, text in (("in capitals", secret.upper()), ("cut off", secret[:-1]), ("twice", f"{secret},{secret}")):
            yield Caller(f"{name} {spelling}", fixed((home or STOREFRONT_HEADER, text)))
        for header in sorted({SCANNER_HEADER, EMAIL_HEADER, STOREFRONT_HEADER} - {home}):
            yield Caller(f"{name} as {header}", fixed((header, secret)))
        if secret is not STOREFRONT_SECRET:
            yield Caller(f"a signature with {name}", _signed(STOREFRONT_HEADER, secret))
    for header in (SCANNER_HEADER, EMAIL_HEADER):
        yield Caller(f"the storefront's signature as {header}", _signed(header, STOREFRONT_SECRET))
    other = signature(b"{}")
    yield Caller("a right signature twice", _respelled(lambda tag: f"{tag},{tag}"))
    yield Caller("a right signature cut off", _respelled(lambda tag: tag[:-4]))
    yield Caller("a right signature in capitals", _respelled(str.upper))
    yield Caller("a right signature with its algorithm", _respelled(lambda tag: f"sha256={tag}"))
    yield Caller("a right signature in hex of hex", _respelled(lambda tag: base64.b64decode(tag).hex().encode().hex()))
    yield Caller("the signature of another body", fixed((STOREFRONT_HEADER, other)))


def _respelled(spell: Callable[[str], str]) -> Offer:
    return lambda body: [(STOREFRONT_HEADER, spell(signature(body)))]


def _signed(header: str, secret: str) -> Offer:
    return lambda body: [(header, signature(body, secret))]


def _run_worker() -> object:
    """Do the work that a request waits for: a ping, or the validation of a target."""
    order, job = pings.claim_next(utc_now()), validations.claim_next(utc_now(), lease_s=30)
    return (
        order and pings.finish(order.id, PingResult(delivered=True, response_status=202), utc_now()),
        job and validations.finish(job, Validation(), utc_now(), "worker:test"),
    )


def make_finding(customer: Customer) -> str:
    record_postback(PostbackForm().read(postback()), customer.project_id)
    return str(rows("SELECT id FROM findings")[0][0])


@pytest.fixture
def scene(customer: Customer, tmp_path: Path) -> PermissionScene:
    """A cloud installation, in which every route is enabled; the customer's account is the operator's."""
    unlimited = {"RATE_LIMIT_PER_MINUTE": "100000", "AUTH_FAILURES_PER_MINUTE": "100000"}
    own = {"DEFAULT_PROJECT_ID": str(customer.project_id), "OPERATOR_ACCOUNT_ID": str(customer.account_id)}
    settings = make_settings(tmp_path, {**CLOUD, **unlimited, **own})
    resolver = FakeResolver({"tracker.example.com": ["93.184.215.14"]})
    target = make_target(customer)
    # A target with an approved export cannot be removed, so each caller still finds it.
    make_approved(customer, target.id)
    recovering = recoveries.begin(make_target(customer).id, utc_now(), utc_now(), "user:test")
    managed = make_colleague(customer)
    return PermissionScene(
        app=create_app(settings, FakeWakeUpQueue(_run_worker), resolver),
        customer=customer,
        colleague=make_colleague(customer),
        poor=make_customer(may_use_webhooks=False),
        other=make_customer(),
        ids={
            "target_id": target.id,
            "project_id": str(customer.project_id),
            "export_id": make_exports(customer, 1)[0],
            "recovery_id": recovering.id,
            "job_id": make_bulk_job(customer),
            "rule_id": make_rule(customer, LABELLING).id,
            "session_id": make_session(customer),
            "handoff_id": make_handoff(customer).id,
            "finding_id": make_finding(customer),
            "account_id": str(customer.account_id),
            "user_id": str(managed.user_id),
            "grant_id": make_grant(customer, str(managed.user_id)),
            "token_id": str(tokens.create(managed.email, TokenKind.API, utc_now())[0].id),
            "compliance_id": receive(Topic.SHOP_REDACT, Vault(settings.encryption_keys)),
            "scan_run_id": str(projects.add_scan_run(customer.project_id, utc_now()).id),
        },
    )


def test_the_permission_table_lists_every_route(scene: PermissionScene) -> None:
    routes = [
        (method.method, route.path)
        for route in inspect_routes(scene.app)
        if route.path not in OPEN and not is_of_the_console(route.path)
        for method in route.methods
        if not method.internal
    ]
    assert sorted(routes) == sorted((row.method, row.path) for row in ROWS)


def test_every_route_lets_some_callers_through_and_refuses_most(scene: PermissionScene) -> None:
    """Every route accepts some callers and refuses most: a table that expects the same of all would prove nothing."""
    callers = [*known_callers(scene), *holders_of_secrets(), *unknown_callers(scene)]
    assert len({caller.name for caller in callers}) == len(callers) > 60
    for row in ROWS:
        let_through = [caller.name for caller in callers if expected(row, caller, scene) == LET_THROUGH]
        assert 1 <= len(let_through) < len(callers) / 4, row


def row_groups() -> Iterator[Any]:
    """Yield the rows that can share a scene, those of GET and of HEAD, and each other row alone."""
    for method in ("GET", "HEAD"):
        yield pytest.param([row for row in ROWS if row.method == method], id=method)
    for row in ROWS:
        if row.method not in {"GET", "HEAD"}:
            yield pytest.param([row], id=f"{row.method} {row.path}")


@pytest.mark.parametrize("together", [*row_groups()])
def test_a_route_accepts_exactly_the_callers_in_the_table(together: list[RoutePermission], scene: PermissionScene) -> None:
    client = TestClient(scene.app)
    callers = [*unknown_callers(scene), *known_callers(scene), *holders_of_secrets()]
    for row in together:
        wrong = []
        actual = defaultdict(set)
        for caller in callers:
            answer = row.call(scene, caller.offer).send(client)
            status, should_be = answer.status_code, expected(row, caller, scene)
            if should_be != (status if status in {401, 403, 404} or status >= 500 else LET_THROUGH):
                wrong.append((caller.name, should_be, status, answer.text[:200]))
            elif should_be != LET_THROUGH:
                actual[status].add(response_fingerprint(answer))
                if row.method != "HEAD":
                    assert_is_error(answer, status, answer.json["error"]["code"])
        assert wrong == [], row
        # Responses do not reveal what was wrong: only a missing and a wrong signature have two codes; the response to a
        # valid token names its kind, its ability or its account.
        assert len(actual[401]) == (2 if row.credential.header == STOREFRONT_HEADER else 1), row
        assert len(actual[403]) <= 3, row
        if actual[404]:
            own = with_token("its own", scene.customer, row.credential.kind, frozenset(ABILITIES[row.credential.kind]))
            assert actual[404] == {response_fingerprint(row.call(with_unknown_ids(scene), own.offer).send(client))}, row


def with_unknown_ids(scene: PermissionScene) -> PermissionScene:
    """Return the scene with IDs that do not exist: of a future time, since IDs of the same moment are neighbors."""
    ids = {
        name: UNKNOWN_ID if each.isdecimal() else re.sub(r"^([a-z]+_).", r"\g<1>7", each) for name, each in scene.ids.items()
    }
    return replace(scene, ids=ids)


@pytest.mark.parametrize("role", Role)
def test_a_role_limits_every_token_of_its_user(role: Role, scene: PermissionScene) -> None:
    users.set_role(scene.customer.email, role, utc_now(), "operator")
    caller = with_token(f"a {role}'s", scene.customer, TokenKind.API, frozenset(ABILITIES[TokenKind.API]))
    of_tokens = [row for row in ROWS if row.credential.ability in ABILITIES[TokenKind.API]]
    # Deleted records cannot be found afterwards; requests for the grants of a record come first.
    for row in sorted(of_tokens, key=lambda row: (row.method == "DELETE", row.path)):
        answer = row.call(scene, caller.offer).send(TestClient(scene.app))
        is_allowed = row.credential.ability in ROLE_ABILITIES[role]
        assert (answer.status_code == 403) is not is_allowed, (row, answer.text)
        if not is_allowed and row.method != "HEAD":
            assert "its user's role does not allow it" in answer.json["error"]["message"], row


@pytest.mark.parametrize("role", [*PROJECT_ROLES, None])
def test_a_project_role_gives_access_to_its_records_and_no_role_gives_none(
    role: Role | None, scene: PermissionScene
) -> None:
    user = accounts.add_user("limited@example.com", scene.customer.account_id, utc_now(), None)
    if role is not None:
        accounts.grant_project(user.email, scene.customer.project_id, utc_now(), role)
    limited = replace(scene.customer, email=user.email, user_id=user.id)
    caller = with_token("a limited one's", limited, TokenKind.API, frozenset(ABILITIES[TokenKind.API]))
    allowed = frozenset[Ability]() if role is None else ROLE_ABILITIES[role] - OF_ACCOUNTS
    opened = set()
    for row in ROWS:
        if row.credential.kind is not TokenKind.API or row.credential.header:
            continue
        status = row.call(scene, caller.offer).send(TestClient(scene.app)).status_code
        is_open = row.path in IN_PROJECTS and row.credential.ability in {None, *allowed}
        assert (status == 403) is not is_open, (row, status)
        opened |= {row.path} if is_open else set()
    assert len(opened) == {None: 2, Role.VIEWER: 11}.get(role, len(IN_PROJECTS))


def test_a_token_in_the_query_is_ignored(scene: PermissionScene) -> None:
    client = TestClient(scene.app)
    for row in ROWS:
        if not row.credential.header:
            for name in ("access_token", "token", "api_key", "Authorization"):
                call = replace(row.call(scene, fixed()), query=f"{name}={scene.customer.token}")
                assert call.send(client).status_code == 401, row


def test_a_credential_in_the_body_is_ignored(scene: PermissionScene) -> None:
    client = TestClient(scene.app)
    for row in ROWS:
        if row.method == "POST":
            actual = {"access_token": scene.customer.token, "X-Scanner-Secret": SCANNER_SECRET, EMAIL_HEADER: EMAIL_SECRET}
            call = row.call(scene, fixed())
            assert call.with_json({**json.loads(call.body), **actual}).send(client).status_code == 401, row
            form = call.without("Content-Type").plus(("Content-Type", "application/x-www-form-urlencoded"))
            assert replace(form, body=f"access_token={scene.customer.token}".encode()).send(client).status_code == 401, row


def test_an_approval_for_a_target_of_another_account_is_a_field_error(scene: PermissionScene) -> None:
    """The target's ID is in the body, not in the path."""
    body = {"target_id": make_target(scene.other).id}
    call = Call("POST", f"{EXPORT.format(**scene.ids)}/approve", (*scene.customer.bearer.items(), *JSON.items()))
    answer = call.with_json(body).send(TestClient(scene.app))
    assert (answer.status_code, answer.json["error"]["details"]["fields"][0]["path"]) == (422, "/target_id")
