"""Third-party samples that break parsers, in every body and every text: stored without changes, or rejected.

`make test` sends each sample to one route in one place, in rotation; `make fuzz` sends each to every route in every place.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.content_policy import rules
from tests.support.corpora import CORPORA, naughty_strings, secrets, url_texts
from tests.support.http.raw_http import everything_stored
from tests.support.http.request_bodies import WHICH, calls, patient_world, put, send, send_raw, texts
from tests.support.http.specification import CloudInstallation

JSON_TEXTS: Final = sorted((CORPORA / "json" / "test_parsing").glob("*.json"))
IS_LONG: Final = settings.get_current_profile_name() == "long"
#: URLs are sent to both databases in long runs. For a database they are texts like the other samples.
BOTH: Final = ("sqlite", "postgresql")
#: The statuses that are allowed for a body with a sample in one place.
ANSWERS: Final = {200, 201, 202, 204, 403, 409, 422}


@pytest.fixture(scope="module")
def world(module_database: Path) -> CloudInstallation:
    """One installation for all samples on each kind of database; samples do not depend on each other."""
    return patient_world(module_database)


def places_of(world: CloudInstallation, which: str) -> tuple[Any, list[tuple[Any, ...]]]:
    body = json.loads(calls(world)[which].body)
    return body, list(texts(body))


def spread(which: str, samples: Sequence[str], places: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of sample and place: all pairs in long runs, otherwise this route's share with one place each."""
    if IS_LONG:
        yield from product(samples, places)
    else:
        share = samples[WHICH.index(which) :: len(WHICH)]
        yield from ((sample, places[number % len(places)]) for number, sample in enumerate(share))


def refusals(answer: Any) -> list[Mapping[str, str]]:
    """Return the field errors of a 422, which must have some."""
    reported: list[Mapping[str, str]] = answer.json["error"]["details"]["fields"]
    assert reported
    return reported


@pytest.mark.skipif(not JSON_TEXTS, reason=f"no JSON corpus in {CORPORA}")
@pytest.mark.parametrize("which", WHICH)
def test_every_text_of_the_json_corpus_gets_422_and_changes_nothing(which: str, world: CloudInstallation) -> None:
    """None of the texts is a valid body, so texts that parse are rejected because of their shape."""
    before = everything_stored()
    files = JSON_TEXTS if IS_LONG else JSON_TEXTS[WHICH.index(which) :: len(WHICH)]
    answers = {file.name: send_raw(world, which, file.read_bytes()) for file in files}
    assert {name: answer.status_code for name, answer in answers.items() if answer.status_code != 422} == {}
    codes = {name: refusals(answer)[0]["code"] for name, answer in answers.items()}
    assert {name for name, code in codes.items() if name.startswith("n_") and code != "malformed_json"} == set()
    assert everything_stored() == before


#: Requests whose response shows the stored text: captures, diagnostics and manual exports.
SHOWN: Final = {"6", "7", "8", "by hand"}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("module_database", BOTH if IS_LONG else BOTH[:1], indirect=True)
def test_a_url_is_stored_unchanged_or_rejected_with_field_errors(which: str, world: CloudInstallation) -> None:
    body, places = places_of(world, which)
    addresses = [place for place in places if place[-1] not in {"message_id", "id"}]
    for text, place in spread(which, url_texts(), addresses):
        answer = send(world, which, put(body, place, text))
        assert answer.status_code in ANSWERS, (text, place, answer.text)
        if answer.status_code == 422:
            assert len(refusals(answer)[0]["path"]) < 200
        if answer.status_code == 201 and which in SHOWN:
            assert is_reported(text, answer.json), (text, place)


@pytest.mark.parametrize("which", WHICH)
def test_a_naughty_string_is_stored_unchanged_or_rejected_with_field_errors(which: str, world: CloudInstallation) -> None:
    body, places = places_of(world, which)
    for text, place in spread(which, naughty_strings(), places):
        answer = send(world, which, put(body, place, text))
        assert answer.status_code in ANSWERS, (text, place, answer.text)
        if answer.status_code == 422:
            refusals(answer)
        # A severity is stored as one of a few words.
        if answer.status_code == 201 and which in SHOWN and place[-1] != "severity":
            assert is_reported(text, answer.json), (text, place)


@pytest.mark.parametrize("which", [which for which in WHICH if which != "9"])
def test_a_secret_in_any_field_is_rejected_and_neither_stored_nor_echoed(which: str, world: CloudInstallation) -> None:
    """Compliance webhooks are not searched, because they must contain personal data. A message id is stored as a digest."""
    body, places = places_of(world, which)
    places = [place for place in places if place[-1] != "message_id"]
    before = everything_stored()
    known = [text for text in secrets() if rules.find(text, frozenset())]
    for text, place in spread(which, known, places):
        answer = send(world, which, put(body, place, text))
        assert answer.status_code == 422, (text, place, answer.text)
        # The error may be about the form of an email address or URL instead.
        assert refusals(answer)
        assert text not in answer.text, (text, place)
    assert len(known) > 80
    assert everything_stored() == before


def is_reported(text: str, answer: Any) -> bool:
    """Return whether a response contains a text: always true for an empty one. Domains are returned in lower case."""
    return not text or text in (reported := set(all_texts(answer))) or text.lower() in reported


def all_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from all_texts(each)


@given(data=st.data())
def test_no_mutation_of_a_valid_body_causes_a_server_error(world: CloudInstallation, data: st.DataObject) -> None:
    """Bytes are changed, removed, repeated or added. Most results are no JSON; some are other valid JSON."""
    which = data.draw(st.sampled_from(WHICH))
    raw = calls(world)[which].body
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), begin + data.draw(st.integers(0, 8)))
        new = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from(PIECES), st.just(raw[begin:end] * 2)))
        raw = raw[:begin] + new + raw[end:]
    answer = send_raw(world, which, raw)
    assert answer.status_code in ANSWERS, (which, raw, answer.text)


#: Bytes that parsers treat specially.
PIECES: Final = [
    *(
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\\u0000",
        b"\\ud800",
        b"\\u202e",
        b'"',
        b"\\",
        b"\n",
        b"//",
        b"/**/",
    ),
    *(b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"1e999", b"-0", b"1" * 400, b"[" * 40, b'{"a":' * 40, b'""'),
]
