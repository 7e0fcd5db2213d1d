"""What is put where it does not belong comes out nowhere: in no answer, no log line and no table."""

from collections.abc import Callable
from pathlib import Path

import pytest
from falcon.testing import TestClient

from tests.factories import Customer, issue, make_target, postback
from tests.service.conftest import LogLines
from tests.service.exchange import (
    CANARY,
    EXPORTS,
    JSON,
    RESULTS,
    SCANNER,
    TARGETS,
    Call,
    everything_stored,
    prepared,
    target_request,
)

#: Headers that no route reads, and some that others read.
CARRIERS = (
    "User-Agent",
    "Referer",
    "Cookie",
    "Origin",
    "From",
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Email-Webhook-Secret",
    "X-Platform-Hmac-Sha256",
    "X-Anything",
    "Accept-Language",
    "Range",
    "If-Match",
)

#: Each route as a request that is served, and the scanner's with the bearer's header besides, and the other way round.
SERVED: dict[str, Callable[[TestClient, Customer], Call]] = {
    "results": lambda _, __: Call(
        "POST", RESULTS, (*SCANNER.items(), *JSON.items(), ("Authorization", f"Bearer {CANARY}"))
    ).with_json({**postback(5), CANARY: CANARY, "page": {**postback()["page"], CANARY: {CANARY: [CANARY]}}}),
    "register": lambda _, customer: Call(
        "POST", TARGETS, (*customer.bearer.items(), *JSON.items(), ("X-Scanner-Secret", CANARY))
    ).with_json(target_request()),
    "approve": lambda client, customer: Call(
        "POST",
        f"{EXPORTS}/{prepared(client)}/approve",
        (*customer.bearer.items(), *JSON.items(), ("X-Scanner-Secret", CANARY)),
    ).with_json({"target_id": make_target(customer).id}),
    "read": lambda client, customer: Call(
        "GET", f"{EXPORTS}/{prepared(client)}", (*customer.bearer.items(), ("If-None-Match", f'"{CANARY}"'))
    ),
    "health": lambda _, __: Call("GET", "/healthz"),
    "readiness": lambda _, __: Call("GET", "/readyz"),
    "unknown": lambda _, __: Call("GET", f"/{CANARY}/{CANARY}"),
}

#: Where a value stands that is refused; nothing of it may be kept.
REFUSED: dict[str, Callable[[TestClient, Customer], Call]] = {
    "the scanner's secret": lambda _, __: Call("POST", RESULTS, (("X-Scanner-Secret", CANARY), *JSON.items())).with_json(
        postback()
    ),
    "a token": lambda _, __: Call("GET", f"{EXPORTS}/exp_1", (("Authorization", f"Bearer {CANARY}"),)),
    "an id": lambda _, customer: Call("GET", f"{EXPORTS}/exp_{CANARY}", tuple(customer.bearer.items())),
    "a body": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items()), CANARY.encode()),
    "a title": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(
        postback(issues=[issue(title=CANARY, description=CANARY), issue(title=[CANARY])])
    ),
    "a page": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(
        postback(page={"url": CANARY})
    ),
    "an address": lambda _, customer: Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(
        target_request(f"https://{CANARY}.example.com/{CANARY}?{CANARY}")
    ),
    "a member": lambda _, customer: Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(
        {**target_request(), CANARY: CANARY}
    ),
    "a target": lambda client, customer: Call(
        "POST", f"{EXPORTS}/{prepared(client)}/approve", (*customer.bearer.items(), *JSON.items())
    ).with_json({"target_id": CANARY, "ticket_digest": CANARY}),
    "a key with a refused body": lambda _, customer: Call(
        "POST", TARGETS, (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", CANARY))
    ).with_json({}),
    "a media type": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), ("Content-Type", f"text/{CANARY}")), b"{}"),
    "an Accept": lambda client, customer: Call(
        "GET", f"{EXPORTS}/{prepared(client)}", (*customer.bearer.items(), ("Accept", f"text/{CANARY}"))
    ),
    "a request id": lambda _, __: Call("GET", "/healthz", (("X-Request-Id", f"{CANARY} {CANARY}"),)),
}

CASES = {**SERVED, **REFUSED}


@pytest.mark.parametrize("case", CASES)
def test_a_canary_is_never_seen_again(case: str, client: TestClient, customer: Customer, log_lines: LogLines) -> None:
    call = CASES[case](client, customer)
    call = call.plus(*((name, CANARY) for name in CARRIERS))
    spoiled = Call(call.method, call.path, call.headers, call.body, query=f"{CANARY}={CANARY}&token={CANARY}")

    answer = spoiled.send(client)

    assert (answer.status_code < 300) is ((case in SERVED and case != "unknown") or case == "a request id"), answer.text
    assert CANARY not in answer.text
    assert CANARY not in repr(sorted(answer.headers.items()))
    assert CANARY not in log_lines.text
    assert CANARY not in repr(everything_stored())


def test_secrets_stand_in_no_table_and_no_log(
    client: TestClient, customer: Customer, log_lines: LogLines, tmp_path: Path
) -> None:
    export_id, target = prepared(client), make_target(customer)
    headers = (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", "k"))
    Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json({"target_id": target.id}).send(client)
    stored = repr(everything_stored())
    for secret in (customer.token, *SCANNER.values()):
        assert secret not in stored
        assert secret not in log_lines.text
