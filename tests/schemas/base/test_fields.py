"""Fields: the fast path for plain text accepts and rejects the same values as marshmallow's normal processing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError, fields

from schemas.base.errors import ValidationFailed
from schemas.base.fields import Array, Form, Integer, PageUrl, Text, WebUrl
from schemas.exports.record import Severity

LIMIT = 5
#: JSON values, and texts with lengths around the limit.
values = st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text()) | st.text(max_size=LIMIT + 2)


class ReferenceText(Text):
    """A text field that always uses marshmallow's normal processing."""


def read(field: fields.Field[Any], value: object) -> object:
    """Return the value of a field, or the codes of its errors."""
    try:
        return field.deserialize(value)
    except ValidationError as refused:
        return refused.messages


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allow_none": True},
        {"min_length": 2},
        {"allowed": ("a", "plain", "beyond")},
        {"post_load": str.upper},
        {"pre_load": lambda value: value * 2 if isinstance(value, str) else value},
    ],
    ids=["plain", "or_null", "at_least", "one_of", "changed_after", "changed_before"],
)
@given(value=values | st.sampled_from(["a", "plain", "beyond", " a ", "12345", "123456"]))
def test_a_text_field_reads_and_refuses_the_same_values_as_one_of_marshmallow(
    options: dict[str, Any], value: object
) -> None:
    assert read(Text(max_length=LIMIT, **options), value) == read(ReferenceText(max_length=LIMIT, **options), value)


class _Inner(Form):
    word = Text(allowed=("a", "b"))
    number = Integer(minimum=1, maximum=9)


class _Outer(Form):
    name = Text(max_length=3)
    url = WebUrl()
    severity = Severity()
    inner = fields.Nested(_Inner)
    several = Array(fields.Nested(_Inner), at_most=2)


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"name": "long"}, "/name", "This value exceeds its maximum length: 3 characters."),
        ({"url": f"https://a.example/{'x' * 2048}"}, "/url", "This value exceeds its maximum length: 2048 bytes."),
        ({"severity": "x"}, "/severity", "This value is not one of the allowed values: info, low, medium, high, critical."),
        ({"inner": {"word": "c"}}, "/inner/word", "This value is not one of the allowed values: a, b."),
        ({"several": [{}, {"number": 0}]}, "/several/1/number", "This number is out of range: 1 to 9."),
        ({"several": [1, 2, 3]}, "/several", "This list or object exceeds its maximum number of entries: 2."),
    ],
)
def test_a_message_names_the_allowed_values_or_the_limit(body: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        _Outer().read(body)
    assert [(each.path, each.message) for each in refused.value.problems] == [(path, message)]


def is_refused(field: WebUrl, url: str) -> bool:
    try:
        return field.deserialize(url) != url
    except ValidationError:
        return True


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://my_shop.example/",
            "https://_a.my_shop.example:8443/b_c?d_e#f_g",
            "http://my_shop",
            "HTTPS://MY_SHOP.example",
        ),
        *("https://a_b@my_shop.example/", "https://shop_.example"),
    ],
)
def test_the_host_of_a_page_may_have_underscores_and_other_hosts_may_not(url: str) -> None:
    assert (is_refused(PageUrl(), url), is_refused(WebUrl(), url)) == (False, True)


@pytest.mark.parametrize("url", ["https://shop.example/a_b?c_d#e_f", "http://localhost/_"])
def test_other_parts_of_any_url_may_have_underscores(url: str) -> None:
    assert (is_refused(PageUrl(), url), is_refused(WebUrl(), url)) == (False, False)


@pytest.mark.parametrize(
    "url",
    [
        *("https://", "https:///my_shop.example", "my_shop.example", "ft_p://my_shop.example", "ftp://my_shop.example/"),
        *("https://my shop_.example/", "https://my_shop.example:port/", "https://my_shop.example:99999/", "https://[_]/"),
        *("https://my_shop.example/a b", f"https://my_shop.example/{'_' * 2048}", f"https://{'_' * 64}.example/", ""),
    ],
)
def test_an_invalid_page_url_with_an_underscore_is_refused(url: str) -> None:
    assert is_refused(PageUrl(), url)


@pytest.mark.parametrize("host", ["256.256.256.256", "a.example:0", "a\u200b.example", "a.example:65536"])
def test_a_url_with_a_host_that_no_browser_opens_is_rejected(host: str) -> None:
    assert read(WebUrl(), f"https://{host}/") == ["invalid_url"]


@pytest.mark.parametrize("host", ["10.0.0.1", "[2001:db8::1]", "1.example", "shop.example:8443", "münchen.example"])
def test_a_url_with_a_host_that_browsers_open_is_accepted(host: str) -> None:
    assert read(WebUrl(), f"https://{host}/") == f"https://{host}/"


@pytest.mark.parametrize("password", ["admin", "test", "p", "1111", "secret"])
def test_the_url_of_a_page_has_no_password(password: str) -> None:
    assert read(PageUrl(), f"https://admin:{password}@staging.shop.example/") == ["url_credentials"]


@pytest.mark.parametrize("user", ["", "ada@", "ada:@", "ada:***@", "ada:REDACTED@", "ada:masked@"])
def test_a_page_url_with_a_masked_or_empty_password_is_accepted(user: str) -> None:
    assert read(PageUrl(), url := f"https://{user}staging.shop.example/") == url
