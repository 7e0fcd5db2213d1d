"""Signing in at an OpenID Connect issuer: which user is signed in, and how faulty or hostile issuers are refused."""

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from falcon.testing import Result, TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from runtime.openid import bounded_requests
from schemas.base.principal import Role
from service.app import create_app
from service.console.openid_connect import LASTS_FOR
from storage.accounts import accounts, users
from storage.db.engine import rows
from tests.service.conftest import LogLines
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import everything_stored
from tests.support.servers.fake_issuer import (
    CLIENT_ID,
    CLIENT_SECRET,
    EMAIL,
    FakeIssuer,
    fake_issuer,
    make_key,
    parameters_of,
)

# Nothing here depends on the database; sessions and identities are tested on both elsewhere.
pytestmark = on_sqlite

ROLES: Final = "triage=triager, agency-admins=owner"


class OpenIdBrowser(ConsoleBrowser):
    """A browser that is redirected to the issuer and back; its cookie of the sign-in is in `preferences`."""

    def begin(self, next_path: str = "") -> str:
        """Follow the link to the issuer; return the issuer's URL."""
        begun = self.get("/sign-in/openid-connect", urlencode({"next": next_path}))
        assert begun.status_code == 303, begun.text
        self.keep_cookies(begun)
        return begun.headers["location"]

    def come_back(self, **answer: str) -> Result:
        """Follow the issuer's redirect."""
        return self.get("/sign-in/callback", urlencode(answer))


@pytest.fixture(scope="module")
def running() -> Iterator[FakeIssuer]:
    with fake_issuer() as made:
        yield made


@pytest.fixture
def issuer(running: FakeIssuer) -> FakeIssuer:
    """The issuer, reset to correct behavior."""
    running.__init__(running.url)  # type: ignore[misc]  # back to the beginning
    return running


@pytest.fixture
def app_with(customer: Customer, issuer: FakeIssuer, tmp_path: Path) -> Callable[..., OpenIdBrowser]:
    def made(**changes: str) -> OpenIdBrowser:
        settings = {"OIDC_ISSUER": issuer.url, "OIDC_CLIENT_ID": CLIENT_ID, "OIDC_CLIENT_SECRET": CLIENT_SECRET}
        settings |= {"OIDC_ROLES": ROLES, **changes}
        app = create_app(make_settings(tmp_path, settings), FakeWakeUpQueue(), FakeResolver({}))
        return OpenIdBrowser(TestClient(app))

    return made


@pytest.fixture
def person(app_with: Callable[..., OpenIdBrowser]) -> OpenIdBrowser:
    return app_with()


def signed_in(person: OpenIdBrowser, issuer: FakeIssuer) -> Result:
    return person.come_back(**issuer.authorize(person.begin()))


def refused(answer: Result, reason: str) -> bool:
    """Return whether the sign-in was refused for this reason."""
    assert "riskrelay_session" not in answer.cookies
    assert rows("SELECT COUNT(*) FROM console_sessions") == [(0,)]
    return answer.status_code == 403 and f"({reason})" in answer.text


# --- who is signed in


def test_a_new_person_becomes_a_user_with_the_role_of_their_groups(
    person: OpenIdBrowser, issuer: FakeIssuer, customer: Customer
) -> None:
    assert "Sign in with OpenID Connect" in person.get("/sign-in", "next=%2Ftargets").text
    url = person.begin("/targets")
    asked = parameters_of(url)
    assert asked["redirect_uri"] == ["http://127.0.0.1:8000/console/sign-in/callback"]
    assert asked["scope"] == ["openid email profile"]
    answer = person.come_back(**issuer.authorize(url))
    assert (answer.status_code, answer.cookies["riskrelay_session"].same_site) == (200, "Strict")
    assert 'content="0; url=/console/targets"' in answer.text
    page = person.get("/sessions")
    assert EMAIL in page.text
    assert "OpenID Connect" in page.text
    user = accounts.user_by_email(EMAIL)
    assert (user.account_id, user.role) == (customer.account_id, Role.TRIAGER)
    actions = rows("SELECT actor, action FROM audit_entries WHERE subject_id = ? ORDER BY id", (f"user:{user.id}",))
    assert actions == [("openid_connect", "add_user"), (f"user:{user.id}", "link_identity")]


def test_users_are_identified_by_issuer_and_subject_and_get_the_role_of_their_groups(
    person: OpenIdBrowser, issuer: FakeIssuer
) -> None:
    signed_in(person, issuer)
    user = accounts.user_by_email(EMAIL)
    issuer.claims = {"email": "ada@married.example", "email_verified": True, "groups": ["agency-admins", "triage"]}
    signed_in(person, issuer)
    assert accounts.get_user(user.id).role is Role.OWNER
    assert len(accounts.list_users()) == 2
    assert rows("SELECT actor, reason FROM audit_entries WHERE action = 'set_role'") == [("openid_connect", "owner")]


def test_the_user_with_the_same_verified_address_is_linked(
    person: OpenIdBrowser, issuer: FakeIssuer, customer: Customer
) -> None:
    issuer.claims["email"] = customer.email
    assert signed_in(person, issuer).status_code == 200
    assert accounts.user_by_email(customer.email).role is Role.TRIAGER
    assert rows("SELECT issuer, subject, user_id FROM user_identities") == [(issuer.url, "248289761001", customer.user_id)]


def test_without_a_mapping_users_keep_their_roles_and_nobody_is_created(
    app_with: Callable[..., OpenIdBrowser], issuer: FakeIssuer, customer: Customer
) -> None:
    person = app_with(OIDC_ROLES="")
    answer = signed_in(person, issuer)
    assert (answer.status_code, "There is no user with your email address" in answer.text) == (403, True)
    issuer.claims["email"] = customer.email
    signed_in(person, issuer)
    assert accounts.user_by_email(customer.email).role is Role.OWNER


@pytest.mark.parametrize("groups", [None, [], ["strangers"], "strangers", {"triage": 1}, [["triage"]], 7])
def test_a_person_without_a_mapped_group_is_refused(groups: Any, person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.claims["groups"] = groups
    answer = signed_in(person, issuer)
    assert (answer.status_code, "None of your groups" in answer.text) == (403, True)
    assert rows("SELECT COUNT(*) FROM users") == [(1,)]


@pytest.mark.parametrize("claims", [{}, {"email": EMAIL}, {"email": EMAIL, "email_verified": "true"}, {"email": 7}])
def test_an_unverified_email_address_is_refused(
    claims: dict[str, Any], app_with: Callable[..., OpenIdBrowser], issuer: FakeIssuer
) -> None:
    issuer.claims = {**claims, "groups": "triage"}
    answer = signed_in(app_with(), issuer)
    assert (answer.status_code, "did not send a verified email address" in answer.text) == (403, True)
    is_address = claims.get("email") == EMAIL
    assert signed_in(app_with(OIDC_TRUST_EMAIL="on"), issuer).status_code == (200 if is_address else 403)


def test_claims_missing_in_the_id_token_are_requested_from_userinfo(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.claims, claims = {}, issuer.claims
    issuer.user_info |= claims
    assert signed_in(person, issuer).status_code == 200
    assert accounts.user_by_email(EMAIL).role is Role.TRIAGER
    issuer.user_info["sub"] = "somebody else"
    assert "(userinfo_sub)" in signed_in(person, issuer).text


def test_a_user_of_another_account_or_a_disabled_one_is_refused(
    person: OpenIdBrowser, issuer: FakeIssuer, customer: Customer
) -> None:
    issuer.claims["email"] = make_customer().email
    assert "belongs to an account" in signed_in(person, issuer).text
    issuer.claims["email"] = customer.email
    signed_in(person, issuer)
    users.disable(customer.email, utc_now(), "operator")
    assert "This user is disabled" in signed_in(person, issuer).text
    assert person.get("/inbox").status_code == 303


def test_a_removed_user_is_no_longer_linked(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    signed_in(person, issuer)
    users.remove(EMAIL, utc_now(), "operator")
    assert rows("SELECT COUNT(*) FROM user_identities") == [(0,)]
    signed_in(person, issuer)
    assert accounts.user_by_email(EMAIL).state == "active"


# --- signing out


def test_signing_out_ends_the_session_and_then_the_session_at_the_issuer(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    signed_in(person, issuer)
    [id_token] = [each for each in issuer.canaries if each.count(".") == 2]
    person.get("/inbox")
    answer = person.post("/sign-out")
    assert (answer.status_code, person.cookie) == (200, "")
    [url] = re.findall(r'content="0; url=([^"]+)"', answer.text)
    assert url.startswith(f"{issuer.url}/end?")
    assert parameters_of(unescape(url)) == {
        "id_token_hint": [id_token],
        "client_id": [CLIENT_ID],
        "post_logout_redirect_uri": ["http://127.0.0.1:8000/console/sign-in"],
    }
    assert rows("SELECT ended_reason, id_token_sealed FROM console_sessions") == [("signed_out", None)]


def test_without_a_sign_out_page_of_the_issuer_or_with_a_token_only_our_session_ends(
    person: OpenIdBrowser, issuer: FakeIssuer, customer: Customer
) -> None:
    issuer.described = {"end_session_endpoint": None}
    signed_in(person, issuer)
    person.get("/inbox")
    assert person.post("/sign-out").headers["location"] == "/console/sign-in?done=signed_out"
    person.sign_in(make_console_token(customer))
    assert person.post("/sign-out").headers["location"] == "/console/sign-in?done=signed_out"


# --- faulty issuers, and attacks

MISTAKES: Final[dict[str, tuple[Callable[[dict[str, Any]], Any], str]]] = {
    "wrong audience": (lambda claims: claims.update(aud="another client"), "claim_aud"),
    "further audience without a party": (lambda claims: claims.update(aud=[CLIENT_ID, "another"]), "claim_azp"),
    "another party": (lambda claims: claims.update(azp="another client"), "claim_azp"),
    "no audience": (lambda claims: claims.pop("aud"), "claim_aud"),
    "wrong issuer": (lambda claims: claims.update(iss="https://another.example"), "claim_iss"),
    "wrong nonce": (lambda claims: claims.update(nonce="another"), "claim_nonce"),
    "no nonce": (lambda claims: claims.pop("nonce"), "claim_nonce"),
    "expired": (lambda claims: claims.update(exp=time.time() - 90), "claim_exp"),
    "no expiry": (lambda claims: claims.pop("exp"), "claim_exp"),
    "expiry as text": (lambda claims: claims.update(exp="9999999999"), "claim_exp"),
    "issued in the future": (lambda claims: claims.update(iat=time.time() + 90), "claim_iat"),
    "no subject": (lambda claims: claims.update(sub=""), "claim_sub"),
    "subject of 256 characters": (lambda claims: claims.update(sub="x" * 256), "claim_sub"),
    "subject that PostgreSQL cannot store": (lambda claims: claims.update(sub="a\0b"), "claim_sub"),
    "subject of another type": (lambda claims: claims.update(sub=7), "claim_sub"),
    "another access token": (lambda claims: claims.update(at_hash="AAAA"), "claim_at_hash"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_id_token_with_a_wrong_claim_is_refused(name: str, person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.change, reason = MISTAKES[name]
    assert refused(signed_in(person, issuer), reason)


def test_a_subject_may_have_255_characters(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.change = lambda claims: claims.update(sub="x" * 255)
    assert signed_in(person, issuer).status_code == 200


def test_clock_skew_of_up_to_a_minute_is_accepted(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.change = lambda claims: claims.update(exp=time.time() - 50, iat=time.time() + 50)
    assert signed_in(person, issuer).status_code == 200


@pytest.mark.parametrize("alg", ["none", "HS256"])
def test_an_algorithm_without_a_public_key_is_refused(alg: str, person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.alg = alg
    assert refused(signed_in(person, issuer), "signature_unsupported_algorithm")


def test_an_unknown_key_is_refused_and_the_issuers_keys_are_requested_only_once(
    person: OpenIdBrowser, issuer: FakeIssuer
) -> None:
    issuer.key = make_key("unknown")
    for _ in range(3):
        assert refused(signed_in(person, issuer), "signature_invalid_key_id")
    assert issuer.requests.count("/jwks") == 1


def test_a_signature_by_another_key_with_the_same_id_is_refused(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.key = make_key("first", "another")
    assert refused(signed_in(person, issuer), "signature_bad_signature")


def test_rotated_keys_are_fetched(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    with freeze_time(utc_now(), tick=True) as clock:
        signed_in(person, issuer)
        issuer.key = make_key("second")
        issuer.published = [issuer.key]
        clock.tick(timedelta(minutes=3))
        assert signed_in(person, issuer).status_code == 200
    assert issuer.requests.count("/jwks") == 2


def test_issuer_keys_for_encryption_are_not_used_to_verify_signatures(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.published = [make_key("first", use="enc")]
    answer = signed_in(person, issuer)
    assert (answer.status_code, "riskrelay_session" in answer.cookies) == (503, False)


def test_the_response_of_another_issuer_is_refused(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    answer = issuer.authorize(person.begin())
    assert refused(person.come_back(**{**answer, "iss": "https://another.example"}), "another_issuer")
    del answer["iss"]
    person.begin()
    assert "/token" not in issuer.requests


def test_the_iss_parameter_is_required_if_the_issuer_announces_it(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    answer = issuer.authorize(person.begin())
    del answer["iss"]
    assert refused(person.come_back(**answer), "another_issuer")


def test_the_metadata_of_another_issuer_are_refused(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.described = {"issuer": "https://another.example"}
    assert person.get("/sign-in/openid-connect").status_code == 503
    # The failure is cached for a few seconds, so that users cannot cause many requests to the issuer.
    assert person.get("/sign-in/openid-connect").status_code == 503
    assert len(issuer.requests) == 1


@pytest.mark.parametrize(
    "endpoint", ["file:///etc/passwd", "ftp://127.0.0.1/", "//host", 7, None, "http://u:p@h/", "http://h:x/"]
)
def test_an_endpoint_that_is_no_url_as_secure_as_the_issuer_is_refused(
    endpoint: Any, person: OpenIdBrowser, issuer: FakeIssuer
) -> None:
    issuer.described = {"token_endpoint": endpoint}
    assert person.get("/sign-in/openid-connect").status_code == 503


RESPONSES: Final[dict[str, bytes]] = {
    "huge": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (bounded_requests.MAX_BODY_BYTES + 1),
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /jwks\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
}


@pytest.mark.parametrize("name", RESPONSES)
def test_an_unexpected_response_of_the_token_endpoint_is_rejected(
    name: str, person: OpenIdBrowser, issuer: FakeIssuer
) -> None:
    issuer.raw["/token"] = RESPONSES[name]
    answer = signed_in(person, issuer)
    assert (answer.status_code, "riskrelay_session" in answer.cookies) == (503, False)


def test_a_token_endpoint_that_drips_is_given_up(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.raw["/token"] = None
    began = time.monotonic()
    assert signed_in(person, issuer).status_code == 503
    assert time.monotonic() - began < bounded_requests.DEADLINE_S + 2


def test_a_response_without_an_id_token_is_rejected(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    issuer.raw["/token"] = b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"access_token": "a"}'
    assert refused(signed_in(person, issuer), "no_id_token")


def test_only_the_browser_that_started_a_sign_in_can_finish_it(
    person: OpenIdBrowser, issuer: FakeIssuer, app_with: Callable[..., OpenIdBrowser]
) -> None:
    answer = issuer.authorize(person.begin())
    victim = OpenIdBrowser(person.client)
    assert refused(victim.come_back(**answer), "cookie")
    victim.begin()
    assert refused(victim.come_back(**answer), "state")
    victim.preferences["riskrelay_sign_in"] = "AAAA"
    assert refused(victim.come_back(**answer), "cookie")


def test_a_sign_in_expires_after_ten_minutes_and_works_once(person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    with freeze_time(NOW) as clock:
        answer = issuer.authorize(person.begin())
        clock.tick(LASTS_FOR)
        assert refused(person.come_back(**answer), "too_late")
    answer = issuer.authorize(person.begin())
    cookie = person.preferences["riskrelay_sign_in"]
    done = person.come_back(**answer)
    assert done.cookies["riskrelay_sign_in"].value == ""
    person.preferences["riskrelay_sign_in"] = cookie
    assert "(code)" in person.come_back(**answer).text
    # Even if the issuer accepts a code twice, no second session begins.
    issuer.used_codes.clear()
    again = person.come_back(**answer)
    assert (again.status_code, "already been used" in again.text) == (409, True)
    assert rows("SELECT COUNT(*) FROM console_sessions") == [(1,)]


@pytest.mark.parametrize("answer", [{"error": "access_denied"}, {}, {"code": ""}])
def test_a_refusal_by_the_issuer_shows_the_sign_in_page_with_the_reason(
    answer: dict[str, str], person: OpenIdBrowser, issuer: FakeIssuer
) -> None:
    state = issuer.authorize(person.begin())["state"]
    assert refused(person.come_back(state=state, iss=issuer.url, **answer), "denied" if "error" in answer else "no_code")


def test_failed_sign_ins_count_like_failed_tokens(app_with: Callable[..., OpenIdBrowser]) -> None:
    person = app_with(AUTH_FAILURES_PER_MINUTE="2")
    person.begin()
    kept, statuses = person.preferences["riskrelay_sign_in"], []
    for _ in range(4):
        person.preferences["riskrelay_sign_in"] = kept
        statuses.append(person.come_back(state="s").status_code)
    assert statuses[0] == 403
    assert statuses[-1] == 429
    assert person.get("/sign-in/openid-connect").status_code == 429


def test_a_page_of_another_site_does_not_make_a_browser_fail_to_sign_in(
    app_with: Callable[..., OpenIdBrowser], issuer: FakeIssuer
) -> None:
    person = app_with(AUTH_FAILURES_PER_MINUTE="2")
    answer = issuer.authorize(person.begin())
    # Requests from the other site carry no cookie, and the responses do not delete it.
    kept = person.preferences.pop("riskrelay_sign_in")
    assert {person.come_back(state="s", code="c").status_code for _ in range(5)} == {403}
    person.preferences.setdefault("riskrelay_sign_in", kept)
    assert person.preferences["riskrelay_sign_in"] == kept
    assert person.come_back(**answer).status_code == 200


def test_an_address_with_a_kelvin_sign_is_not_linked_to_the_address_with_a_k(
    person: OpenIdBrowser, issuer: FakeIssuer, customer: Customer
) -> None:
    accounts.add_user("kate@example.com", customer.account_id, utc_now(), Role.OWNER)
    # The Kelvin sign, which becomes a k in lower case.
    issuer.claims["email"] = "\u212aate@example.com"
    signed_in(person, issuer)
    linked = rows("SELECT u.email FROM user_identities i JOIN users u ON u.id = i.user_id")
    assert ("kate@example.com",) not in linked


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/../x", "\\evil"])
def test_a_sign_in_at_an_issuer_redirects_to_no_other_host(path: str, person: OpenIdBrowser, issuer: FakeIssuer) -> None:
    answer = person.come_back(**issuer.authorize(person.begin(path)))
    assert 'content="0; url=/console"' in answer.text


def test_no_code_token_or_secret_is_stored_or_logged(person: OpenIdBrowser, issuer: FakeIssuer, log_lines: LogLines) -> None:
    signed_in(person, issuer)
    issuer.change = MISTAKES["wrong nonce"][0]
    signed_in(person, issuer)
    kept = f"{everything_stored()} {log_lines.text}"
    assert len(issuer.canaries) == 12
    assert [each for each in (*issuer.canaries, CLIENT_SECRET, person.cookie) if each in kept] == []
