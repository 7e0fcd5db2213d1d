"""Valid requests to every route with a body, and functions that change their bodies."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from falcon.testing import Result, TestClient

from service.app import create_app
from tests.support.factories import make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, Call
from tests.support.http.specification import CloudInstallation, everything, make_world, signed

#: The endpoints of the specification that have a body. WHICH has these, and the creation of a manual export.
ENDPOINTS: Final = (1, 2, 3, 4, 6, 7, 8, 9)
WHICH: Final = (*map(str, ENDPOINTS), "by hand")
BY_HAND: Final = {
    "ticket": {
        "title": "Missing name",
        "description": "The field has no name.",
        "severity": "high",
        "page_url": "https://shop.example/",
        "labels": ["a11y"],
        "evidence": {"rule": "label"},
    },
    "source": {"type": "manual", "id": "note-1"},
}


def patient_world(folder: Path) -> CloudInstallation:
    """Fill the open database with an installation whose rate limit is high enough for many independent requests."""
    customer = make_customer()
    reported = make_settings(folder, {**everything(customer), "RATE_LIMIT_PER_MINUTE": "1000000"})
    wake_ups = FakeWakeUpQueue()
    client = TestClient(create_app(reported, wake_ups, FakeResolver({"tracker.example.com": ["93.184.215.14"]})))
    return make_world(reported, client, wake_ups, customer)


def calls(world: CloudInstallation) -> dict[str, Call]:
    """Return a valid request for each name in WHICH."""
    return {which: call_of(world, which) for which in WHICH}


def call_of(world: CloudInstallation, which: str) -> Call:
    """Return the valid request for one name in WHICH."""
    if which == "by hand":
        return Call("POST", EXPORTS, world.call(4).headers).with_json(BY_HAND)
    return world.call(int(which))


def send(world: CloudInstallation, which: str, body: Any) -> Result:
    """Send the request for a name with another body.

    It has a new idempotency key. Without one, the service would treat an upload of the same page and text as a repeat.
    """
    call = call_of(world, which).with_json(body).plus(("Idempotency-Key", str(uuid4())))
    return (signed(call) if which == "9" else call).send(world.client)


def send_raw(world: CloudInstallation, which: str, raw: bytes) -> Result:
    """Send the request for a name with these bytes as its body."""
    valid = call_of(world, which)
    call = Call(valid.method, valid.path, valid.headers, raw)
    return (signed(call) if which == "9" else call).send(world.client)


def changed(body: Any, path: list[int], how: str, name: str, value: Any) -> Any:
    """Return the body after one change at `path`: a value that is replaced, removed (`how`) or added."""
    if not path or not isinstance(body, dict | list) or not body:
        return value
    place = sorted(body)[path[0] % len(body)] if isinstance(body, dict) else path[0] % len(body)
    if len(path) == 1 and how == "remove":
        del body[place]
    elif len(path) == 1 and how == "add" and isinstance(body, dict):
        body[name] = value
    else:
        body[place] = changed(body[place], path[1:], how, name, value)
    return body


def texts(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every string in a body."""
    if isinstance(body, str):
        yield path
    elif isinstance(body, dict | list):
        for place in body if isinstance(body, dict) else range(len(body)):
            yield from texts(body[place], (*path, place))


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the body with `value` at a path."""
    copy = deepcopy(body)
    inner = copy
    for place in path[:-1]:
        inner = inner[place]
    inner[path[-1]] = value
    return copy
