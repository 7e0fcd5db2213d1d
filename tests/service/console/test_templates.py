"""The source of the console's templates and files: what no page may contain, and how the shared macros are rendered."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from jinja2 import Template, nodes

import service.console.layout
from service.console.layout import templates

_FOLDER: Final = Path(service.console.layout.__file__).parent
TEMPLATES: Final = sorted(file.name for file in (_FOLDER / "templates").glob("*.html"))
SCRIPTS: Final = {name: (_FOLDER / "static" / name).read_text() for name in ("console.js", "triage.js")}
SHEET: Final = (_FOLDER / "static" / "console.css").read_text()
#: Text that an attacker may have stored.
HOSTILE: Final = "\"'><script>alert(1)</script>{{ 7 * 7 }}&amp;"

#: The limit for each file, because users on slow connections wait for them.
MAX_BUFFERED_BYTES: Final = 24 * 1024


def part(call: str, **values: Any) -> str:
    """Render a macro; return the result with normalized whitespace."""
    name = call.partition("(")[0]
    made: Template = templates().from_string(f'{{% from "macros.html" import {name} %}}{{{{ {call} }}}}')
    return re.sub(r"\s+", " ", made.render(values)).strip()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_compiles_and_never_disables_escaping(name: str) -> None:
    templates().get_template(name)
    text = (_FOLDER / "templates" / name).read_text()
    tree = templates().parse(text)
    unsafe = [each.name for each in tree.find_all(nodes.Filter) if each.name in {"safe", "forceescape", "xmlattr", "tojson"}]
    assert unsafe == []
    assert list(tree.find_all(nodes.ScopedEvalContextModifier)) == []
    assert "Markup" not in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_contains_no_inline_script_or_style(name: str) -> None:
    text = (_FOLDER / "templates" / name).read_text()
    assert re.findall(r"\s(?:style|on[a-z]+)\s*=", text) == []
    assert (
        re.findall(r"<style|javascript:|<script(?! defer src=\"\{\{ base \}\}/static/(?:console|triage)\.js\")", text) == []
    )
    # All attributes are quoted: otherwise a space in a value would begin another attribute.
    assert re.findall(r"\s[a-z-]+=\{\{", text) == []
    # Resources are loaded only from this server, and links to other sites send no referrer.
    assert [
        each
        for each in re.findall(r"<(?:script|link|img|iframe|object|embed)\b[^>]*", text)
        if "//" in each.replace("http://www.w3.org/2000/svg", "")
    ] == []
    for link in re.findall(r"<a\b[^>]*\starget=[^>]*", text):
        assert "noopener" in link, link


def test_a_filter_offers_its_values_and_has_the_chosen_one() -> None:
    shown = part('choice("status", "Status", values, "b_c")', values=["a", "b_c", HOSTILE])
    assert shown.startswith(
        '<label>Status <select name="status"> <option value="">All</option> <option value="a">a</option>'
    )
    assert '<option value="b_c" selected>b c</option>' in shown
    assert shown.count("selected") == 1
    assert "<script>" not in shown


def test_text_in_backticks_is_shown_as_code_and_escaped() -> None:
    made: Template = templates().from_string("{{ text|coded }}")
    assert made.render(text="Run `target resume <ID>` & wait.") == "Run <code>target resume &lt;ID&gt;</code> &amp; wait."
    assert made.render(text="`a` or `b`") == "<code>a</code> or <code>b</code>"
    assert made.render(text="One ` alone <b>") == "One ` alone &lt;b&gt;"


def test_an_empty_list_says_why_it_is_empty() -> None:
    unused = part('empty(false, "/all", text)', text=HOSTILE)
    assert unused.startswith('<div class="empty" data-state="unused"><p>&#34;&#39;&gt;&lt;script&gt;')
    assert "{{ 7 * 7 }}&amp;amp;" in unused
    filtered = part('empty(true, "/all", text)', text="Nothing yet.")
    assert 'data-state="filtered"' in filtered
    assert '<a href="/all">Clear filters</a>' in filtered
    assert "Nothing yet." not in filtered


@pytest.mark.parametrize(
    ("next_query", "is_first", "links"),
    [
        # A single page.
        (None, True, []),
        # The first page of several.
        ("cursor=a&limit=5", True, ["/here?cursor=a&amp;limit=5"]),
        # A page in the middle.
        ("cursor=b", False, ["/newest", "/here?cursor=b"]),
        # The last page.
        (None, False, ["/newest"]),
    ],
)
def test_a_list_leads_to_its_other_pages(next_query: str | None, is_first: bool, links: list[str]) -> None:
    shown = part('pager("/here", query, first, "/newest")', query=next_query, first=is_first)
    assert re.findall('href="([^"]*)"', shown) == links
    assert ('<nav class="pager" aria-label="Pages">' in shown) is bool(links)


def test_a_button_sends_its_sessions_token() -> None:
    shown = part(
        'action("/base", user, "/do", label, "danger")', user={"csrf": "abc", "may": lambda _path: True}, label=HOSTILE
    )
    assert shown.startswith(
        '<form class="action" method="post" action="/base/do"> <input type="hidden" name="csrf" value="abc">'
    )
    assert '<button class="danger">&#34;' in shown
    assert "<script>" not in shown


def test_scripts_insert_no_markup_and_contact_no_other_host() -> None:
    forbidden = r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|outerHTML\s*=[^=]|setAttribute\(\"on|https?://|import\b|Storage\b|\.cookie"
    for name, script in SCRIPTS.items():
        assert re.findall(forbidden, script) == [], name
        assert script.startswith('"use strict";')
        assert len(script.encode()) < MAX_BUFFERED_BYTES


def test_the_style_sheet_loads_nothing_and_defines_each_color_for_light_and_dark() -> None:
    assert re.findall(r"url\(|@import|https?:", SHEET) == []
    assert SHEET.count("{") == SHEET.count("}")
    day, night = SHEET.split("@media (prefers-color-scheme: dark)", 1)
    named = re.compile(r"(--[a-z-]+): #")
    assert set(named.findall(day)) == set(named.findall(night.split("}", 1)[0]))
    assert {*re.findall(r"var\((--[a-z-]+)\)", SHEET)} == {*re.findall(r"(--[a-z-]+):", SHEET)}
    # Colors have to be variables, because literal ones would not change in dark mode. Print styles are exempt.
    screen = (
        SHEET[SHEET.index("*, ::before") : SHEET.index("@media print")]
        + SHEET[SHEET.index("@media print") :].partition("\n}")[2]
    )
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgba?\(|hsl", screen) == []
    assert len(SHEET.encode()) < MAX_BUFFERED_BYTES
