"""Which JSON the parser accepts, which it rejects with a specific reason, and that no input makes it slow or crashes it."""

import json
import pickle
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.strict_json import (
    MAX_DEPTH,
    MAX_VALUES,
    JsonFault,
    JsonValue,
    MalformedJson,
    canonical,
    has_too_many_values,
    parse,
)
from tests.support.corpora import CORPORA

JSON_FILES = sorted((CORPORA / "json" / "test_parsing").glob("*.json"))

needs_json_corpus = pytest.mark.skipif(not JSON_FILES, reason=f"no JSON corpus in {CORPORA}")
needs_strings_corpus = pytest.mark.skipif(
    not (CORPORA / "strings" / "blns.json").exists(), reason=f"no strings corpus in {CORPORA}"
)

# Valid by RFC 8259 but rejected here: parsers disagree about which of two equal members counts, and text in PostgreSQL
# cannot contain NUL.
VALID_BUT_REFUSED = {
    "y_object_duplicated_key.json": JsonFault.DUPLICATE_MEMBER,
    "y_object_duplicated_key_and_value.json": JsonFault.DUPLICATE_MEMBER,
    "y_object_escaped_null_in_key.json": JsonFault.NUL_CHARACTER,
    "y_string_null_escape.json": JsonFault.NUL_CHARACTER,
}


def reason_for(body: bytes, max_depth: int = MAX_DEPTH) -> JsonFault | None:
    try:
        parse(body, max_depth)
    except MalformedJson as malformed:
        return malformed.reason
    return None


REFUSED = [
    (b"", JsonFault.EMPTY),
    (b" \r\n\t", JsonFault.EMPTY),  # white space alone has no value
    (b"\xef\xbb\xbf{}", JsonFault.BYTE_ORDER_MARK),
    (b'"\xff"', JsonFault.NOT_UTF8),
    (b'"\xed\xa0\x80"', JsonFault.NOT_UTF8),  # a surrogate encoded in UTF-8
    (b'"\xc0\x80"', JsonFault.NOT_UTF8),  # an overlong encoding of NUL
    ('{"a": 1}'.encode("utf-16"), JsonFault.NOT_UTF8),
    (b"{", JsonFault.NOT_JSON),
    (b"{} {}", JsonFault.NOT_JSON),  # one text, not a sequence of them
    (b"{'a': 1}", JsonFault.NOT_JSON),
    (b"[1,]", JsonFault.NOT_JSON),
    (b"01", JsonFault.NOT_JSON),
    ("\u0661".encode(), JsonFault.NOT_JSON),  # a digit that JSON does not allow
    ("\u00a0{}".encode(), JsonFault.NOT_JSON),  # white space that JSON does not allow
    (b'"\x00"', JsonFault.NOT_JSON),  # an unescaped control character
    (b"nul", JsonFault.NOT_JSON),
    (b'{"a": 1, "a": 1}', JsonFault.DUPLICATE_MEMBER),
    (b'{"a": 1, "\\u0061": 2}', JsonFault.DUPLICATE_MEMBER),  # the same name with another spelling
    (b'[{"x": {"a": 1, "b": 2, "a": 3}}]', JsonFault.DUPLICATE_MEMBER),
    (b"NaN", JsonFault.NOT_FINITE_NUMBER),
    (b'{"a": -Infinity}', JsonFault.NOT_FINITE_NUMBER),
    (b"[1e999]", JsonFault.NOT_FINITE_NUMBER),
    (b"-1e309", JsonFault.NOT_FINITE_NUMBER),
    (b"9" * 400 + b".0", JsonFault.NOT_FINITE_NUMBER),
    (b"1" * 309, JsonFault.NUMBER_TOO_LONG),
    (b"-" + b"1" * 309, JsonFault.NUMBER_TOO_LONG),
    (b"1" * 5000, JsonFault.NUMBER_TOO_LONG),  # more digits than Python converts to an int
    (rb'"\u0000"', JsonFault.NUL_CHARACTER),
    (rb'{"a\u0000": 1}', JsonFault.NUL_CHARACTER),
    (rb'[{"a": ["x\u0000"]}]', JsonFault.NUL_CHARACTER),
    (rb'"\ud800"', JsonFault.LONE_SURROGATE),
    (rb'"\uDFFF"', JsonFault.LONE_SURROGATE),
    (rb'"\ude00\ud83d"', JsonFault.LONE_SURROGATE),  # a surrogate pair in the wrong order
    (rb'{"\ud800x": 1}', JsonFault.LONE_SURROGATE),
    (b"[" * 33 + b"]" * 33, JsonFault.TOO_DEEP),
    (b'{"a":' * 33 + b"1" + b"}" * 33, JsonFault.TOO_DEEP),
    (b'[{"a":' * 16 + b"[]" + b"}]" * 16, JsonFault.TOO_DEEP),  # arrays and objects are counted together
]


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_text_that_is_not_strict_json_is_rejected_by_name(body: bytes, reason: JsonFault) -> None:
    assert reason_for(body) == reason


ACCEPTED: list[tuple[bytes, JsonValue]] = [
    (b"null", None),
    (b"true", True),
    (b" 7\n", 7),
    (b'"text"', "text"),
    (b"-0.5e1", -5.0),
    (b"1e-999", 0.0),  # underflow results in zero, as in other parsers
    (b"1" * 308, int("1" * 308)),
    (b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}', {"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}),
    (b'{"a": 1, "A": 2}', {"a": 1, "A": 2}),
    (rb'"\ud83d\ude00"', "\U0001f600"),  # a pair is one character
    (rb'"\\u0000 \\ud800"', r"\u0000 \ud800"),  # escaped backslashes, not escape sequences
    ('"\u2028\ufeff\ufffe"'.encode(), "\u2028\ufeff\ufffe"),
    (b'"' + b"[" * 99 + b'\\"' + b"{" * 99 + b'"', "[" * 99 + '"' + "{" * 99),  # brackets within a string are not nesting
]


@pytest.mark.parametrize(("body", "value"), ACCEPTED)
def test_valid_strict_json_is_parsed(body: bytes, value: JsonValue) -> None:
    assert parse(body) == value


def test_thirty_two_levels_of_nesting_pass_however_many_arrays_have_them() -> None:
    deepest = b"[" * 31 + b"]" * 31
    assert reason_for(b"[" + b",".join([deepest] * 50) + b"]") is None
    assert reason_for(b"[" + b",".join([deepest] * 50 + [b"[" + deepest + b"]"]) + b"]") == JsonFault.TOO_DEEP


@pytest.mark.parametrize(
    ("unit", "values"), [(b"0", 1), (b"[]", 2), (b'{"a":0}', 2), (b'"a,[{"', 1), (b'{"a":{},"b":[]}', 5)]
)
def test_a_body_has_a_limited_number_of_values(unit: bytes, values: int) -> None:
    # Counted are commas and opening brackets: an empty array counts as two values.
    fits = MAX_VALUES // values
    assert reason_for(b"[" + b",".join([unit] * (fits - 1)) + b"]") is None
    assert reason_for(b"[" + b",".join([unit] * (fits + 1)) + b"]") == JsonFault.TOO_MANY_VALUES


def test_commas_and_brackets_within_a_text_are_no_values() -> None:
    assert reason_for(b'"' + b",[{" * MAX_VALUES + b'"') is None


def test_commas_in_names_and_texts_are_not_counted_as_values() -> None:
    members = {f"a{number},": "[,{" for number in range(MAX_VALUES - 1)}
    assert parse(json.dumps(members).encode()) == members


def test_short_texts_are_counted_without_a_search_for_each() -> None:
    body = b"[" + b'"",' * 1_300_000 + b"0]"
    started = time.process_time()
    assert has_too_many_values(body)
    assert time.process_time() - started < 0.3  # measured: 20 ms; scanning for each takes at least half a second


def test_the_maximum_depth_can_be_set_by_the_caller() -> None:
    assert reason_for(b"[[]]", max_depth=2) is None
    assert reason_for(b"[[]]", max_depth=1) == JsonFault.TOO_DEEP
    assert reason_for(b"1", max_depth=0) is None


ENDLESS = [
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b'[{"a":' * 100_000,
    b"[" * 1_000_000 + b'"' + b'\\"' * 20_000,
]


@pytest.mark.parametrize("body", ENDLESS)
def test_endless_nesting_is_refused_at_once(body: bytes) -> None:
    started = time.process_time()
    assert reason_for(body) == JsonFault.TOO_DEEP
    assert time.process_time() - started < 5


def test_endless_nesting_is_refused_on_a_small_stack() -> None:
    reasons: list[JsonFault | None] = []
    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: reasons.append(reason_for(b"[" * 100_000 + b"]" * 100_000)))
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    assert reasons == [JsonFault.TOO_DEEP]


def test_a_depth_beyond_the_interpreters_own_is_a_refusal_as_well() -> None:
    assert reason_for(b"[" * 90_000 + b"]" * 90_000, max_depth=1_000_000) == JsonFault.TOO_DEEP


MEBIBYTE = 1 << 20
LARGE = [
    b"[" + b"1," * (MEBIBYTE // 2) + b"1]",
    b"[" + b"[]," * (MEBIBYTE // 3) + b"1]",
    rb'["\u1234\\u0000",' + b'"",' * (MEBIBYTE // 3) + b"1]",  # a false alarm: every string has to be searched
    b"[" * 40 + b'"' + b'\\"' * (MEBIBYTE // 2),  # an unterminated string full of escaped quotes
    b"[" * 40 + b'"' * MEBIBYTE,
    b"[" + (b"1" * 308 + b",") * (MEBIBYTE // 309) + b"1]",
    b"1" * MEBIBYTE,
]


@pytest.mark.parametrize("body", LARGE, ids=range(len(LARGE)))
def test_a_mebibyte_of_anything_is_read_in_one_pass(body: bytes) -> None:
    started = time.process_time()
    reason_for(body)
    assert time.process_time() - started < 5  # measured: 2 to 160 ms; a quadratic step takes minutes


@pytest.mark.parametrize("body", [b'{"hunter2": }', b'"hunter2\xff"', b'{"hunter2": 1, "hunter2": 2}'])
def test_an_error_contains_nothing_of_the_body(body: bytes) -> None:
    with pytest.raises(MalformedJson) as caught:
        parse(body)
    assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.__dict__}"
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_the_exception_for_malformed_json_has_a_message_and_can_be_pickled() -> None:
    malformed = pickle.loads(pickle.dumps(MalformedJson(JsonFault.TOO_DEEP)))  # noqa: S301  our own bytes
    assert malformed.reason is JsonFault.TOO_DEEP
    assert str(malformed) == "The body is not strict JSON: it is nested more than 32 levels deep."
    assert str(MalformedJson(JsonFault.NOT_JSON)) == "The body is not strict JSON."
    assert isinstance(malformed, ValueError)


@needs_json_corpus
def test_the_corpus_is_complete() -> None:
    assert len(JSON_FILES) == 318
    assert VALID_BUT_REFUSED.keys() <= {file.name for file in JSON_FILES}


@needs_json_corpus
@pytest.mark.parametrize("file", [file for file in JSON_FILES if file.name[0] == "y"], ids=lambda file: file.name)
def test_texts_that_must_parse_are_accepted_unless_our_rules_reject_them(file: Path) -> None:
    body = file.read_bytes()
    assert reason_for(body) == VALID_BUT_REFUSED.get(file.name)
    if file.name not in VALID_BUT_REFUSED:
        assert parse(body) == json.loads(body)


@needs_json_corpus
@pytest.mark.parametrize("file", [file for file in JSON_FILES if file.name[0] == "n"], ids=lambda file: file.name)
def test_texts_that_must_not_parse_are_rejected(file: Path) -> None:
    assert reason_for(file.read_bytes()) is not None


@needs_json_corpus
@pytest.mark.parametrize("file", [file for file in JSON_FILES if file.name[0] == "i"], ids=lambda file: file.name)
def test_texts_that_may_parse_are_stored_or_rejected(file: Path) -> None:
    body = file.read_bytes()
    if reason_for(body) is None:
        assert parse(canonical(parse(body))) == parse(body)


@needs_strings_corpus
def test_naughty_strings_are_returned_unchanged_or_rejected_by_name() -> None:
    strings = json.loads((CORPORA / "strings" / "blns.json").read_bytes())
    assert len(strings) == 515
    for text in strings:
        assert parse(canonical({text: [text]})) == {text: [text]}
        assert parse(json.dumps([text]).encode()) == [text]  # with every escape sequence


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
def test_the_canonical_form_parses_to_the_same_value(value: JsonValue) -> None:
    assert parse(canonical(value), max_depth=1000) == value


@given(values)
def test_the_canonical_form_does_not_depend_on_spelling(value: JsonValue) -> None:
    spelled = json.dumps(value, indent=2, ensure_ascii=True).encode()
    assert canonical(parse(spelled, max_depth=1000)) == canonical(value)


@given(st.binary() | st.text(alphabet='[]{}",:\\u0dD89 1e.-tn').map(str.encode))
def test_any_bytes_are_a_value_or_a_refusal(body: bytes) -> None:
    if reason_for(body) is None:
        assert parse(canonical(parse(body))) == parse(body)


def test_the_canonical_form_has_sorted_names_and_no_white_space() -> None:
    assert canonical({"b": [1, 1.0, None], "a": "é\n", "B": True}) == '{"B":true,"a":"é\\n","b":[1,1.0,null]}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"\udfff": 1}])
def test_values_that_json_cannot_represent_have_no_canonical_form(value: JsonValue) -> None:
    with pytest.raises(ValueError, match=r"JSON|surrogates"):
        canonical(value)
