"""Certificates and keys in the settings: what is accepted, the error messages, and that no key is written to disk."""

import ssl
import subprocess
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from marshmallow import ValidationError

from schemas.settings.certificates import authorities, certificate_fingerprint, certificate_pair, load_pair, private_key
from tests.support.servers.authorities import CertificateAuthority, key_pem

COMPANY: Final = CertificateAuthority("Company")
PAIR: Final = COMPANY.pair("client.example.com")
KEY: Final = key_pem(ec.generate_private_key(ec.SECP256R1()))


def refusal(text: str) -> str:
    with pytest.raises(ValidationError) as refused:
        certificate_pair(text)
    return str(refused.value.messages[0])


def test_a_bundle_is_read_with_any_text_between_its_certificates() -> None:
    found = authorities(f"# Főtanúsítvány\n{COMPANY.pem}\nAnother:\n{CertificateAuthority('Other').pem}")
    assert found.isascii()
    assert found.count("BEGIN CERTIFICATE") == 2
    assert authorities("") == ""


@pytest.mark.parametrize("text", ["no certificate", COMPANY.pem.replace("M", "*"), KEY])
def test_a_bundle_without_a_readable_certificate_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        authorities(text)
    assert text.strip()[:40] not in str(refused.value)


def test_a_pair_is_read_in_any_order_with_its_chain() -> None:
    certificate, key = PAIR[: PAIR.index("-----BEGIN PRIVATE")], PAIR[PAIR.index("-----BEGIN PRIVATE") :]
    pair = certificate_pair(f"Bag Attributes\n{key}\n{certificate}{COMPANY.pem}")
    assert pair == f"{certificate}{COMPANY.pem}{key}"
    assert certificate_pair(pair) == pair


# Columns: a text given as a pair of certificate and key; a part of the error message.
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (KEY, "No certificate found"),
        (COMPANY.pem, "No private key found"),
        (COMPANY.pem + KEY, "does not belong to the first certificate"),
        (COMPANY.pem + key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"), "is encrypted"),
        (PAIR.replace("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\nMIJ"), "cannot be read"),
        ("", "No certificate found"),
    ],
    ids=["no certificate", "no key", "wrong key", "encrypted", "broken", "nothing"],
)
def test_an_invalid_pair_is_rejected_with_the_reason(text: str, named: str) -> None:
    assert named in refusal(text)


def test_a_key_with_the_old_pem_encryption_is_reported_as_encrypted() -> None:
    header = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n"
    with pytest.raises(ValidationError, match="is encrypted"):
        private_key(f"{header}-----END RSA PRIVATE KEY-----\n")


def test_a_key_is_on_no_disk_while_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o500)
    opened = list(Path("/proc/self/fd").iterdir())
    load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), PAIR)
    assert len(list(Path("/proc/self/fd").iterdir())) == len(opened)
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_is_that_of_openssl(tmp_path: Path) -> None:
    (tmp_path / "pair.pem").write_text(PAIR)
    command = ["openssl", "x509", "-in", str(tmp_path / "pair.pem"), "-noout", "-fingerprint", "-sha256"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert certificate_fingerprint(PAIR) == "sha256:" + printed.partition("=")[2].strip().replace(":", "").lower()
