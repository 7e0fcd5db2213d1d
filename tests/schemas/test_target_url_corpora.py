"""The URL policy and address classes, compared with another sender's addresses and with test data of browsers' parsers."""

import json
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Final

import pytest

from runtime.dns_resolver import Addresses, DnsError, DnsFailure, DnsResolver
from schemas.url_policy.addresses import check_addresses, classify
from schemas.url_policy.policy import RefusalReason, TargetPolicy, parse_ports
from schemas.url_policy.target_url import TargetAddress, check_url
from tests.support.corpora import CORPORA
from worker.http.client import HttpClient

STRICT: Final = TargetPolicy()
# Everything that an operator can allow, so that only the form of a URL matters.
OPEN: Final = TargetPolicy(True, parse_ports("1-65535"), (ip_network("0.0.0.0/0"), ip_network("::/0")))
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def corpus(*parts: str) -> Any:
    file = CORPORA.joinpath(*parts)
    if not file.exists():
        pytest.skip(f"no {'/'.join(parts)} in {CORPORA}")
    return json.loads(file.read_bytes())


# --- Addresses -----------------------------------------------------------------


def verdicts() -> dict[str, bool]:
    """Return the addresses of another webhook sender's test data, and whether it connects to them."""
    vectors = corpus("ssrf", "svix-vectors.json")["vectors"]
    assert len(vectors) == 43
    return {vector["ip"]: vector["allow"] for vector in vectors}


def test_our_verdicts_on_addresses_equal_those_of_another_webhook_sender() -> None:
    ours = {text: classify(ip_address(text), STRICT) is None for text in verdicts()}
    assert ours == verdicts()


def test_the_other_senders_verdicts_apply_to_an_address_in_a_url() -> None:
    ours = {text: isinstance(check_url(f"https://{_in_url(text)}/", STRICT), TargetAddress) for text in verdicts()}
    assert ours == verdicts()


def test_the_other_senders_verdicts_apply_to_one_of_several_addresses() -> None:
    good = ip_address("8.8.8.8")
    ours = {text: check_addresses([good, ip_address(text), good], STRICT) is None for text in verdicts()}
    assert ours == verdicts()


def test_the_other_senders_ipv4_verdicts_apply_to_mapped_addresses() -> None:
    theirs = {text: allow for text, allow in verdicts().items() if isinstance(ip_address(text), IPv4Address)}
    assert len(theirs) >= 20
    assert {text: classify(ip_address(f"::ffff:{text}"), STRICT) is None for text in theirs} == theirs


def _in_url(text: str) -> str:
    return f"[{text}]" if ":" in text else text


# --- Names and URLs ------------------------------------------------------------


def test_urls_that_browsers_reject_are_refused_and_hosts_are_parsed_equally() -> None:
    compared = 0
    for case in corpus("urls", "urltestdata.json"):
        target = check_url(case["input"], OPEN) if isinstance(case, dict) else None
        if isinstance(target, TargetAddress):
            assert not case.get("failure"), case["input"]
            port = int(case["port"] or {"http:": 80, "https:": 443}[case["protocol"]])
            assert (target.host, target.port) == (case["hostname"].strip("[]"), port), case["input"]
            compared += 1
    assert compared >= 30


def test_international_names_are_converted_as_in_the_idna_test_vectors() -> None:
    compared = 0
    for case in corpus("urls", "IdnaTestV2.json"):
        target = check_url(f"https://{case['input']}/", OPEN) if isinstance(case, dict) else None
        if isinstance(target, TargetAddress):
            assert case["output"] is not None, ascii(case["input"])
            assert target.host == case["output"].removesuffix("."), ascii(case["input"])
            compared += 1
    assert compared >= 200


# --- Connections --------------------------------------------------------------


class RecordingResolver(DnsResolver):
    """Records the host and port of each connection attempt, and lets none succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        self.asked.append((host, port))
        raise DnsError(DnsFailure.NOT_FOUND)


def accepted_urls() -> Iterator[tuple[str, TargetAddress]]:
    """Yield every accepted URL of the corpora, and a URL for every host of the corpora."""
    cases = [case for case in corpus("urls", "urltestdata.json") if isinstance(case, dict)]
    names = [case["input"] for case in corpus("urls", "IdnaTestV2.json") if isinstance(case, dict)]
    hosts = {case["hostname"] for case in cases if case.get("hostname")} | {_in_url(text) for text in verdicts()}
    urls = [case["input"] for case in cases] + [f"https://{name}:8443/in?a=1" for name in [*names, *sorted(hosts)]]
    for url in urls:
        target = check_url(url, OPEN)
        if isinstance(target, TargetAddress):
            yield url, target


def test_connections_go_to_the_checked_host_and_port() -> None:
    witness = RecordingResolver()
    client = HttpClient(OPEN, witness, deadline_s=5, connect_timeout_s=5, connections=1)
    accepted = list(accepted_urls())
    for url, target in accepted:
        assert client.post(url, {}, b"").error == DnsFailure.NOT_FOUND, ascii(url)
        assert witness.asked.pop() == (target.host, target.port), ascii(url)
    assert witness.asked == []
    assert len(accepted) >= 300
    client.close()


def test_no_connection_is_attempted_for_a_refused_url() -> None:
    witness = RecordingResolver()
    client = HttpClient(OPEN, witness, deadline_s=5, connect_timeout_s=5, connections=1)
    cases = [case["input"] for case in corpus("urls", "urltestdata.json") if isinstance(case, dict)]
    refused = [url for url in cases if isinstance(check_url(url, OPEN), RefusalReason)]
    assert all(client.post(url, {}, b"").refused for url in refused)
    assert witness.asked == []
    assert len(refused) >= 300
    client.close()
