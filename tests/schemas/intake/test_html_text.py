"""Any HTML is reduced to the text that a person reads, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.content_policy import rules
from schemas.intake.html_text import text_of

READ = [
    ("<p>One</p><p>Two</p>", "One\n\nTwo"),
    ("<div>one</div><div>two</div>", "one\ntwo"),  # the end of a block and the start of the next are one line break
    ("<div>one</div><div><br></div><div>two</div>", "one\n\ntwo"),  # an empty line, as written by mail programs
    ("one<br>two<br/><br />three", "one\ntwo\n\nthree"),
    ("<ul><li>one</li><li><p>two</p></li></ul>three", "- one\n- two\n\nthree"),
    ("<ul><li>-</li><li>two</li></ul>", "- -\n- two"),
    ("<table><tr><td>Total</td><td>5</td></tr><tr><th>Tax</th></tr></table>", "Total\t5\nTax"),
    ("<h1>Title</h1>text", "Title\n\ntext"),
    ("a  \n\t b&nbsp;&nbsp;c", "a b c"),
    ("a <b> b </b> c", "a b c"),
    ("re<b>d</b>", "red"),
    ("<pre>one\n  two\n\nthree</pre>four", "one\ntwo\n\nthree\n\nfour"),
    ("  <html><body>\n\n text \n\n</body></html>  ", "text"),
    ("<p></p><div></div>", ""),
    ("", ""),
    ("plain", "plain"),
    # invisible content
    ("<head><title>T</title><style>p { x: '</p>' }</style><meta name=a></head>text", "text"),
    ("a<script>if (a < b) document.write('</p><p>')</script>b", "ab"),
    ("a<SCRIPT>x</sCript >b", "ab"),
    ("a<script>x</scripts></script>b", "ab"),
    ("<head><p>unclosed head", "unclosed head"),
    ("a<!-- <p>x</p> -->b<!-->c<!--->d<!--e--!>f", "abcdf"),
    ("<!DOCTYPE html>a<?xml x?>b<![CDATA[c]]>d<![if mso]>e<![endif]>f", "abdef"),
    ("a</>b</ x>c", "abc"),
    # character references
    ("&lt;b&gt; &amp;amp; &#65;&#x42; &eacute &unknown;", "<b> &amp; AB é &unknown;"),
    ("&#0;&#xD800;", "\ufffd\ufffd"),
    ("&#" + "9" * 5000 + ";&#x" + "f" * 5000 + ";", "\ufffd\ufffd"),
    ("&#x41", "A"),
    # links
    ('<a href="https://a.example/x?b=1&amp;c=2">here</a>.', "here (https://a.example/x?b=1&c=2)."),
    ("<a class=x HREF='https://a.example/'>here</a>", "here (https://a.example/)"),
    ("<a href=https://a.example/b>here</a>", "here (https://a.example/b)"),
    ('<a href="https://a.example/">a.example</a>', "a.example"),  # the text is the URL
    ('<a href="https://a.example">https://a.example/</a>', "https://a.example/"),
    ('<a href="https://a.example/"><img src=x></a>', "https://a.example/"),
    (
        '<a href="https://a.example/">one <a href="https://b.example/">two',
        "one (https://a.example/) two (https://b.example/)",
    ),
    ('<a href="javascript:x()">a</a> <a href="/b">b</a> <a>c</a> <a title="href=https://a.example/">d</a>', "a b c d"),
    ('<a href="https://a.example/" href="https://b.example/">x</a>', "x (https://a.example/)"),
    # quotes and brackets where browsers accept them
    ('<a title="1 > 0" href="https://a.example/">x</a>', "x (https://a.example/)"),
    ("1 < 2 and 3 <4, I <3 you", "1 < 2 and 3 <4, I <3 you"),
    ("a > b", "a > b"),
    # unterminated markup hides the rest, as in browsers
    ("a<!-- b", "a"),
    ("a<b c", "a"),
    ("a<script>b", "a"),
    ("a<", "a<"),
]


@pytest.mark.parametrize(("html", "text"), READ)
def test_html_becomes_the_text_that_a_person_reads(html: str, text: str) -> None:
    assert text_of(html) == text


@pytest.mark.parametrize(
    "html",
    [
        "4111<b>1111</b>1111<i>1111</i>",
        "4111<!-- -->1111<span style='x'>1111</span><wbr>1111",
        "&#52;111&#x31;111<a>1111</a>1111",
        "<script>x</script>41111111<font color=red>1111</font>1111",
    ],
)
def test_digits_separated_by_tags_are_joined(html: str) -> None:
    assert text_of(html) == "4111111111111111"


def test_the_cells_of_a_table_row_are_joined_by_tabs() -> None:
    cells = "".join(f"<td>{group}</td>" for group in ("4111", "1111", "1111", "1111"))
    assert text_of(f"<table><tr>{cells}</tr></table>") == "4111\t1111\t1111\t1111"


def test_a_table_of_customers_is_found_in_html() -> None:
    table = "<table><tr><th>Customer name<th>Email<th>Total</tr><tr><td>Ann Lee<td>ann@x.example<td>12.50</tr></table>"
    assert {each.code for each in rules.find({"text": text_of(table)}, frozenset({"text"}))} == {"order_record"}
    contact = (
        "<table><tr><td>Name<td>Ann Lee</tr><tr><td>Email<td>ann@x.example</tr><tr><td>Message<td>It is slow</tr></table>"
    )
    assert rules.find({"text": text_of(contact)}, frozenset({"text"})) == ()


#: Input that takes quadratic time if a parser repeatedly searches for an end.
UNCLOSED = [
    *("<a ", "</a ", "<!--", "<![CDATA[", "<?", "</", "<", '<a href="', "<a href='x\" ", "<script>", "<title>", "<pre>\n"),
    *("&", "&#", "&#9", "&a", '="', "<li>", "<a href=http://x>", "<b>", "<td>", "href ", " ", "\n", "<p>x</p>", "&lt;"),
]


@pytest.mark.parametrize("piece", UNCLOSED)
@pytest.mark.parametrize("opening", ["", "<a ", "<pre>", "<script>"])
def test_unterminated_markup_is_read_quickly(piece: str, opening: str) -> None:
    html = opening + piece * (200_000 // len(piece))
    began = time.process_time()
    text_of(html)
    # Linear parsing takes a quarter of a second; searching for the end from each beginning takes many minutes.
    assert time.process_time() - began < 5


PIECES = st.sampled_from(
    ["<", ">", "</", "<a", "<a href=", '"', "'", "=", " ", "/", "<!--", "-->", "<script", "<pre>", "\n"]
)


@given(
    st.lists(
        st.one_of(PIECES, PIECES, st.sampled_from(["&#", "&", ";", "9", "x", "<li>", "<br>", "</a>"]), st.text()),
        max_size=60,
    )
)
def test_any_html_becomes_text_without_surplus_whitespace(pieces: list[str]) -> None:
    text = text_of("".join(pieces))
    assert text == text.strip()
    assert "\n\n\n" not in text


@given(st.text(st.characters(exclude_characters="<&", exclude_categories=["Cs"])))
def test_text_without_markup_is_only_tidied(text: str) -> None:
    assert text_of(text) == " ".join(text.split())


@pytest.mark.parametrize("piece", ["<b>", "</b>", "<br>", "<!---->", "<script></script>", "<a href=http://x>y"])
def test_parsing_yields_between_tags(piece: str) -> None:
    calls: list[None] = []
    text_of(piece * 10_000, lambda: calls.append(None))
    assert len(calls) >= 100
