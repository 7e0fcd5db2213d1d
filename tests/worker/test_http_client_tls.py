"""Posts over TLS: the certificate has to be the host's of the URL, made by whom we trust, and still count."""

from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import LoopbackServer, Request
from tests.worker.posting import NAME, always, made_client, make_certificate, post


def test_tls_names_the_host_of_the_url_whatever_address_is_dialled(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert server.connections == 1
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [(200, None)] * 3
    assert asked == [NAME]
    timings = [outcome.timings for outcome in outcomes]
    assert timings[0].tls_ms is not None
    assert timings[1].tls_ms is None


# the certificate's name, how long it lasts, whether its maker is trusted
CERTIFICATES: Final = [
    ("other.example.com", timedelta(days=1), True),  # somebody else's
    (NAME, timedelta(days=-1), True),  # expired
    (NAME, timedelta(days=1), False),  # made by nobody we know
]


@pytest.mark.parametrize(("name", "lasts", "is_trusted"), CERTIFICATES)
def test_a_wrong_certificate_is_named_and_nothing_is_sent(
    tmp_path: Path, name: str, lasts: timedelta, is_trusted: bool
) -> None:
    context, authority = make_certificate(tmp_path, name, lasts)
    requests: list[Request | None] = []
    with (
        LoopbackServer(lambda peer: requests.append(peer.read()), context) as server,
        made_client(verify=authority if is_trusted else True) as client,
    ):
        outcome = post(client, server.url(NAME))
    assert (outcome.error, outcome.status) == ("tls_certificate", None)
    assert requests in ([], [None])


def test_a_bundle_named_by_the_environment_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = make_certificate(tmp_path)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, authority)
    with LoopbackServer(always(), context) as server, made_client() as client:
        assert post(client, server.url(NAME)).error == "tls_certificate"


def test_a_peer_that_speaks_no_tls_is_named() -> None:
    with LoopbackServer(lambda peer: peer.answer(400)) as server, made_client() as client:
        outcome = post(client, f"https://{NAME}:{server.port}/")
    assert outcome.error == "tls_failed"
