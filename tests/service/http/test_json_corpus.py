"""Every file of a public corpus of JSON texts, posted to the scanner route: refused or served, never an error of ours."""

import pytest
from falcon.testing import TestClient

from tests.support.corpora import CORPORA
from tests.support.http.raw_http import JSON, RESULTS, SCANNER, Call

FILES = sorted((CORPORA / "json" / "test_parsing").glob("*.json"))


@pytest.mark.skipif(not FILES, reason=f"no JSON corpus in {CORPORA}")
def test_no_text_of_the_corpus_breaks_the_scanner_route(client: TestClient) -> None:
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items()))
    answers = {file.name: Call(call.method, call.path, call.headers, file.read_bytes()).send(client) for file in FILES}
    # None of them is a postback, so those that parse are refused for their shape.
    others = {name: answer.status_code for name, answer in answers.items() if answer.status_code != 422}
    assert others == {}
    faults = {name: answer.json["error"]["details"]["fields"][0]["code"] for name, answer in answers.items()}
    assert {name for name, code in faults.items() if name.startswith("n_") and code != "malformed_json"} == set()
