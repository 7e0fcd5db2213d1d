"""Puts secrets and canaries in every encoding in every place of a request; rejected ones must leave no trace."""

import base64
import html
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from falcon.testing import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from service.app import create_app
from tests.service.api.test_canary import FORBIDDEN
from tests.support.canaries import columns, is_in
from tests.support.factories import make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.invalid_payloads import base_calls, changed, fresh, leaves
from tests.support.http.raw_http import Call
from tests.support.http.specification import COMPLIANCE, CloudInstallation, make_world
from tests.support.http.storefront import CLOUD

#: Texts around a secret. ENCODINGS has the ways to encode the text; the search decodes once. A secret within a word is not
#: detected (docs/forbidden-content.md).
CONTEXTS: Final = ("{}", "Seen in the log:\n{}\nand then it stopped.", "a {} ", "{{{}}}", "<!-- {} -->", "{}{}", "  {}")
ENCODINGS: Final[dict[str, Callable[[str], str]]] = {
    "in clear": str,
    "percent": lambda text: quote(text, safe=""),
    "HTML": html.escape,
    "HTML numbers": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
}
#: Rules treat decoded text like plain text, except the kinds that are about an encoding.
KINDS: Final = sorted(FORBIDDEN.keys() - {"percent", "base64", "HTML"})

Bodies = list[tuple[str, Call]]

_numbers: Final = count(200_000)


pytestmark = pytest.mark.parametrize(
    # tests/service/api/test_canary.py tests what each database stores. The code that rejects is the same for both.
    "module_database",
    ["sqlite", "postgresql"] if settings.get_current_profile_name() == "long" else ["sqlite"],
    indirect=True,
)


@pytest.fixture(scope="module")
def world(module_database: Path) -> CloudInstallation:
    """One installation with every route, for all examples."""
    customer, wake_ups = make_customer(), FakeWakeUpQueue()
    unlimited = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
    reported = make_settings(module_database, {**CLOUD, **unlimited, "DEFAULT_PROJECT_ID": str(customer.project_id)})
    client = TestClient(create_app(reported, wake_ups, FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    return make_world(reported, client, wake_ups, customer)


@pytest.fixture(scope="module")
def bodies(world: CloudInstallation) -> Bodies:
    """Every request with a body, with its route. Creating them all takes longer than sending one."""
    return [(route, call) for route, call in base_calls(world.client.app, world) if call.body and route != COMPLIANCE]


@given(data=st.data())
def test_forbidden_secrets_are_never_stored_or_echoed_in_any_encoding(
    world: CloudInstallation, bodies: Bodies, data: st.DataObject
) -> None:
    text, secret = FORBIDDEN[data.draw(st.sampled_from(KINDS))]
    spelled = data.draw(st.sampled_from(CONTEXTS)).format(ENCODINGS[data.draw(st.sampled_from(sorted(ENCODINGS)))](text), "")
    call, route = drawn(bodies, data, spelled, as_name=data.draw(st.booleans()))
    answer = call.send(world.client)
    assert answer.status_code < 500, (route, spelled, answer.text)
    assert not is_in(f"{answer.text} {answer.headers}".encode(), secret)
    if answer.status_code < 300:
        # Accepted, because members that are not stored are not searched. The secret must not be stored.
        assert [name for name, found in columns().items() if is_in(found, secret)] == [], (route, spelled)


@given(data=st.data(), words=st.text(min_size=1, max_size=40))
def test_rejected_text_is_neither_stored_nor_echoed(
    world: CloudInstallation, bodies: Bodies, data: st.DataObject, words: str
) -> None:
    word = f"{words} cAnArY-{next(_numbers)}"
    call, route = drawn(bodies, data, word, as_name=data.draw(st.booleans()))
    answer = call.send(world.client)
    assert answer.status_code < 500, (route, word, answer.text)
    word = word.rpartition(" ")[2]
    if answer.status_code >= 400:
        assert not is_in(f"{answer.text} {answer.headers}".encode(), word), (route, answer.text)
        assert [name for name, found in columns().items() if is_in(found, word)] == []


def drawn(bodies: Bodies, data: st.DataObject, text: str, *, as_name: bool) -> tuple[Call, str]:
    """Return a request with a text as the value of a member or as the name of a new one, and its route."""
    route, base = data.draw(st.sampled_from(bodies))
    body = fresh(route, base.json, next(_numbers))
    pointer, _ = data.draw(st.sampled_from(list(leaves(body))))
    return base.with_json(changed(body, pointer, {text: text} if as_name else text)), route
