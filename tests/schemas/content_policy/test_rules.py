"""Which content is rejected and at which path, and which passes: by tables, with random values, and in linear time."""

import base64
import html
import random
import re
import string
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import pytest

from schemas.content_policy.field_names import FORBIDDEN_NAMES
from schemas.content_policy.rules import MAX_CHECKS, MAX_PROBLEMS, MESSAGES, RULES, find, find_each
from schemas.exports.tickets.ticket_text import preview_problems, ticket_for_finding
from schemas.intake.scanner import PostbackForm
from storage.db.identifiers import CAPTURE, EXPORT, TARGET, new_id
from tests.support.factories import NOW, issue, postback

KNOWN: Final = frozenset({"page", "url", "responseHeaders", "issues", "title", "evidence"})

CARD: Final = "4111111111111111"
#: Random letters and digits, so that this file contains no complete token.
BODY: Final = "aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC" * 9
HEX: Final = "0b1d3f5a7c9e2048d6af" * 9
#: {"alg":"HS256","typ":"JWT"} and {"sub":"1","name":"Ann","iat":1700000000}.
JWT_HEADER: Final = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"
JWT: Final = f"{JWT_HEADER}.eyJzdWIiOiIxIiwibmFtZSI6IkFubiIsImlhdCI6MTcwMDAwMDAwMH0.{BODY[:43]}"
#: Two lines that look like a key.
KEY_BODY: Final = f"MIIEvQ{BODY[:58]}\n{BODY[:64]}"


def codes(value: Any) -> list[str]:
    return [problem.code for problem in find(value, KNOWN)]


def reported(value: Any) -> list[tuple[str, str]]:
    return [(problem.path, problem.code) for problem in find(value, KNOWN)]


@pytest.mark.parametrize("name", FORBIDDEN_NAMES)
def test_each_listed_name_is_refused_in_every_spelling(name: str) -> None:
    words = name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    pascal = "".join(word.title() for word in words)
    spellings = [name, name.upper(), "-".join(words), "".join(words), camel, pascal, f"admin_{name}", f"customer{pascal}"]
    assert {spelling: reported({spelling: None}) for spelling in spellings} == {
        spelling: [(f"/{name}", "forbidden_name")] for spelling in spellings
    }


NAMES = [
    ("admin_password", "password"),
    ("customerBillingAddress", "billing_address"),
    ("X-Api-Key", "api_key"),
    ("APIKey", "api_key"),
    ("sessionID", "session_id"),
    ("has_cookies", "cookies"),  # the end of the name decides, whatever the value
    ("password2", "password"),  # a trailing number is ignored
    ("CVV2", "cvv"),
    ("s-e-c-r-e-t", "secret"),  # normalization results in the listed name
    ("db password", "password"),
    ("proxy-authorization", "authorization"),
    ("x" * 5000 + "_secret", "secret"),  # the end decides even for a very long name
]


@pytest.mark.parametrize(("name", "listed"), NAMES)
def test_a_forbidden_end_of_a_longer_name_is_refused(name: str, listed: str) -> None:
    assert reported({name: "-"}) == [(f"/{listed}", "forbidden_name")]


@pytest.mark.parametrize(
    "name",
    [
        "session_identity",  # it ends with another word
        "cookie_banner_text",  # only the end counts
        "apikeyless",
        "password_hint_is_missing",
        "secretary",
        "adminpassword",  # no word boundary
        "ibanez",
        "",
        "access-control-allow-credentials",  # a standard header, and a flag
        "Access-Control-Allow-Credentials",
        "token",
        "address",
        "email",
        "www-authenticate",
    ],
)
def test_a_name_that_only_resembles_a_forbidden_one_passes(name: str) -> None:
    assert reported({name: "a"}) == []


def test_forbidden_names_are_found_at_any_depth() -> None:
    value: Any = {"password": "x"}
    for _ in range(15):
        value = {"evidence": [value]}
    assert reported(value) == [("/evidence/0" * 15 + "/password", "forbidden_name")]


PATHS = [
    # a card number at a path of known names
    ({"page": {"url": CARD}}, "/page/url"),
    # an index is part of the path
    ({"issues": [{"title": "fine"}, {"title": CARD}]}, "/issues/1/title"),
    # an unknown name ends the path at its parent, whatever follows
    ({"page": {"mine": {"url": [CARD]}}}, "/page"),
    ({"mine": CARD}, ""),
    # a forbidden name may be part of the path
    ({"page": {"old_password": {"url": CARD}}}, "/page/password/url"),
    # a forbidden member name is reported at its object
    ({"page": {CARD: 1}}, "/page"),
    # a list alone, and a text alone
    ([[CARD]], "/0/0"),
    (CARD, ""),
]


@pytest.mark.parametrize(("value", "path"), PATHS)
def test_a_path_is_made_of_our_own_names_alone(value: Any, path: str) -> None:
    assert (path, "card_number") in reported(value)
    assert all(place == path for place, code in reported(value) if code == "card_number")


def test_problems_do_not_repeat_submitted_text() -> None:
    problems = find({"evil<name>": {"evil_password": [f"evil {CARD}"]}}, KNOWN)
    assert [(problem.path, problem.code) for problem in problems] == [("", "forbidden_name"), ("", "card_number")]
    assert not any("evil" in str(problem) or CARD in str(problem) for problem in problems)


def test_a_forbidden_header_names_the_fix() -> None:
    [problem] = find({"page": {"responseHeaders": {"Set-Cookie": "a", "server": "nginx"}}}, KNOWN)
    assert (problem.path, problem.code) == ("/page/responseHeaders/set_cookie", "forbidden_header")
    assert "remove Set-Cookie" in problem.message


def test_problems_of_names_precede_those_of_texts_and_order_records() -> None:
    value = {"page": {"title": CARD, "email": "a@b.example", "total": 5}, "secret": 1}
    assert codes(value) == ["forbidden_name", "card_number", "order_record"]


def test_every_code_has_its_sentence() -> None:
    assert {rule.code for rule in RULES} | {"forbidden_name", "forbidden_header", "order_record"} == set(MESSAGES)
    sentence = re.compile(r"(Contains|Looks like|Fields with|This header) .*[a-zA-Z]\.")
    assert all(map(sentence.fullmatch, MESSAGES.values()))


def test_the_same_problem_is_reported_once() -> None:
    assert reported({"mine": [CARD] * 9, "yours": CARD}) == [("", "card_number")]


def test_no_more_problems_are_reported_than_a_sender_can_use() -> None:
    assert len(find([CARD] * (MAX_PROBLEMS + 1), KNOWN)) == MAX_PROBLEMS


@pytest.mark.parametrize("other", [None, True, False, 0, 0.5, [], {}, "words"])
def test_a_value_without_text_beside_a_violation_is_not_reported(other: Any) -> None:
    assert reported([other, {"title": other}, CARD]) == [("/2", "card_number")]


@pytest.mark.parametrize(("text", "found"), [("a://:bcd@e", ["url_credentials"]), ("://:bcd@e", [])])
def test_a_text_of_less_than_ten_characters_breaks_no_rule(text: str, found: list[str]) -> None:
    assert codes({"title": text}) == found
    assert codes({text: "title"}) == found


def test_duplicates_do_not_hide_another_problem() -> None:
    assert reported([*([{"mine": CARD}] * 10), {"url": JWT}])[-1] == ("/10/url", "jwt")
    assert reported({"mine": [CARD] * (MAX_PROBLEMS * 2), "url": JWT}) == [("", "card_number"), ("/url", "jwt")]


CARDS = [
    CARD,
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "4111.1111.1111.1111",
    "4111\u00a01111\u00a01111\u00a01111",
    "4111 - 1111 - 1111 - 1111",
    "4111 1111 1111 1111 12/27 123",  # with the other numbers printed on a card
    "4111111111111111, 12/27",
    "1001,4111111111111111,12/27",  # a row of a table
    "VISA 4111 1111 1111 1111",
    "n=4111+1111+1111+1111&m=12",  # form data
    "4242424242424242",  # few different digits
    "5555555555554444",
    "2223003122003222",
    "378282246310005",
    "3782 822463 10005",
    "3782-822463-10005",
    "6011 1111 1111 1117",
    "4111\u20031111\u20031111\u20031111",  # an em space, as used in typesetting
    "4111\u30001111\u30001111\u30001111",  # an ideographic space
    "4111\u200b1111\u200b1111\u200b1111",  # an invisible line break opportunity
    "4111\u22121111\u22121111\u22121111",  # a minus sign
    "\uff14111111111111111".translate({ord("1"): "\uff11"}),  # fullwidth digits
    "\uff14111\u30001111\u30001111\u30001111".translate({ord("1"): "\uff11"}),
    "3566002020360505",
    "6200000000000005",
    "3622 720627 1667",  # 14 digits with the usual grouping
    "36227206271667",  # without spaces, if nothing adjoins it
    "6205500000000000004",  # the same for 19 digits of UnionPay
    "Visa: 4000000000000000006",  # other issuers' 19 digits count only after a word for a card
]
NO_CARDS = [
    "4111111111111112",  # wrong check digit
    "1111111111111117",  # no issuer
    "4222222222222",  # 13 digits are an EAN
    "variant=36227206271667",  # 14 digits without spaces after the name of an ID
    "order 36227206271667",
    "36227206271667.jpg",
    "30112345678996",  # also has a valid barcode check digit
    "snowflake 6205500000000000004",
    "4000000000000000006",  # 19 digits without spaces are a 64-bit ID
    "+378282246310005",  # 15 digits after a plus sign are a phone number
    "0.4111111111111111",
    "0,4111111111111111",
    "4111111111111111.5",
    "a4111111111111111",
    "4111111111111111f",
    "IMG_4111111111111111.jpg",
    "DE44 4111 1111 1111 1111",  # groups of an IBAN
    "12345678-4111-1111-1111-111111111111",  # a UUID
    "411111 1111111111",
]


@pytest.mark.parametrize("text", CARDS)
def test_a_card_number_is_refused_in_every_usual_notation(text: str) -> None:
    assert codes({"evidence": {"note": f"said: {text}."}}) == ["card_number"]
    assert codes({text: "a member's name"}) == ["card_number"]


@pytest.mark.parametrize("text", NO_CARDS)
def test_numbers_that_are_no_card_numbers_pass(text: str) -> None:
    assert codes(text) == []


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (4111111111111111, ["card_number"]),
        (4111111111111111.0, ["card_number"]),
        (378282246310005, ["card_number"]),
        (4111111111111112, []),
        (-4111111111111111, ["card_number"]),
        (1e300, []),
        (10**300, []),
        (0.4111111111111111, []),
        (True, []),
    ],
)
def test_a_json_number_is_read_as_its_digits(number: float, found: list[str]) -> None:
    assert codes({"evidence": [number]}) == found


TOKENS = [
    ("rrt_", BODY[:33]),  # our own tokens
    ("ghp_", BODY[:36]),
    ("github_pat_", f"{BODY[:22]}_{BODY[:59]}"),
    ("glpat-", BODY[:20]),
    ("AKIA", "Q3EGR7WXZ5TBCDNM"),
    ("xoxb-", f"123456789012-1234567890123-{BODY[:24]}"),
    ("xoxp-", f"123456789012-123456789012-123456789012-{HEX[:32]}"),
    ("https://hooks.slack.com/services/", f"T0ABCDEFG/B0ABCDEFG/{BODY[:24]}"),
    ("sk_live_", BODY[:24]),
    ("rk_test_", BODY[:24]),
    ("whsec_", BODY[:32]),
    ("shpat_", HEX[:32]),
    ("shpss_", HEX[:32]),
    ("npm_", BODY[:36]),
    ("pypi-AgEIcHlwaS5vcmc", BODY[:70]),
    ("SG.", f"{BODY[:22]}.{BODY[:43]}"),
    ("SK", HEX[:32]),
    ("sk-", f"{BODY[:20]}T3BlbkFJ{BODY[:20]}"),
    ("sk-proj-", BODY[:64]),
    ("sk-ant-", f"api03-{BODY[:93]}AA"),
    ("hf_", "aBcDeFgHiJkLmNoPqRsTuVwXyZAbCdEfGh"),
    ("GOCSPX-", BODY[:28]),
    ("ya29.", BODY[:60]),
    ("dop_v1_", (HEX * 2)[:64]),
    ("dckr_pat_", BODY[:27]),
    ("glsa_", f"{BODY[:32]}_{HEX[:8]}"),
    ("hvs.", BODY[:95]),
    ("figd_", BODY[:40]),
    ("lin_api_", BODY[:40]),
    ("rubygems_", HEX[:48]),
    ("sq0atp-", BODY[:22]),
    ("sntryu_", (HEX * 2)[:64]),
    ("https://discord.com/api/webhooks/", f"123456789012345678/{BODY[:68]}"),
    ("123456789:AA", BODY[:33]),
    ("aB18Q~", BODY[:34]),
    ("AccountKey=", f"{BODY[:86]}=="),
]


@pytest.mark.parametrize(("prefix", "body"), TOKENS)
def test_a_token_of_a_known_format_is_refused_anywhere(prefix: str, body: str) -> None:
    token = prefix + body
    for text in (token, f"It says '{token}'.", f"https://shop.example/?t={token}&x=1", f"<b>{token}</b>"):
        assert "token" in codes({"evidence": text}), text


@pytest.mark.parametrize(("prefix", "body"), TOKENS)
def test_the_prefix_of_a_token_before_too_few_characters_is_not_reported(prefix: str, body: str) -> None:
    assert "token" not in codes(prefix + body[: len(body) // 3])


@pytest.mark.parametrize("token", [f"ghp_{BODY[:36]}", f"AKIA{'Q3EGR7WXZ5TBCDNM'}", f"SG.{BODY[:22]}.{BODY[:43]}"])
def test_the_prefix_of_a_token_inside_a_word_is_not_reported(token: str) -> None:
    assert codes(f"a{token}") == []


@pytest.mark.parametrize(
    "text",
    [
        "pk_live_" + BODY[:24],  # meant for public pages
        "AIza" + BODY[:35],
        "ghp_" + "x" * 36,
        "xoxb-your-token-goes-here-please-thank-you",
        "AKIA" + "IOSFODNN7EXAMPLE",
    ],
)
def test_public_keys_and_examples_of_tokens_pass(text: str) -> None:
    assert codes(text) == []


HEADERS_IN_A_LIST = [
    # Columns: a value; the expected problems.
    ({"headers": [{"name": "Set-Cookie", "value": "sid=8f14e45f; Path=/"}]}, [("", "cookie_line")]),
    ({"evidence": {"name": "cookie", "value": "sid=8f14e45f"}}, [("/evidence", "cookie_line")]),
    ({"evidence": [["server", "nginx"], ["Set-Cookie", "sid=8f14e45f"]]}, [("/evidence/1", "cookie_line")]),
    ({"evidence": ["Server", "nginx", "Cookie", "sid=8f14e45f"]}, [("/evidence", "cookie_line")]),  # in turns
    ({"evidence": [{"name": "Authorization", "value": f"Bearer {HEX[:32]}"}]}, [("/evidence/0", "authorization_line")]),
    ({"evidence": ["proxy-authorization", "Basic YW5uOnMzY3JldA=="]}, [("/evidence", "authorization_line")]),
    ({"evidence": [{"name": "X-Api-Key", "value": HEX[:32]}]}, [("/evidence/0", "assigned_secret")]),
    ({"evidence": [{"name": "sid", "value": "8f14e45f", "httpOnly": True}]}, [("/evidence/0", "cookie_line")]),  # cookie jar
    *(
        ({"evidence": {name: header, value: text}}, [("/evidence", code)])
        for name, value in (("key", "value"), ("header", "value"), ("field", "value"), ("Name", "Value"), ("Key", "Value"))
        for header, text, code in (
            ("Cookie", "sid=8f14e45f", "cookie_line"),
            ("Set-Cookie", "sid=8f14e45f; Path=/", "cookie_line"),
            ("set_cookie", "sid=8f14e45f", "cookie_line"),
            ("Authorization", f"Bearer {HEX[:32]}", "authorization_line"),
        )
    ),
    ({"evidence": {"name": "request", "key": "Cookie", "value": "sid=8f14e45f"}}, [("/evidence", "cookie_line")]),
    ({"evidence": [{"Name": "sid", "Value": "8f14e45f", "HttpOnly": True}]}, [("/evidence/0", "cookie_line")]),
    # No actual values.
    ({"evidence": [{"key": "Cookie", "value": "<name>=<value>"}, {"header": "Authorization", "value": "required"}]}, []),
    (
        {
            "evidence": [
                {"field": "email", "value": "a=b1c2d3e4"},
                {"key": "title", "value": "a=b1c2", "domain": "a.example"},
            ]
        },
        [],
    ),
    ({"evidence": [{"Key": "Cookie", "Value": None}, {"header": ["Cookie"], "value": "sid=8f14e45f"}]}, []),
    ({"evidence": [{"name": "sid", "value": "<session>", "domain": ".shop.example"}]}, []),
    ({"evidence": [{"name": 7, "value": "8f14e45f", "httpOnly": True}]}, []),  # the name is not a text
    ({"evidence": [{"name": "sid", "value": 81445, "httpOnly": True}]}, []),  # the value is not a text
    ({"evidence": [7, "8f14e45f", "cookie", None, "sid=8f14e45f"]}, []),
    ({"evidence": [{"name": "Set-Cookie", "value": "sid=[redacted]; Path=/"}]}, []),
    ({"evidence": [{"name": "Authorization", "value": "Bearer <token>"}, {"name": "cookie", "value": 1}]}, []),
    ({"evidence": [{"name": "password", "type": "password", "value": ""}, {"name": "server", "value": "a=bcd"}]}, []),
    ({"evidence": ["authorization", "content-type", "cookie", "x-requested-with"]}, []),
    ({"evidence": ["#cookie", "iframe[src='a=bcd']"]}, []),
]


@pytest.mark.parametrize(("value", "expected"), HEADERS_IN_A_LIST)
def test_a_header_is_checked_even_if_its_name_and_value_are_separate(value: Any, expected: list[tuple[str, str]]) -> None:
    assert reported(value) == expected


CREDENTIALS = [
    # Columns: a text; the rule that it violates.
    (f"-----BEGIN PRIVATE KEY-----\n{KEY_BODY}\n-----END PRIVATE KEY-----", "private_key"),
    (f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n{KEY_BODY}", "private_key"),
    (f"-----BEGIN OPENSSH PRIVATE KEY-----\\n{KEY_BODY}", "private_key"),  # with an escaped line break
    (f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 2\n\n{KEY_BODY}", "private_key"),
    (f"PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nComment: k\nPublic-Lines: 6\n{KEY_BODY}", "private_key"),
    (JWT, "jwt"),
    (f"token={JWT}", "jwt"),
    (f"{JWT_HEADER}.eyJzdWIiOiIxIn0.", "jwt"),  # without a signature; {"sub":"1"}
    # {"alg":"RSA-OAEP","enc":"A256GCM"}: encrypted
    (f"eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.{BODY[:99]}.{BODY[:16]}.{BODY[:40]}.{BODY[:22]}", "jwt"),
    (f"Authorization: Bearer {HEX[:32]}", "authorization_line"),
    ("authorization: basic YW5uOnMzY3JldA==", "authorization_line"),  # ann:s3cret
    ('"Authorization": "Token 22cb987851bc5659"', "authorization_line"),
    (f"Authorization: Authorization: Bearer {HEX[:32]}", "authorization_line"),
    ("Proxy-Authorization: Basic YW5uOnMzY3JldA==", "authorization_line"),
    ('Authorization: Digest username="ann", realm="x", response="f00"', "authorization_line"),
    ("Cookie: theme=dark; PHPSESSID=k3j4h5k3j4h5", "cookie_line"),
    ("Set-Cookie: sid=8f14e45f; Path=/; HttpOnly", "cookie_line"),
    ("> cookie: lang=de-DE", "cookie_line"),
    ("HTTP/1.1 200 OK\r\nset-cookie: path=/; id=a3fWa\r\n", "cookie_line"),
    ("https://ann:s3cret@shop.example/", "url_credentials"),
    ("see postgres://app:hunter22@db:5432/shop", "url_credentials"),
    ("redis://:hunter22@cache", "url_credentials"),
    (f"https://shop.example/cb#access_token={HEX[:32]}", "url_credentials"),
    ("https://shop.example/login?user=ann&password=hunter22", "url_credentials"),
    ("curl -u ann:hunter22secret https://shop.example", "command_credentials"),
    ("curl https://shop.example -H 'X-Api-Key: 5eb4223e50084'", "command_credentials"),
    ('{"password": "hunter22"}', "assigned_secret"),
    ("$db_password = 'hunter22';", "assigned_secret"),
    ('{\\"client_secret\\":\\"hunter2hunter2\\"}', "assigned_secret"),  # JSON within JSON
]


@pytest.mark.parametrize(("text", "code"), CREDENTIALS)
def test_credentials_in_text_are_refused_by_their_rule(text: str, code: str) -> None:
    found = codes({"page": {"title": text}})
    # JSON is also checked for forbidden names, and a header in a command as an assignment.
    assert code in found
    assert set(found) <= {code, "assigned_secret", "forbidden_json"}


def test_a_query_is_checked_only_by_the_rule_for_urls() -> None:
    for name in ("password", "access_token", "api_key"):
        assert codes(f"https://shop.example/?{name}={HEX[:32]}") == ["url_credentials"]
        assert codes(f"https://shop.example/a?b=1&{name}={HEX[:32]}") == ["url_credentials"]


@pytest.mark.parametrize("letter", ["\u017f", "\u212a", "\u0130", "\u0131"])
def test_letters_that_case_folding_makes_ascii_do_not_match_a_credential(letter: str) -> None:
    # The long s, the Kelvin sign, and the Turkish i with and without a dot: not valid in base64, so not credentials.
    assert codes(f"Authorization: Basic YW5u{letter}nMzY3JldA==") == []


PAGE = "<title>Shop</title></head><body><p>Hello</p></body></html>"
DOCUMENTS = [
    (f"<!DOCTYPE html><html lang='de'><head>{PAGE}", "html_document"),
    (f"\n<HTML>\n <HEAD>{PAGE}", "html_document"),
    ("<html><!-- built 12:00 --><body>Hello", "html_document"),  # cut off
    ("<!doctype html><title>Shop</title><p>Hello", "html_document"),  # the other tags are optional
    ('<?xml version="1.0"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0//EN" "x.dtd"><html><body/></html>', "html_document"),
    (f"Here is the page: <html><head>{PAGE}", "html_document"),
    ("<title>a</title></head>\n<body class=x>", "html_document"),
    (r"<title>a<\/title><\/head>\n<body class=x>", "html_document"),  # as written in a script
    (r"<!DOCTYPE html>\n<html>\n<body>\n<p>Hello", "html_document"),
    ("-- MySQL dump 10.13  Distrib 8.0.32\n", "sql_dump"),
    ("--\n-- PostgreSQL database dump\n--\n", "sql_dump"),
    ("COPY public.users (id, email) FROM stdin;\n1\ta@b.example\n\\.", "sql_dump"),
    ("CREATE TABLE `users` (id int);\nINSERT INTO `users` VALUES (1,'Ann');", "sql_dump"),
    ("insert into users (id) values (1); insert into users (id) values (2);", "sql_dump"),
    ("INSERT INTO `users` (`id`, `name`) VALUES (1, 'Ann'),\n(2, 'Bob');", "sql_dump"),
    ("INSERT [dbo].[Users] ([Id]) VALUES (1)\nGO\nINSERT [dbo].[Users] ([Id]) VALUES (2)\nGO", "sql_dump"),
    ("INSERT INTO users VALUES (1, 'Ann', '(555) 625-1199'), (2, 'Bob', '(555) 625-1200');", "sql_dump"),
    ("PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE t (a);", "sql_dump"),
]


@pytest.mark.parametrize(("text", "code"), DOCUMENTS)
def test_whole_documents_are_refused(text: str, code: str) -> None:
    assert codes({"evidence": [text]}) == [code]


ENCODINGS: list[Callable[[str], str]] = [
    lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    quote,
    lambda text: "".join(f"&#{ord(character)};" for character in text),
    lambda text: "".join(f"&#x{ord(character):x}" for character in text),
    html.escape,
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    lambda text: f"https://shop.example/r/{base64.b64encode(text.encode()).decode()}",
    lambda text: f"data:text/plain;base64,{base64.b64encode(f'Zoë said: {text}'.encode()).decode()}",
]


@pytest.mark.parametrize("encode", ENCODINGS)
def test_every_rule_checks_text_that_is_encoded_once(encode: Callable[[str], str]) -> None:
    texts = [
        (CARD, "card_number"),
        ("4111 1111 1111 1111", "card_number"),
        ("ghp_" + BODY[:36], "token"),
        *CREDENTIALS[:1],
        *(row for row in CREDENTIALS if row[1] in ("authorization_line", "url_credentials") and '"' not in row[0]),
        *DOCUMENTS[:1],
    ]
    missed = [text for text, code in texts if code not in codes({"url": encode(text)})]
    assert missed == []


def test_an_html_entity_of_any_length_is_read() -> None:
    assert codes("&#" + "9" * 6000 + ";") == []


BENIGN = [
    # page titles and prose
    "Forgot your password? · Shop",
    "Passwort vergessen? Kein Problem: Wir senden Ihnen einen Link.",
    "Mot de passe oublié ? Réinitialisez-le ici",
    "¿Ha olvidado su contraseña? Restablecer contraseña",
    "パスワードをお忘れの方はこちら",
    "Забыли пароль? Введите адрес: info@shop.example",
    "We use cookies: accept or reject. Cookie: what is that?",
    "Diese Seite verwendet Cookies: notwendige, Statistik, Marketing",
    "How to set Cookie: headers? An introduction",
    "Set-Cookie: name=value; Path=/ is how the docs write it",
    "Set-Cookie without Secure: SameSite=None needs Secure",
    "Set-Cookie: SameSite=None; Secure",
    "Vary: Accept-Encoding, Cookie",
    "The page has no <html lang> attribute; write <html lang='en'>.",
    "<html>",
    '<html lang="de" class="no-js">',
    "<!DOCTYPE html>\n<html>",
    # Parts of a page, as quoted by validators.
    "<html>\n<head>\n<title>Shop</title>",
    '<!DOCTYPE html><html lang="de"><head><meta charset="utf-8">',
    "Every page needs <!DOCTYPE html>, <html>, <head>, <body> and a closing </body></html>.",
    "The <head> comes first, the </head> ends it, <body> follows.",
    "How do I INSERT INTO a table? Use INSERT INTO users (id) VALUES (1);",
    "CREATE TABLE users (id int) is all it takes",
    "SQL dumps and how to read them: mysqldump explained",
    "Error: You have an error in your SQL syntax near 'INSERT INTO a VALUES (1)'",
    "The Authorization header explained: Basic, Bearer and Digest",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $API_KEY",
    "Authorization: Bearer authentication required",
    "Authorization: required since 2026-03-01T12:00:00.000Z",
    "Authorization: https://docs.shop.example/oauth2/v2.0/authorize1",
    "Authorization: see section 4.2 of RFC 9110",
    'www-authenticate: Bearer realm="https://auth.shop.example", error="invalid_token"',
    "What is a JWT? It looks like eyJhbGciOi... and has three parts",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",  # only the header of a token
    "Pay by credit card: Visa, Mastercard, American Express. Card number: **** **** **** 1111",
    "Card number 0000 0000 0000 0000, expiry MM/YY",
    "-----BEGIN PRIVATE KEY----- must never stand in a repository",
    f"-----BEGIN CERTIFICATE-----\n{KEY_BODY}\n-----END CERTIFICATE-----",
    '<input type="password" name="password" autocomplete="current-password" id="password-input-2">',
    'password: "Mindestens acht Zeichen"',
    "const password = 'your-password-123'",
    "curl -u user:password https://shop.example",
    "Write https://user:password@host/ or https://${user}:${pass}@host/",
    "https://shop.example:8443/@ann/photos",
    "https://shop.example/search?q=password=&sort=1",
    "https://api.mapbox.com/v4/a.json?access_token=pk.eyJ1IjoiYSIsImEiOiJjazEyMzQ1Njc4OTAifQ.abc1def2",
    "https://shop.example/reset?token=page-2",  # only words
    "https://www.googletagmanager.com/gtag/js?id=G-AB12CD34EF",
    "ann@shop.example",
    "Contact: Ann Example <ann.example+shop@shop.example>, +49 30 1234 5678 90",
    # typical values from scanners
    "main > div:nth-child(3) > img.hero-image.lazyload[data-key='a']",
    ".elementor-element-5f3a18c2 .wp-block-group__inner-container.is-layout-constrained",
    "sha256:" + (HEX * 2)[:64],
    (HEX * 2)[:64],
    'W/"5f3a-18c2b1e7d40"',
    "'nonce-rAnd0mN0nceVa1ue+8=' 'sha384-" + BODY[:64] + "'",
    "default-src 'self'; script-src 'self' 'nonce-" + BODY[:22] + "' https://cdn.shop.example 'strict-dynamic'",
    "max-age=31536000; includeSubDomains; preload",
    "artifacts/42/2026-03-01T12-00-00/home.png",
    "https://cdn.shop.example/_next/static/chunks/4111-" + HEX[:16] + ".js",
    "https://shop.example/products/tee?variant=39372345678901&_pos=1&_sid=9f8e7d6c5&_ss=r",
    "https://shop.example/caf%C3%A9/%E2%9C%93?a=50%25&amp;b=1&lt;",
    "https://scontent.example/v/t39.30808-6/484849823_1234567890123456_4987654321098765432_n.jpg?stp=dst-jpg",
    "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
    "matrix(0.4111111111111111, 0, 0, 0.5105105105105100, 0, 0)",
    "GA1.2.4111111111.1700000000",
]


@pytest.mark.parametrize("text", BENIGN)
def test_prose_and_technical_text_passes(text: str) -> None:
    assert codes(text) == []


def test_the_response_headers_of_an_ordinary_page_pass() -> None:
    headers = {
        "server": "nginx/1.25.3",
        "date": "Sun, 01 Mar 2026 12:00:00 GMT",
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": "default-src 'self'; img-src * data:; script-src 'self' 'nonce-4AEemGb0xJptoIGFP3Nd'",
        "strict-transport-security": "max-age=63072000; includeSubDomains",
        "www-authenticate": 'Bearer realm="shop", scope="read"',
        "access-control-allow-credentials": "true",
        "access-control-allow-headers": "Authorization, Content-Type, Cookie",
        "vary": "Cookie, Accept-Encoding",
        "etag": 'W/"d41d8cd98f00b204e9800998ecf8427e"',
        "cf-ray": "8f1d2c3b4a5e6f70-FRA",
        "x-request-id": "7f1c1f0e-3b5a-4c8d-9e2f-0a1b2c3d4e5f",
        "x-amz-cf-id": f"{BODY[:54]}==",
        "report-to": f'{{"endpoints":[{{"url":"https:\\/\\/a.nel.example\\/report\\/v4?s={quote(BODY[:90])}"}}]}}',
        "link": "<https://shop.example/a.css>; rel=preload; as=style",
        "alt-svc": 'h3=":443"; ma=86400',
        "age": 4111,
    }
    assert reported({"page": {"responseHeaders": headers}}) == []


ORDERS: list[tuple[dict[str, Any], bool]] = [
    ({"customer_name": "Ann", "email": "a@b.example"}, True),
    ({"billingName": "Ann", "address": "1 High Street"}, True),
    ({"email": "a@b.example", "total": 12.5}, True),
    ({"customer-email": "a@b.example", "order_total": "12.50", "id": 7}, True),
    ({"email": "a@b.example", "items": [{"sku": "A-1", "qty": 2}]}, True),
    ({"total_price": "12", "items": [{"unitPrice": 6, "name": "Tee"}]}, True),
    ({"name": "Ann", "email": "a@b.example"}, False),  # a plain name is not a customer's name
    ({"email": "a@b.example"}, False),
    ({"total": 12, "subtotal": 10}, False),  # the same part twice
    ({"total": 2, "items": ["a", "b"]}, False),  # a list of arbitrary values
    ({"total": 2, "items": [{"selector": "img", "title": "No text"}]}, False),
    ({"customer": {"name": "Ann", "email": "a@b.example"}, "id": 7}, True),  # the fields of its customer count as its own
    ({"billing": {"first_name": "Ann", "street": "1 High Street"}}, True),
    ({"customer": {"id": 7}, "email": "a@b.example"}, False),
    ({"@type": "LocalBusiness", "email": "a@b.example", "address": {"street": "1 High Street"}}, False),  # a page's own data
    ({"@type": "Order", "email": "a@b.example", "total": 5}, True),
    ({"email": None, "total": ""}, False),  # no actual values
    ({"total": 0, "email": "a@b.example"}, True),  # zero is a total
    ({"page": {"email": "a@b.example"}, "total": 5}, False),  # not in the same object
    ({"total_count": 5, "email_template": "x"}, False),
    # The fields are only mentioned.
    ({"fields": {"email": "required", "address": "required"}}, False),
    ({"email": False, "address": False}, False),
    ({"address": "192.0.2.1", "total": 3}, False),
    ({"counts": {"email": 3, "address": 2}}, False),
    ({"email": "input#email", "address": "input#address"}, False),
    ({"errors": {"email": ["is required"], "address": ["is required"]}}, False),
]


@pytest.mark.parametrize(("record", "found"), ORDERS)
def test_two_parts_of_an_order_in_one_object_make_an_order_record(record: dict[str, Any], found: bool) -> None:
    assert reported({"issues": [{"evidence": record}]}) == ([("/issues/0/evidence", "order_record")] if found else [])


def _digits(chance: random.Random, count: int) -> str:
    return str(chance.randrange(10 ** (count - 1), 10**count))


def _barcode(chance: random.Random, count: int) -> str:
    """Return a GTIN of `count` digits with its check digit."""
    body = _digits(chance, count - 1)
    weighted = sum(int(digit) * (3 if place % 2 == 0 else 1) for place, digit in enumerate(reversed(body)))
    return f"{body}{-weighted % 10}"


def _ids(chance: random.Random) -> Iterable[str]:
    """Yield typical IDs, but no random digits with the length and prefix of a card number, which would count as one."""
    yield new_id(chance.choice((EXPORT, TARGET, CAPTURE)), NOW)
    yield str(uuid.UUID(int=chance.getrandbits(128)))
    yield uuid.UUID(int=chance.getrandbits(128)).hex
    yield _digits(chance, chance.randint(1, 13))  # database IDs, order numbers
    yield f"4{_digits(chance, 13)}"  # IDs of shop variants
    yield str((chance.randrange(10**11, 5 * 10**11) << 22) | chance.getrandbits(22))  # time and sequence number in 64 bits
    yield str(chance.randrange(10**17, 62 * 10**17))
    yield f"{chance.getrandbits(160):040x}"
    yield f"{chance.getrandbits(256):064x}"
    yield base64.urlsafe_b64encode(chance.randbytes(16)).decode()
    yield "".join(chance.choices(string.ascii_letters + string.digits + "_-", k=21))
    yield f"GA1.2.{_digits(chance, 10)}.{_digits(chance, 10)}"


def _times(chance: random.Random) -> Iterable[str]:
    seconds = chance.randrange(946_684_800, 2_051_222_400) + chance.random()  # the years 2000 to 2034
    moment = time.gmtime(seconds)
    yield from (f"{seconds:.0f}", f"{seconds * 1e3:.0f}", f"{seconds * 1e6:.0f}", f"{seconds * 1e9:.0f}", f"{seconds:.6f}")
    yield time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    yield time.strftime("%Y-%m-%d %H:%M:%S.", moment) + _digits(chance, 6)
    yield time.strftime("%Y%m%d%H%M%S", moment)


def _barcodes(chance: random.Random) -> Iterable[str]:
    return (_barcode(chance, count) for count in (8, 12, 13, 14))


def _telephones(chance: random.Random) -> Iterable[str]:
    country, area, first, last = (
        chance.choice((1, 7, 34, 44, 49, 370, 380)),
        _digits(chance, 3),
        _digits(chance, 4),
        _digits(chance, 4),
    )
    yield f"+{country}{area}{first}{last}"
    yield f"+{country} {area} {first} {last}"
    yield f"+{country} ({area}) {first}-{last}"
    yield f"00{country}-{area}-{first}-{last}"
    yield f"0{area}/{first} {last} 12"
    yield f"{area}-{area}-{last}"


@pytest.mark.parametrize("made", [_ids, _times, _barcodes, _telephones])
def test_no_id_timestamp_barcode_or_telephone_number_is_refused(made: Callable[[random.Random], Iterable[str]]) -> None:
    chance = random.Random(20260301)
    texts: list[str] = []
    while len(texts) < 20_000:
        texts += made(chance)
    refused = [
        text for text in texts if codes([text, f"The one we mean is {text}, see https://shop.example/x/{text}?id={text}"])
    ]
    numbers = [text for text in texts if text.isdigit() and codes(int(text))]
    assert (refused, numbers) == ([], [])


def test_a_ticket_made_of_an_ordinary_finding_is_safe() -> None:
    issues: list[Mapping[str, Any]] = [
        issue(),
        issue(title="Cookie banner hides the login", description="Cookie: the banner covers “Forgot your password?”."),
        issue(title="Form posts the password over http", location="form#login > input[name=password]", inputs=["password"]),
        issue(title="<html> has no lang", snippet='<html class="no-js">', total=3, items=[{"html": "<html>"}]),
    ]
    checked = PostbackForm().read(postback(issues=issues))
    tickets = [ticket_for_finding(checked.page, each, checked.scan_run_id).record() for each in checked.issues]
    assert preview_problems(tickets) == [()] * len(issues)


def test_a_ticket_that_holds_a_card_number_is_not_safe() -> None:
    checked = PostbackForm().read(postback(issues=[issue(description=f"Paid with {CARD}")]))
    ticket = ticket_for_finding(checked.page, checked.issues[0], checked.scan_run_id).record()
    problems = preview_problems([ticket, {**ticket, "description": "Paid by card"}])
    assert [[(problem.path, problem.code) for problem in each] for each in problems] == [
        [("/description", "card_number")],
        [],
    ]


#: Beginnings of each family of patterns that might be slow when repeated.
REPEATED = [
    *("4111111111111111,", "1.4111.1111.1111.1111"),
    *("4", "4111 ", "4111-1111-1111-111", "4111 1111 1111 1111 ", "378282246310"),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "PuTTY-User-Key-File-2:"),
    *(
        "eyJ",
        f"{JWT_HEADER}.",
        "eyJaaaaaaaaaaa.eyJaaaaaaaaaaaaaa.",
        "ghp_",
        "sk-proj-",
        "EAA",
        "glpat-a",
        "s.aB1",
        "abc1Q~",
        "1:AA",
    ),
    *("authorization:", "authorization: bearer ", "authorization: basic YWFh", "cookie:", "cookie: a=", "cookie: a=bcd\n"),
    *('"authorization", "', "authorization value: ", '"cookie", "', '"name":"cookie","value":"'),
    *("cookie: a=<b>;", "cookie: a;", "http_cookie=", "cookies: a=b,", "cookie: a=[a=", "cookie: [a", "cookie]"),
    *("street,phone,total\n", "session_id,", "/aaaaaaaaaaaaaaaaaaa", "+Zm9vYmFyZm9vYmFyZm9v/"),
    *("://", "://a:", "https://a", "://aaaa:bbbb", "?password=", "?token=&"),
    *("curl ", "curl -u ", "curl -u a:", "-u ", "curl -H 'token:", 'password="', "password = ", "secret: '"),
    *(r"<html>\n", r"\n", r"<\\/head>\n", "<!doctype html>\\\\n"),
    *("<html ", "<html><!--", "<!doctype html>", "<!doctype html><!-- a -->", "</head> ", "<"),
    *(
        "insert into ",
        "insert into a (",
        "insert into a (b) values ",
        "insert into a values ('",
        "insert into a values ('\\'",
        "insert into a values (\\'",
        "insert into a values ((",
        "insert into `a`.",
        "insert [a].[",
        "replace into a values (1),",
        "create table a ",
        "\ncopy a (",
        "-- mysql ",
        "pragma ",
    ),
    *(
        "password=",
        "password: \n",
        "<password>",
        "secret_key = ",
        "api_key: a1",
        "define('password', '",
        "token: x1 ",
        "pwd=a1b2c3;",
    ),
    *(
        "?key=",
        "&token=a1b2c3d4e5",
        ";sid=",
        "?a[",
        "document.cookie='",
        "cookie('a','b'",
        "cookies={",
        "cookies=['a','b1',",
    ),
    *(
        "curl -b a=",
        "\ttrue\t/\ttrue\t0\ta\t",
        "localstorage\n",
        "localstorage:{",
        "localstorage.setitem('a','",
        "storage = ",
    ),
    *(
        '{"a":',
        '{"email":"a@b.cc",',
        '"cookies":[',
        '{"customer":{',
        '"password":"',
        "'name':",
        '{"name":1,"value":',
        "{}",
        '"',
    ),
    *("pass,pwd\n", "name,email\na,b@c.de\n"),
    *("email,address\n", "email,email,", "a@b.cc,", "password;", "|email|\n", "address\n", '"email,\n', "mail"),
    *("$2y$10$", "$6$a$", "$1$", "{ssha}", "$argon2id$v=19$m=1$", "$260000$abcdef$"),
    *("DE89", "DE89 3704 ", "de89a", "GB29NWBK", "a1", "\u0664", "4\u200b", "\u200b", "\u0661\u200b1 "),
    *("A", "A/", "a-", "Zm9v", "Zm9vYmFyZm9vYmFyZm9v ", "%41", "%", "&#52;", "&#", "&", "\n", " ", "é"),
]
#: Beginnings that are followed by arbitrarily long text.
BEGUN = [
    *("curl -u ", "authorization: bearer ", "cookie: ", "://", "insert into ", "insert into a (", "<html ", "</head>"),
    *("insert into a values (", "insert into a values ('"),
    *("password='", "&#", "eyJ", "copy a (", "<!doctype html", "curl -H '", "-----BEGIN PRIVATE KEY-----", "?token="),
]
FILLING = ["a", " ", "1", "a1 ", "(", '"', "=", "-", "a=b;", ":", "\n", "\\"]


def _seconds(text: str) -> float:
    """Return the minimum CPU time of three runs, but no less than typical measurement noise."""
    spent = [0.0005]
    for _ in range(3):
        start = time.process_time()
        find({"title": text}, KNOWN)
        spent.append(time.process_time() - start)
    return max(spent[0], min(spent[1:]))


@pytest.mark.parametrize(
    ("begin", "unit"), [*(("", unit) for unit in REPEATED), *((begin, unit) for begin in BEGUN for unit in FILLING)]
)
def test_the_search_takes_at_most_linear_time(begin: str, unit: str) -> None:
    # Sixteen times as much text: quadratic time would take 256 times as long.
    small, large = ((begin + unit * size)[:size] for size in (4096, 65536))
    assert _seconds(large) < 60 * _seconds(small)


#: Texts that a pattern used to read repeatedly, a fixed number of times for any size; only a comparison can detect this.
REREAD = [
    # For a word of 200 characters without an equals sign, a match was attempted from each character.
    ("cookie", ("cookie: " + ("a" * 200 + " ") * 20 + "\n") * 16),
    # For each header of a key without a body, the next thousand characters were read.
    ("private key", "PuTTY-User-Key-File-2:" * 3000),
    # For each candidate, all ranges were checked, and its digits were added up one by one.
    ("card", "4111111111111112 " * 4000),
]


@pytest.mark.parametrize(("what", "text"), REREAD)
def test_no_text_takes_much_longer_than_ordinary_text_of_the_same_length(what: str, text: str) -> None:
    ordinary = "the quick brown fox jumps over the lazy dog at 10:30; " * (len(text) // 50)
    assert _seconds(text) < 15 * _seconds(ordinary), what


def _count_yields(value: Any) -> int:
    """Return how often other work could be done meanwhile."""
    calls: list[None] = []
    find(value, KNOWN, lambda: calls.append(None))
    return len(calls)


def test_violations_are_located_among_many_texts() -> None:
    places = range(0, 20_000, 500)
    texts = ["only words here"] * 20_000
    for place in places:
        texts[place] = CARD
    assert reported({"title": texts}) == [(f"/title/{place}", "card_number") for place in places]


def test_texts_that_share_a_path_are_reported_once_and_not_checked_again() -> None:
    assert reported({"unheard-of": [CARD] * 20_000}) == [("", "card_number")]
    assert _count_yields({"unheard-of": [CARD] * 20_000}) < 1_000


def test_violations_by_several_texts_together_are_found_in_bounded_time_for_the_whole_body() -> None:
    # Each is a harmless extract; two of them in one text are a dump.
    few, many = ["insert into a values (1)"] * 40, ["insert into a values (1)"] * 40_000
    assert reported({"issues": few}) == []
    assert reported({"issues": many}) == [("", "sql_dump")]
    # There is one yield for each text that is checked and one for each rule.
    assert 1.5 * MAX_CHECKS < _count_yields({"issues": many}) < 3 * MAX_CHECKS


def test_checks_of_a_large_body_yield_to_other_work() -> None:
    assert _count_yields({"title": "words " * 10}) > 1
    small, large = ({"issues": ["some words " * 100] * count} for count in (50, 800))
    # A block of 64 KiB is checked as a whole.
    assert _count_yields(large) > 6 * _count_yields(small)


def test_a_long_text_is_checked_in_overlapping_parts() -> None:
    filling = "words and " * 30_000
    for at in (65_530, 65_536, 131_060, 131_072, 200_000, len(filling)):
        assert reported({"title": f"{filling[:at]} {CARD} {filling[at:]}"}) == [("/title", "card_number")], at
    assert _count_yields({"title": filling}) >= len(filling) // 65_536


def test_no_random_text_takes_more_than_linear_time() -> None:
    chance = random.Random(7)
    for letters in (string.printable, "0123456789 -", "eyJ.-_", "<>/ahtml! -", "a:/@", "cookie:= ;", "A-_aB1+/="):
        text = "".join(chance.choices(letters, k=65536))
        assert _seconds(text) < 60 * _seconds(text[:4096]), letters


def test_a_long_or_odd_name_takes_no_longer_than_a_long_text() -> None:
    for unit in ("A", "a", "aA", "_", "é", "password"):
        small, large = ({unit * (size // len(unit)): 1} for size in (4096, 65536))
        spent = []
        for value in (small, large):
            start = time.process_time()
            find(value, KNOWN)
            spent.append(max(time.process_time() - start, 0.0005))
        assert spent[1] < 60 * spent[0], unit


def test_checks_yield_between_names_and_between_tickets() -> None:
    calls: list[None] = []
    find({f"name{number}": number for number in range(50_000)}, frozenset(), lambda: calls.append(None))
    assert len(calls) >= 50
    calls.clear()
    find_each([{"description": "Words, and no more. " * 1000}] * 100, frozenset(), lambda: calls.append(None))
    assert len(calls) >= 50
