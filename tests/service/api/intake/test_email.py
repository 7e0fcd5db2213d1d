"""The email route: who may post, what is stored of a message, what is refused, and that repeats do no work twice."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runtime.clock import utc_now
from service.app import create_app
from storage.db.engine import connection, rows
from storage.exports import queries
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.service.conftest import LogLines
from tests.support.corpora import CORPORA
from tests.support.database.databases import on_postgresql
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    make_customer,
    make_platform_token,
    make_settings,
    plain_email,
    postmark_email,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    CANARY,
    JSON,
    SCANNER,
    Call,
    FieldRefusal,
    assert_has_standard_headers,
    assert_is_error,
    everything_stored,
)

# The content of emails does not depend on the database; PostgreSQL is stricter about texts than SQLite.
pytestmark = on_postgresql

EMAIL: Final = "/api/email/webhook"
SECRET: Final = "email-secret-for-tests"
HEADER: Final = "X-Email-Webhook-Secret"
POST: Final = Call("POST", EMAIL, ((HEADER, SECRET), *JSON.items()))
UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}

PAYLOADS = sorted((CORPORA / "email").glob("postmark-inbound-*.json"))
NAUGHTY = CORPORA / "strings" / "blns.json"


def client_with(folder: Path, **changes: str) -> TestClient:
    settings = make_settings(folder, {**UNLIMITED, **changes})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """An installation with a secret for emails, and the customer's project as the default project."""
    return client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, DEFAULT_PROJECT_ID=str(customer.project_id))


def only_row() -> dict[str, Any]:
    [row] = rows("SELECT sender, recipients, subject, text, attachments FROM inbound_emails")
    return dict(zip(("sender", "recipients", "subject", "text", "attachments"), row, strict=True))


@pytest.mark.parametrize("body", [plain_email(), postmark_email()])
def test_an_email_is_accepted_with_its_id_and_waits_for_approval(body: dict[str, Any], client: TestClient) -> None:
    answer = POST.with_json(body).send(client)

    assert answer.status_code == 202
    assert_has_standard_headers(answer)
    assert answer.headers["content-type"] == "application/json"
    [(email_id, export_id)] = rows("SELECT id, export_id FROM inbound_emails")
    assert answer.json == {"id": email_id, "status": "accepted", "duplicate": False}
    export = queries.get(export_id)
    assert (export.status, export.source.type, export.source.id) == ("prepared", "inbound_email", email_id)
    assert export.preview_problems == ()


@pytest.mark.skipif(not PAYLOADS, reason=f"no payloads of an email provider in {CORPORA}")
def test_the_payloads_that_postmark_tests_with_are_one_email(client: TestClient) -> None:
    first, second = (Call(POST.method, POST.path, POST.headers, payload.read_bytes()).send(client) for payload in PAYLOADS)
    assert (first.status_code, second.status_code) == (202, 202)
    assert (first.json["duplicate"], second.json["duplicate"]) == (False, True)
    assert only_row() == {
        "sender": "Postmarkapp Support <support@postmarkapp.com>",
        "recipients": '["Firstname Lastname <mailbox+SampleHash@inbound.postmarkapp.com>",'
        '"First Cc <firstcc@postmarkapp.com>","secondCc@postmarkapp.com","First Bcc <firstbcc@postmarkapp.com>"]',
        "subject": "Test subject",
        "text": "This is a test text body.",
        "attachments": '[{"name":"test.txt","content_type":"text/plain","size_bytes":45}]',
    }


def test_unused_parts_of_an_email_are_never_stored_or_logged(client: TestClient, log_lines: LogLines) -> None:
    attachment = {"Name": "a.txt", "ContentType": "text/plain", "Content": CANARY, "ContentID": CANARY}
    body = postmark_email(
        **{CANARY: CANARY, "RawEmail": CANARY, "StrippedTextReply": CANARY, "Tag": CANARY, "ReplyTo": CANARY},
        Headers=[{"Name": CANARY, "Value": CANARY}],
        HtmlBody=f"<p>{CANARY}</p>",
        MessageID=CANARY,
        Attachments=[attachment],
    )
    answer = POST.with_json(body).send(client)
    assert answer.status_code == 202
    assert CANARY not in answer.text + str(answer.headers) + log_lines.text + repr(everything_stored())


# --- authentication --------------------------------------------------------------


def test_only_the_email_secret_authenticates_on_the_route(client: TestClient, customer: Customer) -> None:
    call = POST.without(HEADER).with_json(plain_email())
    strangers: list[tuple[tuple[str, str], ...]] = [
        (),
        ((HEADER, ""),),
        ((HEADER, CANARY),),
        ((HEADER, SECRET.upper()),),
        ((HEADER, f"{SECRET}x"),),
        ((HEADER, SECRET), (HEADER, SECRET)),
        ((HEADER, SCANNER_SECRET),),
        ((HEADER, customer.token),),
        tuple(SCANNER.items()),
        (("X-Scanner-Secret", SECRET),),
        tuple(customer.bearer.items()),
        (("Authorization", f"Bearer {make_platform_token(customer)}"),),
        (("Authorization", f"Bearer {SECRET}"),),
        (("X-Platform-Hmac-Sha256", SECRET),),
    ]
    for headers in strangers:
        answer = call.plus(*headers).send(client)
        assert_is_error(answer, 401, "UNAUTHORIZED")
        assert CANARY not in answer.text
    assert rows("SELECT COUNT(*) FROM inbound_emails") == [(0,)]


def test_without_a_configured_secret_every_request_is_refused(customer: Customer, tmp_path: Path) -> None:
    client = client_with(tmp_path, DEFAULT_PROJECT_ID=str(customer.project_id))
    for headers in [(), ((HEADER, ""),), ((HEADER, SECRET),)]:
        assert_is_error(POST.without(HEADER).plus(*headers).with_json(plain_email()).send(client), 401, "UNAUTHORIZED")


def test_the_secret_may_be_in_a_file(customer: Customer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    client = client_with(
        tmp_path, EMAIL_WEBHOOK_SECRET_FILE=str(tmp_path / "secret"), DEFAULT_PROJECT_ID=str(customer.project_id)
    )
    assert POST.with_json(plain_email()).send(client).status_code == 202


def test_a_rotated_secret_counts_at_once_in_every_process(client: TestClient, customer: Customer, tmp_path: Path) -> None:
    another_process = client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, DEFAULT_PROJECT_ID=str(customer.project_id))
    secrets = SharedSecrets(make_settings(tmp_path), Vault(make_settings(tmp_path).encryption_keys))
    call, old = POST.without(HEADER).with_json(plain_email()), SECRET
    assert call.plus((HEADER, old)).send(client).status_code == 202
    for new in ("the-new-one", "a-newer-one"):
        secrets.set(Integration.EMAIL, new, utc_now())
        for process in (client, another_process):
            assert_is_error(call.plus((HEADER, old)).send(process), 401, "UNAUTHORIZED")
            assert call.plus((HEADER, new)).send(process).status_code == 202
        old = new


@pytest.mark.parametrize(
    ("mode", "extra", "status"),
    [
        ("cloud", "", 202),
        ("self-hosted", "", 202),
        ("webhook-only", "", 404),
        ("webhook-only", "scanner", 404),
        ("webhook-only", "email", 202),
        ("webhook-only", "scanner,email", 202),
    ],
)
def test_webhook_only_mode_accepts_emails_if_a_setting_allows_it(
    mode: str, extra: str, status: int, customer: Customer, tmp_path: Path
) -> None:
    client = client_with(
        tmp_path,
        EMAIL_WEBHOOK_SECRET=SECRET,
        DEFAULT_PROJECT_ID=str(customer.project_id),
        DEPLOYMENT_MODE=mode,
        EXTRA_ROUTE_FAMILIES=extra,
    )
    assert POST.with_json(plain_email()).send(client).status_code == status
    assert Call("GET", EMAIL).send(client).status_code == (405 if status == 202 else 404)


# --- repeats -----------------------------------------------------------------------


def test_a_repeated_message_gets_its_first_id(client: TestClient) -> None:
    first = POST.with_json(plain_email()).send(client)
    stored = everything_stored()
    again = POST.with_json(plain_email(subject="Other words", message_id="1@mail.example")).send(client)
    assert (again.status_code, again.json) == (202, {"id": first.json["id"], "status": "accepted", "duplicate": True})
    assert everything_stored() == stored


def test_a_request_with_the_same_key_gets_the_first_response(client: TestClient) -> None:
    call = POST.plus(("Idempotency-Key", "k"))
    first, again = (call.with_json(plain_email()).send(client) for _ in range(2))
    assert first.json == again.json == {**first.json, "duplicate": False}
    assert again.headers["idempotency-replayed"] == "true"
    assert_is_error(call.with_json(plain_email(subject="Other")).send(client), 409, "IDEMPOTENCY_CONFLICT")
    keyed_otherwise = POST.plus(("Idempotency-Key", "k2")).with_json(plain_email()).send(client)
    assert keyed_otherwise.json == {**first.json, "duplicate": True}
    assert rows("SELECT COUNT(*) FROM exports") == [(1,)]


def test_a_dry_run_returns_the_result_and_stores_nothing(client: TestClient) -> None:
    stored = everything_stored()
    dry = Call(POST.method, POST.path, POST.headers, query="dry_run=true")
    answer = dry.with_json(plain_email()).send(client)
    assert answer.status_code == 200
    assert {**answer.json, "id": ""} == {"id": "", "status": "accepted", "duplicate": False}
    assert everything_stored() == stored
    assert_is_error(
        dry.with_json(plain_email(to="Nobody")).send(client),
        422,
        "VALIDATION_FAILED",
        (FieldRefusal("/to", "invalid_address"),),
    )


@pytest.mark.parametrize("headers", [(), (("Idempotency-Key", "k"),)])
def test_threads_that_post_one_message_make_one_email(headers: tuple[tuple[str, str], ...], client: TestClient) -> None:
    start = threading.Barrier(8)

    def post(_number: int) -> Result:
        start.wait()
        with connection():
            return POST.plus(*headers).with_json(plain_email()).send(client)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert sorted(answer.json["duplicate"] for answer in answers) == ([False] * 8 if headers else [False] + [True] * 7)
    assert rows("SELECT COUNT(*) FROM inbound_emails") == rows("SELECT COUNT(*) FROM exports") == [(1,)]


# --- the project -------------------------------------------------------------------


def test_a_plus_address_names_the_project(client: TestClient) -> None:
    named = make_customer()
    bodies = [
        plain_email(to=f"inbox+p{named.project_id}@service.example"),
        postmark_email(MailboxHash=f"p{named.project_id}"),
        postmark_email(MessageID="2", OriginalRecipient=f"inbox+p{named.project_id}@service.example"),
    ]
    assert [POST.with_json(body).send(client).status_code for body in bodies] == [202] * 3
    assert rows("SELECT project_id FROM inbound_emails") == [(named.project_id,)] * 3


def test_an_email_for_no_project_is_refused(client: TestClient, tmp_path: Path) -> None:
    lost = POST.with_json(plain_email(to="inbox+p999999@service.example")).send(client)
    assert_is_error(lost, 422, "VALIDATION_FAILED", (FieldRefusal("/to", "unknown_project"),))
    lost = POST.with_json(postmark_email(MailboxHash="p999999")).send(client)
    assert_is_error(lost, 422, "VALIDATION_FAILED", (FieldRefusal("/To", "unknown_project"),))
    nowhere = POST.with_json(plain_email()).send(client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET))
    assert_is_error(nowhere, 422, "VALIDATION_FAILED", (FieldRefusal("/to", "no_project"),))
    assert rows("SELECT COUNT(*) FROM exports") == [(0,)]


# --- forbidden content -------------------------------------------------------------

CARD: Final = "4111 1111 1111 1111"
TORN: Final = "<p>Paid with 4111<b>1111</b>1111<!-- -->1111</p>"
REPORTED = [
    (plain_email(text=f"Paid with {CARD}."), "/text"),
    (plain_email(subject=f"Card {CARD}"), "/subject"),
    (plain_email(subject="=?utf-8?b?NDExMSAxMTExIDExMTEgMTExMQ==?="), "/subject"),
    (plain_email(text=None, html=TORN), "/html"),
    (plain_email(html=TORN), "/html"),  # also if the text part is the one that would be stored
    (plain_email(from_=f'"{CARD}" <a@b.example>'), "/from"),
    (plain_email(to=["a@b.example", f'"{CARD}" <a@b.example>']), "/to/1"),
    (plain_email(attachments=[{"name": "a"}, {"name": f"{CARD}.txt"}]), "/attachments/1/name"),
    (plain_email(text="-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0t\n"), "/text"),
    (plain_email(text="<!DOCTYPE html><html><head><title>x</title></head><body><p>All of it</p></body></html>"), "/text"),
    (postmark_email(TextBody=f"Paid with {CARD}."), "/TextBody"),
    (postmark_email(TextBody="", HtmlBody=TORN), "/HtmlBody"),
    (postmark_email(Subject=CARD), "/Subject"),
    (postmark_email(FromFull={"Email": "a@b.example", "Name": CARD}), "/FromFull"),
    (postmark_email(Cc=f'"{CARD}" <a@b.example>'), "/Cc"),
    (postmark_email(Attachments=[{"Name": CARD}]), "/Attachments/0/Name"),
]


@pytest.mark.parametrize(("body", "path"), REPORTED)
def test_forbidden_content_is_refused_by_its_path_before_anything_is_stored(
    body: dict[str, Any], path: str, client: TestClient, log_lines: LogLines
) -> None:
    stored = everything_stored()
    answer = POST.plus(("Idempotency-Key", "k")).with_json(body).send(client)
    assert answer.status_code == 422, answer.text
    assert [each["path"] for each in answer.json["error"]["details"]["fields"]] == [path]
    assert "1111" not in answer.text + log_lines.text
    assert everything_stored() == stored


@pytest.mark.parametrize(
    "body",
    [
        # HTML emails are whole HTML documents
        plain_email(text=None, html="<!DOCTYPE html><html><head><title>x</title></head><body><p>Hello</p></body></html>"),
        # mailbox names and addresses are not an order
        postmark_email(FromFull={"Email": "jane@mail.example", "Name": "Jane Doe"}, Subject="Total: 5", Tag="address"),
        # content that is not stored is not searched
        postmark_email(
            RawEmail=f"Cookie: a=b; c=d\r\n\r\n{CARD}",
            Headers=[{"Name": "Authorization", "Value": "Bearer x"}, {"Name": "X-Card", "Value": CARD}],
            Attachments=[{"Name": "a.txt", "Content": CARD, "ContentType": "text/plain"}],
        ),
    ],
)
def test_the_usual_parts_of_an_email_are_no_forbidden_content(body: dict[str, Any], client: TestClient) -> None:
    answer = POST.with_json(body).send(client)
    assert answer.status_code == 202, answer.text
    assert rows("SELECT preview_problems FROM exports") == [("[]",)]


# --- arbitrary texts ---------------------------------------------------------------

#: A text in all places that accept any text at once; addresses, dates and IDs refuse most texts and have bodies of their
#: own.
NAUGHTY_PLACES: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "message_id": lambda text, _: plain_email(message_id=text),
    "from": lambda text, id_: plain_email(message_id=id_, from_=text),
    "received_at": lambda text, id_: plain_email(message_id=id_, received_at=text),
    "plain": lambda text, id_: plain_email(
        message_id=id_, to=["inbox@service.example", text], subject=text, text=text, html=None
    ),
    "postmark": lambda text, id_: postmark_email(
        MessageID=id_,
        FromFull={"Name": text, "Email": "a@b.example"},
        TextBody="",
        HtmlBody=text,
        Date=text,
        MailboxHash=text,
        Attachments=[{"Name": text, "ContentType": text}],
    ),
}


@pytest.mark.skipif(not NAUGHTY.is_file(), reason=f"no naughty strings in {CORPORA}")
@pytest.mark.parametrize("place", NAUGHTY_PLACES)
def test_naughty_strings_are_read_back_unchanged_or_refused_by_name(place: str, client: TestClient) -> None:
    served = 0
    for number, text in enumerate(json.loads(NAUGHTY.read_text())):
        answer = POST.with_json(NAUGHTY_PLACES[place](text, f"{place}-{number}")).send(client)
        assert answer.status_code in {202, 422}, (place, text, answer.text)
        if answer.status_code == 422:
            assert answer.json["error"]["details"]["fields"], (place, text)
            continue
        served += 1
        [(subject, record, attachments)] = rows(
            "SELECT subject, text, attachments FROM inbound_emails WHERE id = ?", (answer.json["id"],)
        )
        if place == "plain":
            assert (subject, record) == (text, text)
        if place == "postmark":
            assert [(each["name"], each["content_type"]) for each in json.loads(attachments)] == [(text, text)]
    # Few of these texts are addresses and none is a date; the other places accept nearly all of them.
    assert served >= {"from": 0, "received_at": 0}.get(place, 400)


@pytest.fixture(scope="module")
def module_client(module_database: Path) -> TestClient:
    """One installation per database for all examples, which do not depend on each other."""
    project_id = make_customer().project_id
    return client_with(module_database, EMAIL_WEBHOOK_SECRET=SECRET, DEFAULT_PROJECT_ID=str(project_id))


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "a@b.example", "x+p1@b.example", "=?utf-8?b?AA==?=", "=?utf-8?q?=00?=", "<b", "&#0;", "p99999999999999999999"]
    ),
)
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.sampled_from([0, -1, 2**63, 10**30, 1.5, 1e308]), st.integers())
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)), max_leaves=6
)


def bodies(whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of one form with any value for any member, down to the second level."""
    members: dict[str, st.SearchStrategy[Any]] = {}
    for name, value in whole.items():
        inner: list[st.SearchStrategy[Any]] = [st.just(value), st.just(value), TEXTS, VALUES]
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict):
            entry = st.fixed_dictionaries(
                {}, optional={each: st.one_of(st.just(first[each]), TEXTS, VALUES) for each in first}
            )
            inner.append(st.lists(entry, max_size=3) if isinstance(value, list) else entry)
        members[name] = st.one_of(inner)
    return st.fixed_dictionaries({}, optional=members)


@given(
    body=st.one_of(bodies(plain_email(attachments=[{"name": "a", "content_type": "b"}])), bodies(postmark_email()), VALUES)
)
@hypothesis_settings(max_examples=300, deadline=None)
def test_no_generated_body_causes_an_internal_error(body: Any, module_client: TestClient) -> None:
    answer = POST.with_json(body).send(module_client)
    assert answer.status_code in {202, 422}, answer.text
    if answer.status_code == 422:
        assert answer.json["error"]["code"] == "VALIDATION_FAILED"
        assert answer.json["error"]["details"]["fields"]


# --- the provider's networks


NETWORKS: Final = {"EMAIL_ALLOWED_NETWORKS": "198.51.100.0/24,2001:db8:1::/48", "TRUSTED_PROXIES": "10.0.0.0/8"}


def post_from(client: TestClient, peer: str, forwarded_for: str = "", secret: str = SECRET, query: str = "") -> Result:
    headers = {HEADER: secret, **JSON, **({"X-Forwarded-For": forwarded_for} if forwarded_for else {})}
    body = json.dumps(plain_email()).encode()
    return client.simulate_post(EMAIL, headers=headers, body=body, query_string=query, extras={"REMOTE_ADDR": peer})


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "status"),
    [
        ("198.51.100.7", "", 202),
        ("::ffff:198.51.100.7", "", 202),
        ("2001:db8:1:9::1", "", 202),
        ("10.0.0.1", "198.51.100.7", 202),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", 202),
        # Any peer can send the header; only the entry of a trusted proxy counts.
        ("203.0.113.9", "198.51.100.7", 403),
        ("10.0.0.1", "198.51.100.7, 203.0.113.9", 403),
        ("10.0.0.1", "", 403),
        ("10.0.0.1", "unknown", 403),
        ("2001:db8:2::1", "", 403),
        # The peer of a Unix socket has no address.
        ("", "198.51.100.7", 403),
    ],
)
def test_an_email_is_accepted_only_from_the_networks_of_the_provider(
    customer: Customer, tmp_path: Path, peer: str, forwarded_for: str, status: int
) -> None:
    client = client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, DEFAULT_PROJECT_ID=str(customer.project_id), **NETWORKS)
    answers = [post_from(client, peer, forwarded_for), post_from(client, peer, forwarded_for, query="dry_run=true")]
    assert answers[0].status_code == status
    assert len(rows("SELECT id FROM inbound_emails")) == (1 if status == 202 else 0)
    if status == 403:
        for answer in answers:
            assert_is_error(answer, 403, "FORBIDDEN")
            assert "EMAIL_ALLOWED_NETWORKS" in answer.json["error"]["message"]
            assert peer == "" or peer not in answer.text


def test_the_response_to_a_wrong_secret_does_not_depend_on_the_network(customer: Customer, tmp_path: Path) -> None:
    client = client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, **NETWORKS)
    answers = [post_from(client, peer, secret="wrong") for peer in ("198.51.100.7", "203.0.113.9")]
    for answer in answers:
        assert_is_error(answer, 401, "UNAUTHORIZED")
    assert answers[0].json["error"]["message"] == answers[1].json["error"]["message"]


def test_a_stolen_secret_does_not_use_up_the_providers_limit(customer: Customer, tmp_path: Path) -> None:
    settings = {**NETWORKS, "RATE_LIMIT_PER_MINUTE": "2", "DEFAULT_PROJECT_ID": str(customer.project_id)}
    client = client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, **settings)
    assert [post_from(client, "203.0.113.9").status_code for _ in range(3)] == [403, 403, 429]
    assert post_from(client, "198.51.100.7").status_code == 202


def test_without_a_list_of_networks_emails_are_accepted_from_any_address(customer: Customer, tmp_path: Path) -> None:
    client = client_with(tmp_path, EMAIL_WEBHOOK_SECRET=SECRET, DEFAULT_PROJECT_ID=str(customer.project_id))
    assert post_from(client, "203.0.113.9").status_code == 202
    assert post_from(client, "").status_code == 202
