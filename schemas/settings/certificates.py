"""Reads authorities, and client certificates with their keys, from PEM. Errors never quote the text.

OpenSSL reads a certificate and its key from files only: they are written to an anonymous file in memory, so that no key is
on a disk.
"""

import hashlib
import os
import re
import ssl
from typing import Final

from marshmallow import ValidationError

#: A chain of four certificates and an RSA key of 4,096 bits have 12 KiB.
MAX_PAIR: Final = 64 * 1024

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY: Final = re.compile(r"-----BEGIN (?P<kind>[A-Z ]*)PRIVATE KEY-----\s.*?-----END (?P=kind)PRIVATE KEY-----", re.DOTALL)
_ENCRYPTED: Final = re.compile(r"-----BEGIN ENCRYPTED|Proc-Type: 4,ENCRYPTED")

_NO_CERTIFICATE: Final = "No certificate found; PEM starts with -----BEGIN CERTIFICATE-----."
_NO_KEY: Final = "No private key found; PEM starts with -----BEGIN PRIVATE KEY-----."


def authorities(text: str) -> str:
    """Return the certificates of a bundle without the text between them, or an empty text. Raises ValidationError."""
    found = certificate_chain(text) if text else ""
    if found:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found)
        except ssl.SSLError:
            raise ValidationError("A certificate of the bundle cannot be read.") from None
    return found


def certificate_chain(text: str) -> str:
    """Return the certificates of a text. Raises ValidationError if it has none."""
    found = _CERTIFICATE.findall(text)
    if not found:
        raise ValidationError(_NO_CERTIFICATE)
    return "".join(f"{each}\n" for each in found)


def private_key(text: str) -> str:
    """Return the private key of a text. Raises ValidationError."""
    found = _KEY.search(text)
    if found is None:
        raise ValidationError(_NO_KEY)
    if _ENCRYPTED.search(found[0]):
        raise ValidationError("The private key is encrypted. Decrypt it first: openssl pkey -in KEY -out DECRYPTED")
    return f"{found[0]}\n"


def certificate_pair(text: str) -> str:
    """Return a certificate chain and its private key, in whatever order a text contains them. Raises ValidationError."""
    pair = certificate_chain(text) + private_key(text)
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair)
    except ssl.SSLError as refused:
        if refused.reason == "KEY_VALUES_MISMATCH":
            raise ValidationError("The private key does not belong to the first certificate.") from None
        raise ValidationError("The certificate or its private key cannot be read, or is too weak for OpenSSL.") from None
    return pair


def load_pair(context: ssl.SSLContext, pair: str) -> None:
    """Load a certificate chain and its key into a context, which presents them. Raises ssl.SSLError."""
    file = os.memfd_create("certificate")
    try:
        with os.fdopen(file, "w", closefd=False) as written:
            written.write(pair)
        # Without the password, OpenSSL would prompt for the password of an encrypted key on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password="")
    finally:
        os.close(file)


def certificate_fingerprint(pair: str) -> str:
    """Return the SHA-256 of the first certificate as `openssl x509 -fingerprint -sha256` does, in small letters."""
    first = _CERTIFICATE.search(pair)
    if first is None:
        raise ValidationError(_NO_CERTIFICATE)
    return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[0])).hexdigest()
