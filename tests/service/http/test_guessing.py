"""The cost of a guess does not reveal how close it was: complete digests are looked up and compared, not prefixes.

`python -m bench.requests.guessing` measures the times; time itself is too unreliable for a test.
"""

import hashlib
import re
from collections.abc import Mapping

import pytest
from falcon.testing import TestClient

from storage.accounts import tokens
from tests.support.database.query_plans import SqlStatement, plan_of, statements
from tests.support.factories import SCANNER_SECRET, Customer, make_exports
from tests.support.http.raw_http import EXPORTS, JSON, RESULTS, TARGETS

_DIGEST = re.compile(r"[0-9a-f]{64}")


def guesses_of(token: str) -> dict[str, str]:
    """Return well-formed tokens that share more and more characters with the valid one, by the number of these."""
    last = "1" if token[30] == "0" else "0"
    random = {"nothing": "A" * 27, "ten": token[4:14] + "A" * 17, "all but one": token[4:30] + last}
    # The last six digits are a checksum that anybody who has read the source can compute.
    return {name: f"{tokens.PREFIX}{text}{tokens._checksum(text)}" for name, text in random.items()}


@pytest.mark.parametrize("path", [TARGETS, f"{EXPORTS}/{{}}"])
def test_a_token_is_looked_up_by_the_digest_of_all_of_it(path: str, client: TestClient, customer: Customer) -> None:
    path = path.format(*make_exports(customer, 1))
    right = hashlib.sha256(customer.token.encode()).hexdigest()
    assert lookup(client, path, customer.bearer, 200).parameters[-2] == right
    ran = {}
    for name, text in guesses_of(customer.token).items():
        statement = lookup(client, path, {"Authorization": f"Bearer {text}"}, 401)
        digest = statement.parameters[-2]
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        # The attacker cannot choose the start of a digest, and the index is searched for the whole digest.
        assert _DIGEST.fullmatch(digest)
        assert any("tokens" in step or "token_sha256" in step for step in plan_of(statement))
        ran[name] = statement.sql
    assert len(set(ran.values())) == 1


def lookup(client: TestClient, path: str, headers: Mapping[str, str], status: int) -> SqlStatement:
    """Send a request and return the statement that looks up the token; a wrong token causes no other statement."""
    with statements() as ran:
        assert client.simulate_get(path, headers=dict(headers)).status_code == status
    [asked] = [each for each in ran if "token_sha256" in each.sql]
    assert status == 200 or ran == [asked]
    return asked


def test_every_wrong_secret_causes_the_same_single_statement(client: TestClient) -> None:
    """There is one statement, which reads the current secret; the received secret is part of no statement."""
    ran: list[list[tuple[str, tuple[object, ...]]]] = []
    nearly = (SCANNER_SECRET[:10], SCANNER_SECRET[:-1], f"{SCANNER_SECRET}x", SCANNER_SECRET.upper())
    for guess in ("", "x", *nearly, "x" * 5000):
        with statements() as asked:
            answer = client.simulate_post(RESULTS, headers={**JSON, "X-Scanner-Secret": guess}, body=b"{}")
        assert answer.status_code == 401
        ran.append([(each.sql, tuple(each.parameters)) for each in asked])
    assert all(each == ran[0] for each in ran)
    assert len(ran[0]) == 1
