"""Cookies and browser storage in text: the minimum lengths of values, and text that only explains how to set them."""

from typing import Final

import pytest

from schemas.content_policy.detectors.browser_state import (
    has_browser_storage,
    has_command_cookies,
    has_cookie_jar,
    has_cookies,
)

COOKIES: Final = [
    # Columns: a text; whether it contains a cookie.
    ("Cookie: a=bcd", True),
    ("Cookie: a=bc", False),
    ("cookie2: a=bcd", True),
    ("Set-Cookie: a=bcd; Path=/", True),
    ("my-set-cookie: a=bcd", False),
    ("x-cookie: a=bcd", False),
    ("xset-cookie: a=bcd", False),
    ("'Cookie': 'a=bcd'", True),
    ("Cookie: <name>=<value>", False),
    ("Cookie: =bcd", False),
    ("Cookie: theme", False),
    ("Cookie: <none>; a=bcd", True),
    ("Cookie: a=<b>; c=def", True),
    ("Cookie: a=<b>, c=def", True),
    ("Cookie: <a>, c=def", False),  # prose may continue after a comma
    ("Cookie: a; b=def", True),
    ("Cookie: a b; c=def", False),
    ("Cookie: a b=cde", False),
    ("Cookie: a=bcd e", True),
    ("Cookie:  a=bcd", True),
    ("Cookie: a=https://b.example/", False),
    ("Cookie: a=https://b.example/; c=def", True),
    ("Cookie: a=b[c=d]", False),
    ("Cookie: a. Cookie: b=cde", True),
    ("Cookie: a=<b>; Cookie: b=cde", True),
    ("set_cookie: a=bcd", True),
    ("http_cookie: a=bcd", True),
    ("http_cookie=a=bcd", True),
    ("[http_cookie] => a=bcd", True),
    ("my_http_cookie=a=bcd", False),
    ("cookie=a=bcd", False),
    ("Cookies: a=bcd", False),
    ("Cookies: a=8f14e45f", True),
    ("Cookies: [sid=abc1]", True),
    ("Cookie: {a=bcd}", False),
    # Members of an object.
    ('{"name":"Cookie","value":"a=bcd"}', True),
    ('{"key": "Set-Cookie", "value": "a=bcd"}', True),
    ('{\\"name\\":\\"Cookie\\",\\"value\\":\\"a=bcd\\"}', True),
    ('{\n "name": "Cookie",\n "value": "a=bcd"\n}', True),
    ('{"name": "Cookie", "value": "<name>=<value>"}', False),
    ('{"kind": "cookie", "value": "a=8f14e45f"}', False),
    # Headers set by a script: a random value, or one with a session's name.
    ('header.Set("Cookie", "sid=8f14e45fab12")', True),
    ("headers['Cookie'] = 'a=8f14e45f'", True),
    ("headers[`Cookie`] = `a=8f14e45f`", True),
    ("'Cookie' => 'a=8f14e45f'", True),
    ('[["Cookie", "sid=abc1"]]', True),
    ('header.Set("Cookie", "theme=dark")', False),
    ('header.Set("Cookie", cookie)', False),
    ('header.Set("Cookie", "width=100px")', False),
    ("headers.cookie = 'a=8f14e45f'", True),
    ("input = cookie, a=8f14e45f", False),
    ("fetch(url, {headers: {Cookie: `a=8f14e45f`}})", True),
    ("fetch(url, {headers: {Cookie: `a=${value}`}})", False),
    # An attribute alone is not a cookie, but a name that only contains an attribute's name may be one.
    *((f"Set-Cookie: {each}=value1", False) for each in ("Path", "domain", "Expires", "max-age", "SameSite", "priority")),
    *((f"Set-Cookie: {each}=value1", False) for each in ("secure", "HttpOnly")),
    ("Set-Cookie: mypath=value1", True),
    ("Set-Cookie: pathx=value1", True),
    # Scripts: a random value, or one with a session's name that contains a digit.
    ("document.cookie = 'a=8f14e45f'", True),
    ("document.cookie = 'a=8f14e45'", False),
    ("document.cookie = 'sid=abc1'", True),
    ("document.cookie = 'sid=ab1'", False),
    ("document.cookie = 'sid=abcd'", False),
    ("document.cookie = 'sid=1234'", False),
    ("document.cookie = 'sid=<abc1>'", False),
    ("document.cookie = 'theme=abc1'", False),
    ("document.cookie += 'a=8f14e45f; path=/'", True),
    ("document.cookie = 'path=/; a=8f14e45f'", False),  # only the first pair is the cookie
    ("document.cookie = 'a =  8f14e45f '", True),
    *((f"setcookie('{each}', 'abc1')", True) for each in ("sess", "mysid", "token", "JWT", "auth", "login", "remember")),
    ("setcookie('sidebar', 'abc1')", False),
    ("Cookies.set('a', '8f14e45f')", True),
    ("$.cookie('a', '8f14e45f')", True),
    ("Cookies.set('a', '8f14e45')", False),
    ("get(cookies={'a': '8f14e45f'})", True),
    ("get(cookies={'x': 'y', 'a': '8f14e45f'})", True),
    ("get(cookies={'a': '8f14e45'})", False),
    ("get(cookies=[('a', '8f14e45f')])", True),
]
STORAGE: Final = [
    ("localStorage.setItem('a', '8f14e45f')", True),
    ("localStorage.setItem('a', '8f14e45')", False),
    ("localStorage.setItem('sid', 'abc1')", True),
    ("sessionStorage.setItem('step', 'abc1')", False),
    ("sessionStorage.step = 'abc1'", False),
    ("sessionStorage['step'] = 'abc1'", False),
    ("sessionStorage.sid = 'abc1'", True),
    ("sessionStorage['sid'] = 'abc1'", True),
    ('sessionStorage["sid"] = "abc1"', True),
    ("localStorage.cart = '{\"id\": 1}'", True),
    ("localStorage.cart = '[\"id\"]'", True),
    ("localStorage.cart = '{}'", False),
    ("localStorage.cart = `8f14e45f`", True),
    ('localStorage: {"cart": 1}', True),
    ('local storage = [["cart", 1]]', True),
    ('local-storage:\n{"cart":1}', True),
    ('session_storage: {"cart": {"type": "string"}}', False),
    ('session_storage: {"cart":{"type":"string"}}', False),
    ('localStorage: {\n  "cart" : {\n    "type": "object"', False),
    ('localStorage: {"cart": {"kind": 1}}', True),
    ("localStorage: {}", False),
    ('localStorage.getItem({"cart": 1})', False),
    ("localStorage\ntheme: dark\nsid: abc1", True),
    ("local storage:\n- sid: abc1", True),
    ("session_storage\r\nsid = abc1", True),
    ("session-storage\n| sid | abc1", True),
    ("localStorage\nsid -> abc1", True),
    ("localStorage\ntheme: dark\nbasket: 8f14e45", False),
    ('localStorage\ncart: {"id":1}', False),
    ('localStorage\ncart: {\\"id', False),
    ("localStorage sid: abc1", False),
    ("localStorage\n" + "theme: dark\n" * 29 + "sid: abc1", True),
    ("localStorage\n" + "theme: dark\n" * 30 + "sid: abc1", False),
]
COMMANDS: Final = [
    ("curl -b a=bcd", True),
    ("curl --cookie a=bcd", True),
    ("curl --cookie='a=bcd; c=d'", True),
    ("curl -b a=bc", False),
    ("curl -b cookies.txt", False),
    ("curl -b a=<b>", False),
    ("curl x-b a=bcd", False),
]
JARS: Final = [
    (".shop.example\tTRUE\t/\tFALSE\t0\tsid\tabc", True),
    (".shop.example\tTRUE\t/\tFALSE\t0\tsid\tab", False),
    (".shop.example\tTRUE\t/\tFALSE\t0\tsid\t<value>", False),
    (".shop.example\tYES\t/\tFALSE\t0\tsid\tabc", False),
    (".shop.example TRUE / FALSE 0 sid abc", False),
]


@pytest.mark.parametrize(("text", "is_found"), COOKIES)
def test_a_cookie_is_found_only_with_a_value(text: str, is_found: bool) -> None:
    assert has_cookies(text) is is_found
    assert has_cookies(f"In short:\n{text}\n") is is_found


@pytest.mark.parametrize(("text", "is_found"), STORAGE)
def test_an_entry_of_browser_storage_is_found_only_with_a_value(text: str, is_found: bool) -> None:
    assert has_browser_storage(text) is is_found


@pytest.mark.parametrize(("text", "is_found"), COMMANDS)
def test_a_command_sends_a_cookie_with_a_value(text: str, is_found: bool) -> None:
    assert has_command_cookies(text) is is_found


@pytest.mark.parametrize(("text", "is_found"), JARS)
def test_a_line_of_a_jar_has_seven_fields(text: str, is_found: bool) -> None:
    assert has_cookie_jar(text) is is_found
