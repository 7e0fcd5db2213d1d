"""Signatures: published test vectors, every kind of tampering, and malformed headers."""

import base64
import json
import re
from collections.abc import Callable
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpora import CORPORA
from worker.http.signing import (
    DEFAULT_TOLERANCE_S,
    NONCE_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignatureVerdict,
    hmac_sha256,
    sign,
    verify,
)

SECRET = b"correct horse battery staple"
NOW = 1_700_000_000
NONCE = "00112233445566778899aabbccddeeff"
BODY = '{"id":"exp_1","title":"café"}'.encode()

# printf '1700000000.00112233445566778899aabbccddeeff.{"id":"exp_1","title":"caf\xc3\xa9"}' |
#     openssl dgst -sha256 -hmac 'correct horse battery staple'
SIGNATURE = "sha256=c00c71bc8d5e44e675de888bf5b352bcc88516b6c0b50cbc55093cca7e19e1a7"

nonces = st.text("0123456789abcdef", min_size=32, max_size=32)
timestamps = st.integers(min_value=0, max_value=10**15 - 1)


def headers(**changes: str | None) -> dict[str, str]:
    """Return three valid headers; a keyword (signature, timestamp, nonce) replaces one, and None leaves it out."""
    values = {"signature": SIGNATURE, "timestamp": str(NOW), "nonce": NONCE} | changes
    names = {"signature": SIGNATURE_HEADER, "timestamp": TIMESTAMP_HEADER, "nonce": NONCE_HEADER}
    return {names[part]: value for part, value in values.items() if value is not None}


def never_seen(nonce: str) -> bool:
    return False


def always_seen(nonce: str) -> bool:
    return True


class Memory:
    """Stores nonces, as a receiver does."""

    def __init__(self) -> None:
        self.nonces: list[str] = []

    def __call__(self, nonce: str) -> bool:
        known = nonce in self.nonces
        self.nonces.append(nonce)
        return known


def corpus(name: str) -> Any:
    path = CORPORA / "webhooks" / name
    if not path.exists():
        pytest.skip(f"no corpus at {path}; set CORPORA_DIR")
    return json.loads(path.read_text())


# ── published vectors ──────────────────────────────────────────────────────


def test_the_signature_is_the_one_that_openssl_computes() -> None:
    assert sign(SECRET, NOW, NONCE, BODY) == SIGNATURE


def test_an_empty_body_at_the_epoch_is_signed_as_openssl_does() -> None:
    # printf '0.ffffffffffffffffffffffffffffffff.' | openssl dgst -sha256 -hmac 'k'
    expected = "sha256=26057d1330827d6b92dc6c1f5866017d1356eb23f73d58a73c7ac473b7b5cee0"
    assert sign(b"k", 0, "f" * 32, b"") == expected


@pytest.mark.parametrize(
    ("key", "message", "mac"),
    [
        # RFC 4231, test case 1: a key shorter than the hash
        (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        # RFC 4231, test case 2: text for key and message
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        # RFC 4231, test case 6: a key longer than a block is hashed first
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_the_mac_agrees_with_the_published_test_cases(key: bytes, message: bytes, mac: str) -> None:
    assert hmac_sha256(key, message).hex() == mac


def test_every_wycheproof_vector_has_the_published_result() -> None:
    vectors = [
        (test, group["tagSize"] // 8)
        for group in corpus("wycheproof_hmac_sha256.json")["testGroups"]
        for test in group["tests"]
    ]
    wrong = [
        test["tcId"]
        for test, tag_bytes in vectors
        if (hmac_sha256(bytes.fromhex(test["key"]), bytes.fromhex(test["msg"]))[:tag_bytes].hex() == test["tag"])
        != (test["result"] == "valid")
    ]
    assert len(vectors) == 174
    assert wrong == []


def test_the_published_vector_of_another_sha256_scheme_agrees() -> None:
    vectors = [v for v in corpus("signature-vectors.json") if v["scheme"] == "github sha256="]
    assert vectors
    for vector in vectors:
        mac = hmac_sha256(vector["secret"].encode(), vector["payload"].encode()).hex()
        assert f"sha256={mac}" == vector["signature"]


def test_the_published_vectors_in_base64_agree() -> None:

    shop = corpus("shopify-hmac-vector.json")[0]
    assert (
        base64.b64encode(hmac_sha256(shop["secret"].encode(), shop["raw_body"].encode())).decode() == (shop["hmac_base64"])
    )
    hook = next(v for v in corpus("signature-vectors.json") if v["scheme"] == "standard-webhooks v1")
    key = base64.b64decode(hook["secret"].removeprefix("whsec_"))
    message = f"{hook['msg_id']}.{hook['timestamp']}.{hook['payload']}".encode()
    assert "v1," + base64.b64encode(hmac_sha256(key, message)).decode() == hook["signature"]


# ── signing refuses what could not be verified ─────────────────────────────


def test_signing_refuses_a_nonce_with_a_dot() -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        sign(SECRET, NOW, "a.b", BODY)


def test_an_empty_secret_signs_nothing() -> None:
    with pytest.raises(ValueError, match="secret is empty"):
        sign(b"", NOW, NONCE, BODY)


@pytest.mark.parametrize("secrets", [b"", [], [b""], [SECRET, b""]])
def test_an_empty_secret_verifies_nothing(secrets: bytes | list[bytes]) -> None:
    with pytest.raises(ValueError, match="secret"):
        verify(secrets, headers(), BODY, NOW, never_seen)


# ── what is accepted ───────────────────────────────────────────────────────


def test_a_signed_request_is_accepted() -> None:
    verdict = verify(SECRET, headers(), BODY, NOW, never_seen)
    assert verdict is SignatureVerdict.OK
    assert verdict.ok


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_the_case_of_header_names_does_not_matter(spell: Callable[[str], str]) -> None:
    spelled = {spell(name): value for name, value in headers().items()}
    assert verify(SECRET, spelled, BODY, NOW, never_seen) is SignatureVerdict.OK


@pytest.mark.parametrize("secrets", [[b"new", SECRET], [SECRET, b"new"], (SECRET,)])
def test_while_a_secret_is_rotated_either_one_verifies(secrets: list[bytes]) -> None:
    assert verify(secrets, headers(), BODY, NOW, never_seen) is SignatureVerdict.OK


def test_after_the_rotation_the_old_secret_no_longer_verifies() -> None:
    assert verify([b"new"], headers(), BODY, NOW, never_seen) is SignatureVerdict.SIGNATURE_WRONG


@pytest.mark.parametrize(
    ("skew_s", "expected"),
    [
        (0, SignatureVerdict.OK),
        (300, SignatureVerdict.OK),  # the oldest timestamp within the tolerance
        (301, SignatureVerdict.TIMESTAMP_STALE),
        (-300, SignatureVerdict.OK),  # the sender's clock is ahead, just within the tolerance
        (-301, SignatureVerdict.TIMESTAMP_FUTURE),
    ],
)
def test_a_timestamp_counts_for_five_minutes_either_way(skew_s: int, expected: SignatureVerdict) -> None:
    assert DEFAULT_TOLERANCE_S == 300
    assert verify(SECRET, headers(), BODY, NOW + skew_s, never_seen) is expected


def test_the_tolerance_can_be_narrowed() -> None:
    assert verify(SECRET, headers(), BODY, NOW + 10, never_seen, tolerance_s=10) is SignatureVerdict.OK
    verdict = verify(SECRET, headers(), BODY, NOW + 11, never_seen, tolerance_s=10)
    assert verdict is SignatureVerdict.TIMESTAMP_STALE


# ── what is refused, and the part that the verdict names ───────────────────


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"signature": None}, SignatureVerdict.SIGNATURE_MISSING),
        ({"timestamp": None}, SignatureVerdict.TIMESTAMP_MISSING),
        ({"nonce": None}, SignatureVerdict.NONCE_MISSING),
        # the timestamp: another spelling of the same number would be another signed text
        ({"timestamp": ""}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "1700000000.0"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "+1700000000"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "-1700000000"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "01700000000"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "1_700_000_000"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "1700000000\n"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        ({"timestamp": "2023-11-14T22:13:20Z"}, SignatureVerdict.TIMESTAMP_MALFORMED),
        (
            {"timestamp": "\u0661\u0667" + "\u0660" * 8},
            SignatureVerdict.TIMESTAMP_MALFORMED,
        ),  # Arabic digits, which int() accepts
        ({"timestamp": "9" * 5000}, SignatureVerdict.TIMESTAMP_MALFORMED),  # int() would raise
        ({"timestamp": f"{NOW}, {NOW}"}, SignatureVerdict.TIMESTAMP_MALFORMED),  # two values, joined by a proxy
        ({"timestamp": "1700000000000"}, SignatureVerdict.TIMESTAMP_FUTURE),  # milliseconds
        ({"timestamp": "0"}, SignatureVerdict.TIMESTAMP_STALE),
        # the nonce
        ({"nonce": ""}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": NONCE[:-1]}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": NONCE + "0"}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": NONCE[:-1] + "g"}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": NONCE[:-1] + "."}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": NONCE + "\n"}, SignatureVerdict.NONCE_MALFORMED),
        ({"nonce": "é" * 32}, SignatureVerdict.NONCE_MALFORMED),
        # the signature
        ({"signature": ""}, SignatureVerdict.SIGNATURE_MALFORMED),
        ({"signature": SIGNATURE.removeprefix("sha256=")}, SignatureVerdict.SIGNATURE_MALFORMED),
        ({"signature": SIGNATURE.replace("sha256", "sha1")}, SignatureVerdict.SIGNATURE_MALFORMED),
        ({"signature": SIGNATURE[:-1]}, SignatureVerdict.SIGNATURE_MALFORMED),
        ({"signature": SIGNATURE + ", " + SIGNATURE}, SignatureVerdict.SIGNATURE_MALFORMED),
        ({"signature": "sha256=" + "é" * 64}, SignatureVerdict.SIGNATURE_MALFORMED),  # compare_digest would raise
        ({"signature": "sha256=" + "0" * 64}, SignatureVerdict.SIGNATURE_WRONG),
        # well formed, but not what was signed
        ({"timestamp": str(NOW + 1)}, SignatureVerdict.SIGNATURE_WRONG),
        ({"nonce": "f" * 32}, SignatureVerdict.SIGNATURE_WRONG),
        ({"nonce": NONCE.upper()}, SignatureVerdict.SIGNATURE_WRONG),
    ],
)
def test_each_wrong_header_is_refused_by_its_name(changes: dict[str, str | None], expected: SignatureVerdict) -> None:
    verdict = verify(SECRET, headers(**changes), BODY, NOW, never_seen)
    assert verdict is expected
    assert not verdict.ok


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (SIGNATURE_HEADER, SignatureVerdict.SIGNATURE_REPEATED),
        (TIMESTAMP_HEADER, SignatureVerdict.TIMESTAMP_REPEATED),
        (NONCE_HEADER, SignatureVerdict.NONCE_REPEATED),
    ],
)
def test_a_repeated_header_is_refused_even_with_the_same_value(name: str, expected: SignatureVerdict) -> None:
    repeated = headers() | {name.lower(): headers()[name]}
    assert verify(SECRET, repeated, BODY, NOW, never_seen) is expected

    received = Message()  # the headers of http.server
    for pair in [*headers().items(), (name, headers()[name])]:
        received.add_header(*pair)
    assert verify(SECRET, received, BODY, NOW, never_seen) is expected


def test_no_headers_at_all_are_a_missing_signature() -> None:
    assert verify(SECRET, {}, BODY, NOW, never_seen) is SignatureVerdict.SIGNATURE_MISSING


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY + b"\n",  # a trailing newline is part of the body
        BODY.replace(b":", b": "),  # the same JSON in other bytes
        BODY.decode().encode("latin-1"),  # the same text in another encoding
    ],
)
def test_a_tampered_body_is_refused(body: bytes) -> None:
    assert verify(SECRET, headers(), body, NOW, never_seen) is SignatureVerdict.SIGNATURE_WRONG


def test_moving_bytes_between_nonce_and_body_invalidates_the_signature() -> None:
    moved = headers(nonce=NONCE + ".{")
    assert verify(SECRET, moved, BODY[1:], NOW, never_seen) is SignatureVerdict.NONCE_MALFORMED


# ── replays ────────────────────────────────────────────────────────────────


def test_a_replayed_request_is_refused() -> None:
    memory = Memory()
    assert verify(SECRET, headers(), BODY, NOW, memory) is SignatureVerdict.OK
    assert verify(SECRET, headers(), BODY, NOW, memory) is SignatureVerdict.NONCE_REPLAYED


def test_a_forged_request_does_not_use_up_the_nonce_of_the_real_one() -> None:
    memory = Memory()
    forged = verify(SECRET, headers(signature="sha256=" + "0" * 64), BODY, NOW, memory)
    assert forged is SignatureVerdict.SIGNATURE_WRONG
    assert memory.nonces == []
    assert verify(SECRET, headers(), BODY, NOW, memory) is SignatureVerdict.OK


def test_the_nonce_of_a_stale_request_is_not_stored() -> None:
    memory = Memory()
    verify(SECRET, headers(), BODY, NOW + 301, memory)
    assert memory.nonces == []


def test_a_replayed_forgery_is_rejected_for_its_signature() -> None:
    assert verify(b"other", headers(), BODY, NOW, always_seen) is SignatureVerdict.SIGNATURE_WRONG


# ── properties ─────────────────────────────────────────────────────────────


@given(secret=st.binary(min_size=1), timestamp=timestamps, nonce=nonces, body=st.binary())
def test_every_signed_request_verifies(secret: bytes, timestamp: int, nonce: str, body: bytes) -> None:
    signature = sign(secret, timestamp, nonce, body)
    assert re.fullmatch("sha256=[0-9a-f]{64}", signature)
    sent = headers(signature=signature, timestamp=str(timestamp), nonce=nonce)
    assert verify(secret, sent, body, timestamp, never_seen) is SignatureVerdict.OK


@given(body=st.binary(min_size=1), data=st.data())
def test_a_single_flipped_bit_of_the_body_is_noticed(body: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(min_value=0, max_value=len(body) * 8 - 1))
    flipped = bytearray(body)
    flipped[bit // 8] ^= 1 << (bit % 8)
    sent = headers(signature=sign(SECRET, NOW, NONCE, body))
    assert verify(SECRET, sent, bytes(flipped), NOW, never_seen) is SignatureVerdict.SIGNATURE_WRONG


@given(position=st.integers(min_value=7, max_value=len(SIGNATURE) - 1), digit=st.sampled_from("0123456789abcdef"))
def test_every_digit_of_the_signature_counts(position: int, digit: str) -> None:
    changed = SIGNATURE[:position] + digit + SIGNATURE[position + 1 :]
    expected = SignatureVerdict.OK if changed == SIGNATURE else SignatureVerdict.SIGNATURE_WRONG
    assert verify(SECRET, headers(signature=changed), BODY, NOW, never_seen) is expected


@given(secret=st.binary(min_size=1))
def test_another_secret_is_refused(secret: bytes) -> None:
    # A key is padded with zeros up to a block, so trailing zeros make no other key: that is HMAC.
    if secret.rstrip(b"\0") != SECRET:
        assert verify(secret, headers(), BODY, NOW, never_seen) is SignatureVerdict.SIGNATURE_WRONG


@given(received=st.dictionaries(st.sampled_from(list(headers())) | st.text(), st.text()), now=st.integers())
def test_arbitrary_headers_neither_raise_nor_verify(received: dict[str, str], now: int) -> None:
    assert not verify(SECRET, received, BODY, now, never_seen).ok
