"""Forbidden content of free text, by clause and in every place that a text may have; similar harmless text passes."""

import base64
import html
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import pytest

from schemas.content_policy.rules import RULES, find
from schemas.exports.record import PreparationForm
from schemas.intake.diagnostics import CmsDiagnosticsForm
from schemas.intake.email_forms import EmailForm, inspected
from schemas.intake.evidence import CaptureForm
from schemas.intake.scanner import PostbackForm
from tests.support.factories import issue, postback

#: Random letters and digits, so that no secret scanner of this repository reports them.
TOKEN: Final = "aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC"
HEX: Final = "0b1d3f5a7c9e2048d6af0b1d3f5a7c9e"
CARD: Final = "4111111111111111"
BCRYPT: Final = "$2y$10$" + "N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
PEM: Final = "-----BEGIN PRIVATE KEY-----"

REFUSED: Final[dict[str, list[str]]] = {
    "documents and signed tokens": [
        "<!doctype html><title>Shop</title><p>Hello",
        "-- MySQL dump 10.13  Distrib 8.0.32\n",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{TOKEN}",
    ],
    "a placeholder inside a value does not excuse it": [
        "postgres://app:Pa$sw0rd2024@db.shop.example/shop",
        "Authorization: Bearer AbC123xyzQ9Lm4TzW8",
        "Authorization: Bearer abc1237f9e8d7c6b5a4",
        "https://ann:yourS3cretIsMine@shop.example/",
        "redis://:xxx9Kd8s7@cache:6379/0",
        f"Authorization: Bearer {HEX[:20]}...",
        "password = 'hunter000000x2'",
        "Cookie: PHPSESSID=k3j4xxxh5k3j4h5",
        "Set-Cookie: sid=your8f14e45f; Path=/",
        "curl -u ann:example9Kd8s7 https://shop.example",
        f"sk_live_{TOKEN[:20]}abc123",
        f"ghp_000000{TOKEN[:30]}",
    ],
    "credentials in a query": [
        f"https://shop.example/reset?token={HEX}",
        f"https://shop.example/a?page=2&api_key={TOKEN}",
        f"https://shop.example/a?apikey={HEX[:16]}",
        f"https://shop.example/cart?session_id={HEX}",
        f"https://shop.example/cart;jsessionid={HEX.upper()}?x=1",
        f"https://files.shop.example/a.pdf?sig={quote(TOKEN + '+/=')}",
        f"https://files.shop.example/a.pdf?X-Amz-Signature={HEX}{HEX}",
        f"https://shop.example/order?key=wc_order_{TOKEN[:13]}",
        f"https://shop.example/#access_token={HEX}",
        f"/callback?auth={TOKEN}",
        f"https://shop.example/a?user[api_token]={HEX}",
        "https://shop.example/?sessionid=550e8400-e29b-41d4-a716-446655440000",
        f"https://shop.example/login?next=/reset?token={HEX}",
        "https://shop.example/login?user=ann&pass=Hunter22x",
        "https://shop.example/login?user_pass=Hunter22x",
        "https://shop.example/register?password2=Hunter22x",
        "https://shop.example/register?password_confirm=Hunter22x",
        "https://shop.example/login?passphrase=Hunter22x",
        "https://shop.example/login?passwort=Hunter22x",
        "login=ann&kennwort=Hunter22x",
        f"https://shop.example/a?api_key1={TOKEN}",
    ],
    "assignments": [
        "DB_PASSWORD=hunter22",
        "DB_PASSWORD=correcthorsebattery",
        "export DB_PASSWORD='Winter-2024!'",
        "DB_PASSWORD=12345678",
        "password: hunter22",
        "Passwort: Sommer2024!",
        "Mot de passe : Soleil2024",
        "Kennwort = Gartenzaun7",
        "<password>hunter22</password>",
        "<db:password>geheim-wort</db:password>",
        "<Password>correcthorse</Password>",
        "define('DB_PASSWORD', 'hunter22');",
        'define( "DB_PASSWORD", "correct-horse" );',
        f"X-Api-Key: {HEX[:24]}",
        f"X-Auth-Token: {TOKEN}",
        f"x-api-key={TOKEN[:20]}",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzL9k3Tq8aB",
        f"AWS_SECRET_ACCESS_KEY={TOKEN}aB3dE5gH",
        f"api_secret={TOKEN[:16]}",
        f"STRIPE_KEY={TOKEN}",
        f"APP_ENV=production\nSECRET_KEY={TOKEN}\nDEBUG=0",
        f"- name: API_TOKEN\n  api_token: {TOKEN}",
        "Server=db;Database=shop;User Id=sa;Password=Hunter22!;",
        "user=ann&pwd=hunter22&remember=1",
        "$config['db']['password'] = 'hunter22';",
        "jdbc.password=hunter22",
        "mysqldump --user=shop --password hunter22 shop",
        "User: ann, pass: hunter22",
        "Your API key: 5eb4223e50084",
        "const dbPass = 'hunter22'",
        f"client_secret: '{TOKEN[:20]}'",
        f'refreshToken: "{TOKEN}"',
    ],
    "cookies in headers": [
        f"Cookie: a=b1c2d3; c={HEX}",
        "Cookie: consent; sid=8f14e45f",
        "Cookie: [redacted]; sid=8f14e45f",
        "Set-Cookie: sid=8f14e45f; Path=/; HttpOnly",
        "Set-Cookie: theme=<theme>; Path=/, sid=8f14e45f; Path=/",
        "cookie:\nsid=8f14e45f; theme=dark",
        "No cookie: here is one. Set-Cookie: sid=8f14e45f",
        "Set-Cookie: [sid=8f14e45f; Path=/]",
        "HTTP_COOKIE: sid=8f14e45f",
        "HTTP_COOKIE=sid=8f14e45f; theme=dark",
        "export HTTP_COOKIE='sid=8f14e45f'",
        "    [HTTP_COOKIE] => sid=8f14e45f",
        '"HTTP_COOKIE": "sid=8f14e45f"',
        "Cookies: sid=8f3kd93kdkd83kd0a1b2",
        "Cookies: theme=dark; sid=8f3kd93kdkd83kd0a1b2",
        "set_cookie: sid=8f14e45f",
        "SET_COOKIE: sid=8f14e45f; Path=/",
    ],
    "cookies in scripts, commands and jars": [
        f'document.cookie = "sid={HEX}"',
        "document.cookie='PHPSESSID=k3j4h5k3j4h5; path=/'",
        "document.cookie = `session=abc123`",
        f"document.cookie = 'basket={HEX}; path=/'",
        f"requests.get(url, cookies={{'basket': '{HEX}'}})",
        f"curl -b 'sid={HEX[:12]}' https://shop.example/",
        'curl --cookie "PHPSESSID=k3j4h5k3j4h5" https://shop.example/',
        "curl https://shop.example/ --cookie=lang=de-DE",
        f"setcookie('sid', '{HEX}', time() + 3600);",
        f"Cookies.set('session', '{TOKEN}')",
        f"requests.get(url, cookies={{'sessionid': '{HEX}'}})",
        f'[{{"domain": ".shop.example", "name": "sid", "value": "{HEX}", "httpOnly": true}}]',
        f'{{"cookies": [{{"name": "sid", "value": "{HEX[:8]}"}}]}}',
        f"# Netscape HTTP Cookie File\n.shop.example\tTRUE\t/\tFALSE\t0\tsid\t{HEX}",
    ],
    "JSON in a text": [
        '{"password": "geheim"}',
        '{"user": {"name": "ann", "password": "hunter22"}}',
        "{'password': 'hunter22'}",
        f'Request body was {{"login": "ann", "api_key": "{HEX[:12]}"}} and the answer 200.',
        '{"user": {"session_id": "8f14e45f", "cut": {"off',
        '{"card_number": "4000 00", "cvv": 123}',
        '{"local_storage": {"cart": "8f14e45f"}}',
        '{"order": {"id": 7, "line_items": [{"sku": "A-1", "price": 6}]}}',
        '{"billingAddress": {"street": "1 High Street"}}',
        '{\\"db_password\\": \\"hunter22\\"}',
    ],
    "orders and customers": [
        '{"email": "ann@shop.example", "total": "12.50"}',
        '{"id": 1001, "customer": {"name": "Ann Example", "email": "ann@shop.example"}, "currency": "EUR"}',
        '{"billing": {"first_name": "Ann", "address_1": "1 High Street"}, "status": "done"}',
        '{"customer_email": "ann@shop.example", "items": [{"sku": "A-1", "quantity": 2}]}',
        'Order: {"order_total": 12.5, "email": "ann@shop.example", "no',
        "order_id,customer_name,email,total\n1001,Ann Example,ann@shop.example,12.50",
        "Email;Name;Phone\nann@shop.example;Ann Example;+49 30 123456",
        "order_id,customer_name,total\n1001,Ann Example,12.50",
        '"total";"buyerName"\r\n"12.50";"Ann Example"',
        "| Quantity | Billing last name |\n|---|---|\n| 2 | Meier |",
        "id\tcustomer_name\tcustomer_address\n7\tAnn Example\t1 High Street, London",
        "| Customer name | E-mail | Total |\n|---|---|---|\n| Ann Example | ann@shop.example | 12.50 |",
        'name,email\n"Example, Ann",ann@shop.example',
        "Kunde;Anschrift;Betrag;E-Mail\nAnn Example;High Street 1;12,50;ann@shop.example",
        "Kunde;Anschrift;Betrag\nAnn Example;High Street 1, London;12,50",
        "Kunde;Straße;PLZ;Betrag\nAnn Example;Hauptstraße 1 a;10115;12,50",
        "Kunde;Strasse\nAnn Example;Hauptstrasse 1 a",
        "name,street,total\nAnn Example,1 High Street,12.50",
        "customer_name,zip\nAnn Example,10115",
        "customer_name,postcode\nAnn Example,SW1A 1AA",
        "Customer name;PLZ\nAnn Example;10115",
        "customer_name\tmobile\nAnn Example\t+49 170 1234567",
        "Name;Telefon;Summe\nAnn Example;0170 1234567;49,90",
        "name,phone,qty\nAnn Example,(555) 625-1199,2",
        "first_name,last_name,email,street,city\nAnn,Example,ann@shop.example,High Street 1,London",
    ],
    "rows of a database": [
        f"1,ann,ann@shop.example,{BCRYPT}",
        f"ann:{BCRYPT}",
        "ann:$apr1$r31x0fY8$k3j4h5k3j4h5k3j4h5k3j4",
        "root:$6$rounds=5000$aB3dE5gH7jK9$" + (TOKEN * 3)[:86],
        "ann:$6$aB3dE5gH7jK9$" + (TOKEN * 3)[:86],
        "$argon2id$v=19$m=65536,t=3,p=4$aB3dE5gH7jK9mN1pQ4rS6t$" + TOKEN + "aB3dE5gH7jK",
        "$P$B" + TOKEN[:30],
        "$S$D" + (TOKEN * 2)[:51],
        "pbkdf2_sha256$260000$aB3dE5gH7jK9$" + TOKEN + "aB3dE5gH7jK=",
        "{SSHA}" + TOKEN,
        "user_login,user_pass,user_email_confirmed\nann,5f4dcc3b5aa765d61d8327deb882cf99,1",
        "login;password\nann;hunter22",
        f"session_id,user\n{HEX},ann",
        f"User;Session ID\nann;{TOKEN}",
        f"service,api_key\nmaps,{HEX}",
    ],
    "bank accounts": [
        "IBAN: DE89 3704 0044 0532 0130 00",
        "DE89370400440532013000",
        "Please pay to GB29 NWBK 6016 1331 9268 19, thank you.",
        "NL91-ABNA-0417-1643-00",
        "NO9386011117947",
        "FR14 2004 1010 0505 0001 3M02 606",
        "mt84malt011000012345mtlcast001s",
    ],
    "browser storage": [
        f"localStorage.setItem('token', '{TOKEN}')",
        f'localStorage["auth"] = "{HEX}"',
        f"sessionStorage.sid = '{HEX}'",
        'localStorage.setItem("cart", \'{"id":"8f14e45f"}\')',
        'localStorage: {"cart_id": "8f14e45f", "theme": "dark"}',
        'Local storage dump:\n{"theme":"dark"}',
        'sessionStorage = [["cart", "8f14e45f"]]',
        f"localStorage\ntheme: dark\nauth_token: {HEX}\n",
        f"localStorage\ntheme: dark\nbasket: {HEX}\n",
        'origins: [{"localStorage": [{"name": "token", "value": "8f14e45f9a"}]}]',
    ],
    "card numbers": [
        "".join(chr(0x0660 + int(digit)) for digit in CARD),  # Arabic-Indic
        "".join(chr(0x0966 + int(digit)) for digit in "5555555555554444"),  # Devanagari
        "".join(chr(0x1D7CE + int(digit)) for digit in CARD),  # mathematical bold
        "\u200b".join(CARD),
        "\u2060\ufeff".join(CARD),
        "\u00ad".join("378282246310005"),
        "4111\u200d1111\U000e00201111\ufe0f1111",
        "Paid with 30569309025904 today",
        "Paid with 36227206271667.",
        "Paid: 38520000023237",
        "30569309025904",
        "3056 930902 5904",
        "6205500000000000004",
        "6205 5000 0000 0000 004",
    ],
    "private keys": [
        f"{PEM}\nMIIEvQIBADANBgkq",
        f"{PEM}\\nMIIEvQIBADANBgkq",
        f"key = '{PEM}' + 'MIIEvQIBADANBgkq'",
        "-----BEGIN RSA PRIVATE KEY-----\r\nMIIEpQIBAAKCAQEA",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXkt",
        "-----BEGIN EC PRIVATE KEY----- MHcCAQEEIIrYSSNQ",
    ],
}
CASES: Final = [(clause, text) for clause, texts in REFUSED.items() for text in texts]


def codes(value: Any) -> list[str]:
    return [problem.code for problem in find(value, frozenset())]


@pytest.mark.parametrize(("clause", "text"), CASES)
def test_a_forbidden_text_is_refused_alone_and_in_a_sentence(clause: str, text: str) -> None:
    assert codes(text), clause
    assert codes({"evidence": [f"The scanner found this:\n{text}\nRemove it."]}), clause


def test_every_rule_has_a_text_that_it_refuses() -> None:
    assert {code for _, text in CASES for code in codes(text)} >= {rule.code for rule in RULES}


def _base64_behind(sign: str, text: str) -> str:
    return f"see {sign}{base64.b64encode(text.encode()).decode()}"


#: Each way to encode a text once. Percent signs, entities and base64 are decoded only in texts that contain nothing else.
ENCODINGS: Final[dict[str, Callable[[str], str]]] = {
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "entities": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "HTML": html.escape,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    **{f"base64 behind {sign}": partial(_base64_behind, sign) for sign in ("/", "-", "_", "+", "/+-_")},
    "base64 in a data URL": lambda text: f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_forbidden_text_is_refused_when_it_is_encoded_once(encoding: str) -> None:
    passed = [(clause, text) for clause, text in CASES if not codes(ENCODINGS[encoding](text))]
    assert passed == []


def _of_a_finding(text: str) -> tuple[Any, Any]:
    return PostbackForm(), postback(issues=[issue(description=text)])


def _of_evidence(text: str) -> tuple[Any, Any]:
    return PostbackForm(), postback(issues=[issue(snippet={"nodes": [{"html": text}]})])


def _of_a_capture(text: str) -> tuple[Any, Any]:
    return CaptureForm(), {"project_id": 1, "page_url": "https://shop.example/", "selected_text": text}


def _of_diagnostics(text: str) -> tuple[Any, Any]:
    symptoms = {"visible_browser_symptoms": ["The page is blank", text]}
    return CmsDiagnosticsForm(), {
        "project_id": 1,
        "platform": "cms_commerce",
        "site_url": "https://shop.example/",
        "diagnostics": symptoms,
    }


def _of_a_ticket(text: str) -> tuple[Any, Any]:
    return PreparationForm(), {"ticket": {"title": "Broken", "description": text}}


def _of_an_email(text: str) -> tuple[Any, Any]:
    plain = {
        "message_id": "1@shop.example",
        "from": "ann@shop.example",
        "to": "in@shop.example",
        "subject": "Hi",
        "text": text,
    }
    return EmailForm(), inspected(EmailForm().reduced(plain))


@pytest.mark.parametrize("place", [_of_a_finding, _of_evidence, _of_a_capture, _of_diagnostics, _of_a_ticket, _of_an_email])
def test_a_forbidden_text_is_refused_in_every_place(place: Callable[[str], tuple[Any, Any]]) -> None:
    passed = []
    for clause, text in CASES:
        form, body = place(text)
        if not find(body, form.member_names()):
            passed.append((clause, text))
    assert passed == []
