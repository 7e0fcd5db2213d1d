"""A private certificate authority, like that of a company: it signs certificates of servers and clients."""

import ssl
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from schemas.settings.certificates import load_pair
from tests.support.worker.receivers import alternative_name

_VALID: Final = timedelta(days=60)
_SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class CertificateAuthority:
    """Signs certificates; `pem` is its own certificate."""

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = _pem(self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0), None))

    def pair(self, name: str, lasts: timedelta = _VALID) -> str:
        """Return a certificate for `name` and its private key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([alternative_name(name)])
        return _pem(self._sign(_name(name), key, names, lasts)) + key_pem(key)

    def server(self, name: str, clients: "CertificateAuthority | None" = None) -> ssl.SSLContext:
        """Return the TLS context of a server for `name`. With `clients`, it requires certificates of that authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, self.pair(name))
        if clients is not None:
            context.load_verify_locations(cadata=clients.pem)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.BasicConstraints | x509.SubjectAlternativeName,
        lasts: timedelta | None,
    ) -> x509.Certificate:
        until = datetime.now(UTC) + (lasts or _VALID)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 2 * _VALID)
            .not_valid_after(until)
            .add_extension(extension, critical=lasts is None)
            # Since Python 3.13, clients reject certificates without key identifiers, and authorities without key usage.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if lasts is None:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> str:
    """Return a private key as PEM, encrypted if there is a password."""
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        how = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
