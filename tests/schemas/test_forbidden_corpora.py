"""Public corpora: every card number and nearly every secret is found, and other text passes."""

import base64
import gzip
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import pytest

from schemas.content_policy.rules import find
from tests.support.corpora import CORPORA

#: Incomplete samples, cut out of their generator's source code: calls and format strings, the source of a regular
#: expression, and the mere name of a rule.
FRAGMENT: Final = re.compile(r"secrets\.NewSecret\(|fmt\.Sprintf\(|=%s\Z|\[[^]\s]{3,}\]\{|\A\w{0,15}\Z")
#: The complete samples that pass, by a characteristic part, and the reason.
MISSED: Final = {
    "{acd3c08b-74e8-4f44-a2d0-80694le24f46}": "in braces, like a template's variables",
    '"myuserid:mypassword"': "words, like those of a manual",
    "Basic $BASIC_TOKEN": "a variable",
    '"type": "service_account"': "says what a file is, and holds none of it",
    "sourcegraph: 6d2F": "forty hex digits, like any commit of that project",
}
#: Samples that one vendor's rule does not match, by a characteristic part, and why they are rejected anyway.
REFUSED_ANYHOW: Final = {
    "sk-ant-admin01-abc123xyz": "whole, and of the form that another of its vendor's rules takes",
    "sk-ant-api03-abc123xyz-456def": "the same",
    "OP_SERVICE_ACCOUNT_TOKEN=ops_eyJzaWduSW5B": "the first 44 characters of a key",
    "DATABRICKS_TOKEN=dapi1234": "letters and digits, assigned to a token",
    "meraki-api-key: acdeFf05": "the same, to a key",
}


@cache
def corpus(*parts: str) -> Any:
    file = CORPORA.joinpath(*parts)
    if not file.exists():
        pytest.skip(f"no {'/'.join(parts)} in {CORPORA}")
    content = file.read_bytes()
    return json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)


def codes(value: Any) -> set[str]:
    return {problem.code for problem in find(value, frozenset())}


def secrets(kind: str) -> list[str]:
    return [sample["text"] for sample in corpus("secrets", "gitleaks-rule-vectors.json.gz")[kind]]


def _written(number: str) -> Iterator[str]:
    yield number
    places = (4, 10) if number.startswith("3") and len(number) == 15 else (4, 8, 12)
    for between in (" ", "-", ".", "\u00a0"):
        yield between.join(number[start:end] for start, end in zip((0, *places), (*places, None), strict=True))


def _placed(text: str) -> Iterator[Any]:
    yield text
    yield f"Please charge {text}, thank you."
    yield [{"a": [{"b": {text: None}}]}]
    deep: Any = f"({text})"
    for _ in range(15):
        deep = {"member": [deep]}
    yield deep
    yield base64.b64encode(text.encode()).decode()
    yield f"https://shop.example/?q={base64.urlsafe_b64encode(f'pay {text}'.encode()).decode()}"
    yield quote(f"/pay/{text}/")
    yield "".join(f"%{byte:02x}" for byte in text.encode())
    yield "".join(f"&#{ord(character)};" for character in text)
    yield html.escape(f'"{text}"')


def test_every_card_number_is_found_however_it_is_written_and_wherever_it_stands() -> None:
    numbers = {card["pan"] for card in corpus("payments", "braintree-test-pans.json")}
    missed = [
        value
        for number in numbers
        for text in _written(number)
        for value in _placed(text)
        if "card_number" not in codes(value)
    ]
    assert missed == []
    assert [number for number in numbers if codes({"n": int(number)}) != {"card_number"}] == []
    assert len(numbers) > 30


def test_every_false_positive_of_the_secrets_passes() -> None:
    samples = secrets("false_positive")
    refused = [text for text in samples if codes(text)]
    assert [text for text in refused if not any(piece in text for piece in REFUSED_ANYHOW)] == []
    assert len(refused) == len(REFUSED_ANYHOW)
    assert len(samples) > 200


def test_nearly_every_whole_secret_is_found() -> None:
    # A sample of both kinds matches only one of its vendor's rules; here it may pass.
    disputed = set(secrets("false_positive"))
    whole = [text for text in secrets("true_positive") if not FRAGMENT.search(text) and text not in disputed]
    missed = [text for text in whole if not codes(text)]
    unexpected = [text for text in missed if not any(piece in text for piece in MISSED)]
    assert (unexpected, len(missed)) == ([], len(MISSED))
    assert len(missed) < 0.1 * len(whole)
    assert len(whole) > 80


def test_no_naughty_string_is_refused() -> None:
    # None contains a credential, a card number, a document or a dump; the SQL in them is an injection.
    strings = corpus("strings", "blns.json")
    assert [(place, text) for place, text in enumerate(strings) if codes({"title": text})] == []
    assert codes(strings) == set()
    # As a member name, a path that ends with passwd is rejected for its ending.
    assert [text for text in strings if codes({text: "a"}) and "passwd" not in text] == []


def test_the_texts_of_the_other_corpora_pass() -> None:
    addresses = corpus("urls", "urltestdata.json")
    texts = [case["input"] for case in addresses if isinstance(case, dict)]
    refused = [text for text in texts if codes(text) - {"url_credentials"}]
    assert refused == []
    # Texts rejected as URLs with a password contain one.
    assert [text for text in texts if codes(text) and not re.search(r"://[^/]*:[^/]+@", text)] == []
