"""Every file of a public corpus of JSON texts is rejected or accepted by the scanner route, without an internal error."""

import pytest
from falcon.testing import TestClient

from tests.support.corpora import CORPORA
from tests.support.http.raw_http import JSON, RESULTS, SCANNER, Call

FILES = sorted((CORPORA / "json" / "test_parsing").glob("*.json"))


@pytest.mark.skipif(not FILES, reason=f"no JSON corpus in {CORPORA}")
def test_every_text_of_the_json_corpus_is_rejected_by_the_scanner_route(client: TestClient) -> None:
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items()))
    answers = {file.name: Call(call.method, call.path, call.headers, file.read_bytes()).send(client) for file in FILES}
    # None of them is a postback, so those that can be parsed are rejected for their structure.
    others = {name: answer.status_code for name, answer in answers.items() if answer.status_code != 422}
    assert others == {}
    faults = {name: answer.json["error"]["details"]["fields"][0]["code"] for name, answer in answers.items()}
    assert {name for name, code in faults.items() if name.startswith("n_") and code != "malformed_json"} == set()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark."),
        (b'{"a": 1, "a": 2}', "an object has two members of the same name."),
        (b"[" * 33 + b"]" * 33, "it is nested more than 32 levels deep."),
        (b'{"a": "\\u0000"}', "a string contains a NUL character."),
        (b"[" + b"1," * 100_000 + b"1]", "100,000 values."),
        (b"{", "The request body is not valid JSON."),
    ],
)
def test_the_message_says_what_is_wrong_with_the_json(body: bytes, message: str, client: TestClient) -> None:
    answer = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items()), body).send(client)
    [field] = answer.json["error"]["details"]["fields"]
    assert field["message"].endswith(message)
