"""Posts to receivers with certificates of a private authority, and to receivers that require a client certificate."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.settings.egress import Egress
from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from schemas.targets.validations import Validation
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import TARGET_CERTIFICATE
from storage.secrets.vault import Vault
from storage.targets.validations import ValidationJob
from tests.support.factories import LOOPBACK, make_settings
from tests.support.fakes import LoopbackServer, Peer
from tests.support.servers.authorities import CertificateAuthority
from tests.support.servers.proxies import tinyproxy
from tests.support.worker.receivers import BODY, HEADERS, NAME, always, made_client, make_certificate, post
from worker.composition import compose_client, compose_validation_task
from worker.http.client import HttpClient
from worker.http.signed_request import Message, SignedPost

COMPANY: Final = CertificateAuthority("Company")
OURS: Final = COMPANY.pair("riskrelay.example.com")
THEIRS: Final = COMPANY.pair("tenant.example.com")
REFUSED: Final = "client_certificate_refused"


class NamingServer(LoopbackServer):
    """Requires a client certificate, and responds with the name in it; `versions` are the lowest and highest TLS version."""

    def __init__(self, versions: tuple[ssl.TLSVersion, ssl.TLSVersion]) -> None:
        context = COMPANY.server(NAME, clients=COMPANY)
        context.minimum_version, context.maximum_version = versions
        super().__init__(self._answer_with_name, context)

    @staticmethod
    def _answer_with_name(peer: Peer) -> None:
        connection = peer.connection
        assert isinstance(connection, ssl.SSLSocket)
        subject = (connection.getpeercert() or {})["subject"]
        while peer.read():
            peer.answer(200, str(subject[0][0][1]).encode())


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
def server(request: pytest.FixtureRequest) -> Iterator[NamingServer]:
    with NamingServer((request.param, request.param)) as made:
        yield made


def posted(client: HttpClient, server: LoopbackServer, account_id: int = 1, certificate: str | None = None) -> str:
    outcome = client.post(server.url(NAME), HEADERS, BODY, account_id, certificate)
    return outcome.error or outcome.body.decode()


def test_an_authority_of_the_settings_is_trusted_in_addition_to_the_others(tmp_path: Path) -> None:
    usual, authority = make_certificate(tmp_path)
    for egress, errors in ((Egress(COMPANY.pem), [None, None]), (Egress(), [None, "tls_certificate"])):
        with (
            LoopbackServer(always(), usual) as of_usual,
            LoopbackServer(always(), COMPANY.server(NAME)) as of_company,
            made_client(verify=authority, egress=egress) as client,
        ):
            assert [post(client, each.url(NAME)).error for each in (of_usual, of_company)] == errors


def test_an_authority_of_the_settings_does_not_replace_the_usual_ones(tmp_path: Path) -> None:
    with made_client(egress=Egress(COMPANY.pem)) as client, LoopbackServer(always(), COMPANY.server(NAME)) as server:
        assert post(client, server.url(NAME)).status == 200
        [origin] = client._pool._origins.values()
        assert origin._context is not None
        assert origin._context.cert_store_stats()["x509_ca"] > 100


def test_the_certificate_of_the_settings_is_presented(server: NamingServer) -> None:
    with made_client(egress=Egress(COMPANY.pem, OURS)) as client:
        assert posted(client, server) == "riskrelay.example.com"


@pytest.mark.parametrize(
    "certificate",
    [None, CertificateAuthority("Stranger").pair("riskrelay.example.com")],
    ids=["none", "another authority's"],
)
def test_a_receiver_that_refuses_the_certificate_is_reported(certificate: str | None) -> None:
    with (
        NamingServer((ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)) as server,
        made_client(egress=Egress(COMPANY.pem)) as client,
    ):
        assert posted(client, server, certificate=certificate) == REFUSED


def test_the_certificate_of_the_settings_is_used_only_for_its_accounts() -> None:
    egress = Egress(COMPANY.pem, OURS, certificate_accounts=frozenset({1}))
    with NamingServer((ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)) as server, made_client(egress=egress) as client:
        assert posted(client, server, account_id=1) == "riskrelay.example.com"
        assert posted(client, server, account_id=2) == REFUSED
        assert posted(client, server, account_id=2, certificate=THEIRS) == "tenant.example.com"


def test_no_connection_is_used_with_another_certificate(server: NamingServer) -> None:
    names = {None: "riskrelay.example.com", THEIRS: "tenant.example.com"}
    with made_client(egress=Egress(COMPANY.pem, OURS)) as client:
        for certificate in (None, THEIRS, None, THEIRS, THEIRS, None):
            assert posted(client, server, certificate=certificate) == names[certificate]
        assert server.connections == 2


def test_an_inspection_presents_the_certificate() -> None:
    with (
        NamingServer((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)) as server,
        made_client(egress=Egress(COMPANY.pem)) as client,
    ):
        assert client.inspect(server.url(NAME), 1, OURS).has_passed
        assert not client.inspect(server.url(NAME), 1).has_passed


def test_a_targets_own_certificate_is_opened_for_its_deliveries(server: NamingServer) -> None:
    vault = Vault([b"k" * 32])
    options = DeliveryOptions(certificate_sealed=vault.seal(THEIRS, TARGET_CERTIFICATE.context("tgt_1")))
    message = Message("att_1", "exp_1", "tgt_1", server.url(NAME), None, BODY, utc_now(), "0" * 32, 1, options)
    with made_client(egress=Egress(COMPANY.pem, OURS)) as client:
        signed_post = SignedPost(client.post, vault, DefaultSecret("a secret of ours"))
        assert signed_post.send(message).body == b"tenant.example.com"
        assert signed_post.send(message._replace(options=DEFAULT_OPTIONS)).body == b"riskrelay.example.com"
        # Encrypted for another target, it cannot be decrypted.
        assert signed_post.send(message._replace(target_id="tgt_2")).error == "secret_unreadable"


def test_the_settings_reach_deliveries_pings_and_validations(tmp_path: Path) -> None:
    at = OURS.index("-----BEGIN PRIVATE")
    certificates = {"TARGET_CA": COMPANY.pem, "TARGET_CLIENT_CERT": OURS[:at], "TARGET_CLIENT_KEY": OURS[at:]}
    context = COMPANY.server("127.0.0.1", clients=COMPANY)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with LoopbackServer(always(), context) as server, tinyproxy(tmp_path) as proxy:
        on = {"EGRESS_BIND": "127.0.0.1", "EGRESS_PROXY_URL": proxy.url()}
        settings = make_settings(tmp_path, {**LOOPBACK, **certificates, **on})
        job = ValidationJob("tgt_1", 1, server.url(), "")
        assert compose_validation_task(settings, 1).inspect(job) == Validation()
        with closing(compose_client(settings, 1)) as client:
            assert client.post(server.url(), HEADERS, BODY, 1).status == 200
        assert proxy.tunnels() == [f"127.0.0.1:{server.port}"] * 2
        without = make_settings(tmp_path, {**LOOPBACK, "TARGET_CA": COMPANY.pem})
        assert compose_validation_task(without, 1).inspect(job) == Validation("tls_failed")
