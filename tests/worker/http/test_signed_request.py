"""The options of a target's requests: other signatures, other formats of the body, and custom headers."""

import base64
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from runtime.clock import utc_now
from schemas.exports.delivery import Outcome
from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import STANDARD_SECRET, TARGET_HEADERS, EncryptedColumn
from storage.secrets.vault import Vault
from tests.support.corpora import standard_webhook_vector
from tests.support.factories import WEBHOOK_SECRET
from tests.worker.http.test_body_formats import BODIES
from worker.http.signed_request import Message, SignedPost
from worker.http.signing import SignatureVerdict, sign_standard, verify

VAULT: Final = Vault([b"k" * 32])
KEY: Final = bytes(range(32))
STANDARD: Final = f"whsec_{base64.b64encode(KEY).decode()}"
BODY: Final = BODIES["a group"]
#: Dated now, because the reference libraries compare the timestamp with the clock of the machine.
MESSAGE: Final = Message(
    "att_1", "exp_1", "tgt_1", "https://tracker.example.com/hook", None, BODY, utc_now(), "0" * 32, 1, DEFAULT_OPTIONS
)


@dataclass
class Receiver:
    """Stores the last request, and responds with a body."""

    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    received: bytes = b""

    def __call__(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        self.headers, self.received = headers, body
        return Outcome(status=200, body=self.body)


def sealed(text: str, column: EncryptedColumn, target_id: str = "tgt_1") -> bytes:
    return VAULT.seal(text, column.context(target_id))


def options(
    *, signature: str = "service", form: str = "ticket", headers: dict[str, str] | None = None, secret: str | None = STANDARD
) -> DeliveryOptions:
    return DeliveryOptions(
        signature=signature,
        format=form,
        headers_sealed=None if headers is None else sealed(json.dumps(headers), TARGET_HEADERS),
        standard_secret_sealed=None if secret is None else sealed(secret, STANDARD_SECRET),
    )


def sent(
    receiver: Receiver, wanted: DeliveryOptions, message: Message = MESSAGE, default: str | None = WEBHOOK_SECRET
) -> Outcome:
    # Now, because the module may have been imported a quarter of an hour ago.
    at = utc_now() if message is MESSAGE else message.at
    return SignedPost(receiver, VAULT, DefaultSecret(default)).send(message._replace(options=wanted, at=at))


def service_verdict(receiver: Receiver) -> SignatureVerdict:
    now = int(utc_now().timestamp())
    return verify(WEBHOOK_SECRET.encode(), receiver.headers, receiver.received, now, lambda _nonce: False)


def test_the_signature_is_that_of_the_reference_projects_vector() -> None:
    vector = standard_webhook_vector()
    key = base64.b64decode(vector["secret"].removeprefix("whsec_"))
    assert sign_standard(key, vector["msg_id"], vector["timestamp"], vector["payload"].encode()) == vector["signature"]


def test_signing_refuses_an_id_with_a_dot() -> None:
    with pytest.raises(ValueError, match="contains a dot"):
        sign_standard(KEY, "exp.1", 1, b"")


@pytest.mark.parametrize("form", ["ticket", "cloudevents", "cloudevents-binary", "sarif"])
@pytest.mark.parametrize("signature", ["standard-webhooks", "both"])
def test_the_reference_library_accepts_every_form(signature: str, form: str) -> None:
    receiver = Receiver()
    assert sent(receiver, options(signature=signature, form=form)).status == 200
    assert Webhook(STANDARD).verify(receiver.received, receiver.headers) == json.loads(receiver.received)
    assert receiver.headers["webhook-id"] == "exp_1"
    assert 0 <= utc_now().timestamp() - int(receiver.headers["webhook-timestamp"]) < 60
    with pytest.raises(WebhookVerificationError):
        Webhook(STANDARD).verify(receiver.received + b" ", receiver.headers)


@pytest.mark.parametrize("form", ["ticket", "cloudevents", "cloudevents-binary", "sarif"])
@pytest.mark.parametrize("signature", ["service", "both"])
def test_our_own_signature_covers_the_bytes_of_every_form(signature: str, form: str) -> None:
    receiver = Receiver()
    sent(receiver, options(signature=signature, form=form))
    assert service_verdict(receiver) is SignatureVerdict.OK


def test_with_standard_webhooks_only_our_signature_headers_and_secret_are_not_used() -> None:
    receiver = Receiver()
    assert sent(receiver, options(signature="standard-webhooks"), default=None).status == 200
    assert {*receiver.headers} == {
        *("Content-Type", "User-Agent", "Idempotency-Key", "X-Request-Id"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
    }


def test_a_later_attempt_has_the_same_id_and_another_signature() -> None:
    first, second = Receiver(), Receiver()
    sent(first, options(signature="standard-webhooks"))
    later = MESSAGE._replace(id="att_2", at=utc_now() + timedelta(seconds=90))
    sent(second, options(signature="standard-webhooks"), later)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    Webhook(STANDARD).verify(second.received, second.headers)


@pytest.mark.parametrize(
    ("wanted", "default", "error"),
    [
        (options(signature="standard-webhooks", secret=None), WEBHOOK_SECRET, "no_standard_secret"),
        (options(signature="both", secret=None), WEBHOOK_SECRET, "no_standard_secret"),
        (options(signature="both"), None, "no_secret"),
        (options(form="sarif"), None, "no_secret"),
        (DeliveryOptions(headers_sealed=b"broken"), WEBHOOK_SECRET, "secret_unreadable"),
        (DeliveryOptions(headers_sealed=sealed("{}", TARGET_HEADERS, "tgt_2")), WEBHOOK_SECRET, "secret_unreadable"),
        # A Standard Webhooks secret in place of the headers.
        (DeliveryOptions(headers_sealed=sealed(STANDARD, STANDARD_SECRET)), WEBHOOK_SECRET, "secret_unreadable"),
        (DeliveryOptions(signature="of tomorrow"), WEBHOOK_SECRET, "internal_error"),
    ],
)
def test_a_request_that_cannot_be_signed_as_configured_is_not_sent(
    wanted: DeliveryOptions, default: str | None, error: str
) -> None:
    receiver = Receiver()
    assert sent(receiver, wanted, default=default).error == error
    assert receiver.headers == {}


def test_a_targets_own_headers_are_sent_with_ours() -> None:
    receiver = Receiver()
    sent(receiver, options(headers={"Authorization": "Basic dXNlcjpwYXNz", "X-Api-Key": "key-7"}))
    assert (receiver.headers["Authorization"], receiver.headers["X-Api-Key"]) == ("Basic dXNlcjpwYXNz", "key-7")
    assert service_verdict(receiver) is SignatureVerdict.OK


def test_a_changed_header_is_sent_with_the_next_request() -> None:
    receiver = Receiver()
    post = SignedPost(receiver, VAULT, DefaultSecret(WEBHOOK_SECRET))
    for value in ("before the change", "after the change"):
        post.send(MESSAGE._replace(options=options(headers={"X-Api-Key": value})))
        assert receiver.headers["X-Api-Key"] == value


@pytest.mark.parametrize(
    "repeated",
    [
        "Basic dXNlcjpwYXNzd29yZA==",
        "dXNlcjpwYXNzd29yZA==",
        "user:password",
        "password",
        "token-of-ours",
        STANDARD[6:],
        STANDARD,
    ],
)
def test_no_stored_response_contains_a_header_value_or_a_secret(repeated: str) -> None:
    receiver = Receiver(json.dumps({"id": "T-1", "note": f"got {repeated}!"}).encode())
    headers = {"Authorization": "Basic dXNlcjpwYXNzd29yZA==", "X-Auth": "Bearer token-of-ours"}
    outcome = sent(receiver, options(signature="both", headers=headers))
    assert repeated.encode() not in outcome.body
    assert outcome.kept == '{"id": "T-1", "note": "got [redacted]!"}'


def test_a_short_header_value_does_not_change_a_ticket_id() -> None:
    outcome = sent(Receiver(b'{"id": "T-7"}'), options(headers={"X-Tenant": "7"}))
    assert (outcome.body, outcome.kept) == (b'{"id": "T-7"}', '{"id": "T-[redacted]"}')
