"""The inbox and its tickets in a browser: positions, focus and history, with mouse, keyboard and phone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, ViewportSize, expect

from service.console.triage.ticket_list import PAGE_ROWS
from tests.service.console.test_browser import DESKTOP, Installed, assert_fits, installed, signed_in, visit
from tests.support.servers.redis_and_postgres import RedisServer

PHONE: Final[ViewportSize] = {"width": 375, "height": 667}
#: The printable area of A4 in landscape.
PAPER: Final[ViewportSize] = {"width": 1047, "height": 718}
#: A row that is initially out of view on every screen.
FAR: Final = 39


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path, redis_server: RedisServer
) -> Iterator[Installed]:
    """An installation with more tickets than the inbox has rows on a page."""
    with installed(tmp_path_factory.mktemp("triage"), migrated_sqlite, redis_server, is_populated=True) as at:
        yield at


@pytest.fixture(scope="module")
def person(browser: Browser, running: Installed) -> Iterator[BrowserContext]:
    """A signed-in browser."""
    with signed_in(browser, running) as context:
        yield context


@pytest.fixture
def phone(browser: Browser, running: Installed) -> Iterator[Page]:
    """The inbox on a phone, scrolled to the row `FAR`."""
    with signed_in(browser, running, has_touch=True) as context:
        page = context.new_page()
        page.set_viewport_size(PHONE)
        page.goto(running.at("/inbox"))
        title(page, FAR).scroll_into_view_if_needed()
        yield page


def title(page: Page, number: int) -> Locator:
    """Return the link of a row."""
    return page.locator(".row-title").nth(number)


def top_of(found: Locator) -> float:
    """Return the distance of an element from the top of the window."""
    return float(found.evaluate("(each) => each.getBoundingClientRect().top"))


def expect_open(page: Page, number: int) -> None:
    """Wait until the ticket of a row is open."""
    export_id = title(page, number).get_attribute("data-open") or ""
    expect(page.locator('.row[aria-current="true"] a')).to_have_attribute("data-open", export_id)
    expect(page.locator("#ticket [data-copy]").first).to_have_text(export_id)


# --- shortcuts


def test_shortcuts_that_are_off_are_turned_on_again_by_the_button_or_by_the_key(
    browser: Browser, running: Installed
) -> None:
    with signed_in(browser, running) as context, visit(context, running.at("/inbox")) as seen:
        page, dialog = seen.page, seen.page.locator("#keys")
        for reopened_by in ("button", "key"):
            page.keyboard.press("?")
            dialog.get_by_role("button", name="Turn shortcuts off").click()
            expect(page.locator("#keys[data-keys=off]")).to_have_count(1)
            page.wait_for_url("**/inbox")
            first = page.url
            page.keyboard.press("j")
            page.keyboard.press("x")
            assert page.locator(".row :checked").count() == 0
            if reopened_by == "button":
                page.get_by_role("button", name="Shortcuts").click()
            else:
                page.keyboard.press("?")
            expect(dialog).to_be_visible()
            assert page.url == first
            dialog.get_by_role("button", name="Turn shortcuts on").click()
            expect(page.locator("#keys[data-keys=on]")).to_have_count(1)
            # Shortcuts work once the script runs.
            page.wait_for_load_state()
        page.keyboard.press("x")
        expect(page.locator(".row :checked")).to_have_count(1)


def test_escape_leaves_a_field_so_that_keys_have_an_effect_again(browser: Browser, running: Installed) -> None:
    with signed_in(browser, running) as context, visit(context, running.at("/inbox")) as seen:
        page = seen.page
        for field in (page.get_by_role("searchbox"), page.get_by_label("Target", exact=True)):
            field.focus()
            page.keyboard.press("x")
            expect(page.locator(".row :checked")).to_have_count(0)
            page.keyboard.press("Escape")
            expect(field).not_to_be_focused()
            page.keyboard.press("x")
            expect(page.locator(".row :checked")).to_have_count(1)
            page.keyboard.press("x")


@pytest.mark.parametrize(("key", "decision"), [("a", "approve"), ("d", "dismiss")])
def test_with_a_selection_keys_decide_on_it_and_not_on_the_ticket_beside_the_list(
    key: str, decision: str, browser: Browser, running: Installed
) -> None:
    with signed_in(browser, running) as context, visit(context, running.at("/inbox")) as seen:
        page = seen.page
        page.keyboard.press("x")
        page.keyboard.press("j")
        expect_open(page, 1)
        with page.expect_request(lambda asked: asked.method == "POST") as sent:
            page.keyboard.press(key)
        assert sent.value.url == running.at("/inbox/review")
        assert f"action={decision}" in (sent.value.post_data or "")
        expect(page.get_by_role("heading", name="1 ticket")).to_be_visible()


def test_keys_decide_on_every_ticket_of_the_list_although_no_row_is_selected(browser: Browser, running: Installed) -> None:
    with signed_in(browser, running) as context, visit(context, running.at("/inbox")) as seen:
        page = seen.page
        page.keyboard.press("x")
        page.get_by_label("that match").check()
        page.locator(".row input").first.uncheck()
        with page.expect_request(lambda asked: asked.method == "POST") as sent:
            page.keyboard.press("a")
        assert sent.value.url == running.at("/inbox/review")


def test_the_shortcuts_are_listed_for_a_finger_and_not_offered_without_the_script(
    phone: Page, browser: Browser, running: Installed
) -> None:
    phone.evaluate("scrollTo(0, 0)")
    button, search = phone.get_by_title("Keyboard shortcuts"), phone.get_by_role("searchbox")
    # Both are on one line, so the button takes no room from the list.
    assert abs(top_of(button) - top_of(search)) < 2
    button.tap()
    expect(phone.locator("#keys")).to_be_visible()
    with signed_in(browser, running, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(running.at("/inbox"))
        expect(page.locator("[data-help]")).to_be_hidden()


# --- on a phone


def test_a_ticket_on_a_phone_begins_at_its_title_and_has_the_focus(phone: Page) -> None:
    title(phone, FAR).tap()
    heading = phone.locator("#ticket-title")
    expect(heading).to_be_focused()
    expect_open(phone, FAR)
    expect(heading).to_be_in_viewport(ratio=1)
    expect(phone.get_by_role("link", name="All tickets")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("way", ["back", "link"])
def test_going_back_on_a_phone_restores_the_position_of_the_list(way: str, phone: Page) -> None:
    phone.evaluate("window.isTheSame = true")
    before = phone.evaluate("scrollY")
    assert before > PHONE["height"]
    title(phone, FAR).tap()
    expect(phone.locator("#ticket-title")).to_be_focused()
    phone.evaluate("scrollTo(0, 0)")
    if way == "back":
        phone.go_back()
    else:
        phone.get_by_role("link", name="All tickets").tap()
    expect(title(phone, FAR)).to_be_focused()
    expect(title(phone, FAR)).to_be_in_viewport(ratio=1)
    assert phone.evaluate("scrollY") == before
    assert phone.evaluate("window.isTheSame"), "the page was not loaded again"
    assert "export=" not in phone.url
    # The same works again.
    title(phone, FAR - 1).tap()
    expect(phone.locator("#ticket-title")).to_be_focused()
    expect_open(phone, FAR - 1)
    phone.go_back()
    phone.go_forward()
    expect(phone.locator("#ticket-title")).to_be_focused()
    expect_open(phone, FAR - 1)


def test_the_way_back_from_a_ticket_that_was_loaded_again_leads_to_its_row(phone: Page) -> None:
    title(phone, FAR).tap()
    expect(phone.locator("#ticket-title")).to_be_focused()
    phone.reload()
    phone.get_by_role("link", name="All tickets").tap()
    expect(title(phone, FAR)).to_be_focused()
    expect(title(phone, FAR)).to_be_in_viewport(ratio=1)


def test_a_ticket_loaded_after_going_back_does_not_replace_the_list(phone: Page) -> None:
    title(phone, FAR).tap()
    expect(phone.locator("#ticket-title")).to_be_focused()
    phone.go_back()
    expect(title(phone, FAR)).to_be_focused()
    held: list[Route] = []
    phone.route("**/*export=*", lambda route: held.append(route))  # noqa: PLW0108 - a built-in method takes no marks
    with phone.expect_request("**/*export=*"):
        phone.evaluate("history.forward()")
    phone.evaluate("history.back()")
    expect(phone.locator("#ticket")).not_to_have_attribute("aria-busy", "true")
    with phone.expect_response("**/*export=*") as answered:
        held[0].continue_()
    answered.value.finished()
    # The response is complete; its effect would show after the pending tasks.
    phone.evaluate("new Promise((done) => setTimeout(done))")
    expect(title(phone, FAR)).to_be_in_viewport(ratio=1)
    assert "export=" not in phone.url


def test_the_selection_on_a_phone_is_in_view_and_covers_neither_the_menu_nor_the_last_row(phone: Page) -> None:
    before = top_of(title(phone, FAR))
    phone.locator(".row input").nth(FAR).check()
    selection = phone.locator("#selection")
    expect(selection).to_be_in_viewport(ratio=1)
    assert top_of(title(phone, FAR)) == before
    bar, menu = selection.bounding_box(), phone.locator(".side").bounding_box()
    assert bar is not None
    assert menu is not None
    assert bar["y"] + bar["height"] <= menu["y"] + 1
    phone.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last = phone.locator(".row").last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] <= bar["y"]
    # An open ticket has its own decisions at the bottom; with the list, the selection is shown again.
    title(phone, FAR).tap()
    expect(phone.locator("#ticket-title")).to_be_focused()
    expect(selection).to_be_hidden()
    phone.go_back()
    expect(selection).to_be_in_viewport(ratio=1)
    expect(phone.locator("[data-selected]")).to_have_text("1 selected")


# --- on a desktop


def list_top(page: Page) -> int:
    """Return the scroll position of the list beside the ticket."""
    return int(page.locator(".pane-list").evaluate("(list) => list.scrollTop"))


def test_the_way_back_keeps_the_list_its_position_and_its_selection(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/inbox")) as seen:
        page = seen.page
        page.evaluate("window.isTheSame = true")
        page.locator(".row input").nth(FAR).check()
        title(page, FAR).click()
        expect_open(page, FAR)
        title(page, FAR - 2).click()
        expect_open(page, FAR - 2)
        before = list_top(page)
        assert before > 0
        page.go_back()
        expect_open(page, FAR)
        assert list_top(page) == before
        # The address without a ticket shows the first one beside the list.
        page.go_back()
        expect_open(page, 0)
        assert list_top(page) == before
        page.go_forward()
        expect_open(page, FAR)
        expect(page.locator(".row :checked")).to_have_count(1)
        assert page.evaluate("window.isTheSame")


def test_after_a_decision_the_row_of_the_next_ticket_is_in_view(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/inbox")) as seen:
        page = seen.page
        title(page, FAR).click()
        expect_open(page, FAR)
        following = title(page, FAR + 1).get_attribute("data-open") or ""
        page.locator("#ticket summary", has_text="Dismiss").click()
        page.locator("#ticket").get_by_role("button", name="Dismiss", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Ticket dismissed.")).to_be_visible()
        row = page.locator('.row[aria-current="true"]')
        expect(row.locator("a")).to_have_attribute("data-open", following)
        expect(row).to_be_in_viewport(ratio=1)
        # The next row is in view, too.
        expect(page.locator('.row[aria-current="true"] + .row')).to_be_in_viewport(ratio=1)
        assert page.evaluate("scrollY") == 0
        assert "undo=" not in page.url
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_role("status").filter(has_text="Ticket restored.")).to_be_visible()
        expect_open(page, FAR)


def test_the_way_back_from_a_decision_on_a_selection_is_the_list(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/inbox?severity=high")) as seen:
        page = seen.page
        page.locator(".row input").first.check()
        page.locator("#selection").get_by_role("button", name="Dismiss").click()
        page.get_by_role("button", name="Dismiss 1 ticket").click()
        expect(page.get_by_role("link", name="Back to the list")).to_be_focused()
        page.go_back()
        expect(page.locator(".row").first).to_be_visible()
        assert page.url == running.at("/inbox?severity=high")


def test_a_row_that_is_in_view_stays_where_it_is_when_its_ticket_is_loaded(
    running: Installed, person: BrowserContext
) -> None:
    with visit(person, running.at("/inbox")) as seen:
        address = title(seen.page, 3).get_attribute("href") or ""
        seen.page.goto(re.sub(r"/relay/.*", address, running.url))
        expect_open(seen.page, 3)
        assert list_top(seen.page) == 0


def test_a_ticket_that_keys_open_has_the_focus_and_one_that_a_pointer_opens_has_not(
    running: Installed, person: BrowserContext
) -> None:
    with visit(person, running.at("/inbox")) as seen:
        page, heading = seen.page, seen.page.locator("#ticket-title")
        for number in (4, 4, 5):
            title(page, number).focus()
            page.keyboard.press("Enter")
            expect(heading).to_be_focused()
            expect_open(page, number)
        assert heading.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"
        title(page, 6).click()
        expect_open(page, 6)
        expect(title(page, 6)).to_be_focused()


@pytest.mark.parametrize("has_script", [True, False])
def test_a_link_skips_the_list(has_script: bool, browser: Browser, running: Installed) -> None:
    with signed_in(browser, running, java_script_enabled=has_script) as context:
        page = context.new_page()
        page.goto(running.at("/inbox"))
        skip = page.get_by_role("link", name="Skip to ticket")
        skip.focus()
        expect(skip).to_be_in_viewport(ratio=1)
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.locator("#ticket :focus")).to_have_count(1)
        # A phone shows only the list, so there is no ticket to skip to.
        page.set_viewport_size(PHONE)
        expect(skip).to_be_hidden()


# --- layout


def test_the_phases_of_an_attempt_are_a_thin_bar(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/exports/{attempted_id}")) as seen:
        assert seen.page.locator(".split").first.evaluate("(bar) => bar.getBoundingClientRect().height") == 8


def test_the_overview_fits_a_phone_with_its_tables_open(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/overview")) as seen:
        page = seen.page
        tag = page.locator(".numbers .status").first
        tag.evaluate("(tag) => { tag.textContent = '1 234 567 scheduled for retry'; }")
        for summary in page.get_by_text("Show as table").all():
            summary.click()
        assert_fits(page, PHONE)
        inside = "(tag) => tag.getBoundingClientRect().right <= tag.closest('li').getBoundingClientRect().right"
        assert tag.evaluate(inside)
        for table in page.locator("details[open] table").all():
            assert table.evaluate("(table) => Boolean(table.closest('.scroll'))")


def test_the_reports_of_the_overview_are_a_menu_that_closes(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/overview")) as seen:
        menu, options = seen.page.get_by_text("Report for a client"), seen.page.locator(".menu .options")
        menu.click()
        expect(options).to_be_visible()
        seen.page.keyboard.press("Escape")
        expect(options).to_be_hidden()
        expect(menu).to_be_focused()
        menu.click()
        assert_fits(seen.page, PHONE)
        seen.page.get_by_role("heading", name="Overview").click()
        expect(options).to_be_hidden()


@pytest.mark.parametrize("path", ["/inbox", "/deliveries"])
def test_paper_has_every_row(path: str, running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at(path)) as seen:
        page = seen.page
        page.emulate_media(media="print")
        page.set_viewport_size(PAPER)
        cut = """() => [...document.querySelectorAll(".row, #ticket > *")].filter((each) => {
          for (let around = each.parentElement; around !== document.body; around = around.parentElement) {
            const { overflowY } = getComputedStyle(around);
            if (overflowY !== "visible" && around.scrollHeight > around.clientHeight + 1) return true;
          }
          return each.getBoundingClientRect().bottom > document.documentElement.scrollHeight + 1;
        }).length"""
        assert page.locator(".row").last.is_visible()
        assert page.evaluate(cut) == 0


def test_buttons_have_one_weight_whatever_element_they_are(running: Installed, person: BrowserContext) -> None:
    for path in ("/inbox", "/overview"):
        with visit(person, running.at(path)) as seen:
            weights = (
                "[...document.querySelectorAll('main :is(button, .button)')].map((e) => getComputedStyle(e).fontWeight)"
            )
            assert {*seen.page.evaluate(weights)} == {"550"}


def test_a_copy_button_leaves_its_block_the_full_width_and_covers_nothing(
    running: Installed, person: BrowserContext
) -> None:
    with visit(person, running.at("/exports/{prepared_id}")) as seen:
        page = seen.page
        page.locator("#ticket summary", has_text="Details").click()
        block = page.locator("pre[data-copy]").last
        box, around = block.bounding_box(), block.locator("xpath=..").bounding_box()
        assert box is not None
        assert around is not None
        assert box["width"] == around["width"]
        button = block.locator("xpath=preceding-sibling::button[1]").bounding_box()
        assert button is not None
        assert button["y"] + button["height"] <= box["y"]


def test_the_names_of_the_menu_fit_their_highlight(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/queue")) as seen:
        seen.page.set_viewport_size(DESKTOP)
        names = seen.page.locator(".side li > a > span:not(.count)")
        assert [each for each in names.all() if each.evaluate("(name) => name.scrollWidth > name.clientWidth")] == []


def test_labels_are_words_and_every_id_of_the_details_can_be_copied(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/exports/{prepared_id}")) as seen:
        page = seen.page
        expect(page.locator("#ticket .labels")).to_have_text(re.compile(r"^Labels: \S+(, \S+)*$"))
        assert page.locator("#ticket .labels .status").count() == 0
        page.locator("#ticket summary", has_text="Details").click()
        codes = page.locator("#ticket details.fold dd > code")
        assert codes.count() >= 3
        for code in codes.all():
            assert code.evaluate("(code) => code.nextElementSibling?.matches('button.copy')"), code.text_content()


def test_the_enter_key_closes_the_list_of_shortcuts(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/inbox")) as seen:
        dialog = seen.page.locator("#keys")
        seen.page.keyboard.press("?")
        expect(dialog.get_by_role("button", name="Close")).to_be_focused()
        seen.page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        assert dialog.get_attribute("data-keys") == "on"


def test_the_key_of_the_next_ticket_leads_from_the_last_row_to_the_next_page(
    running: Installed, person: BrowserContext
) -> None:
    with visit(person, running.at("/inbox")) as seen:
        page = seen.page
        first = title(page, 0).get_attribute("data-open")
        title(page, PAGE_ROWS - 1).click()
        expect_open(page, PAGE_ROWS - 1)
        page.keyboard.press("j")
        page.wait_for_url("**cursor=**")
        expect_open(page, 0)
        assert title(page, 0).get_attribute("data-open") != first


def test_opening_another_ticket_removes_the_notice_of_the_last_decision(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/inbox?done=dismissed")) as seen:
        expect(seen.page.locator(".notice")).to_be_visible()
        seen.page.keyboard.press("j")
        expect_open(seen.page, 1)
        expect(seen.page.locator(".notice")).to_have_count(0)


@pytest.mark.parametrize("width", [800, 900, 1100, 1280, 1440])
def test_menus_stay_on_the_screen(width: int, running: Installed, person: BrowserContext) -> None:
    for path in ("/inbox", "/deliveries"):
        with visit(person, running.at(path)) as seen:
            page = seen.page
            page.set_viewport_size({**DESKTOP, "width": width})
            for menu in page.locator(".chips > .menu").all():
                menu.locator("summary").click()
                expect(menu.locator(".options")).to_be_in_viewport(ratio=1)
                # No count takes two lines.
                heights = menu.locator("b").evaluate_all("(all) => all.map((each) => each.offsetHeight)")
                assert max(heights, default=0) < 30
            assert_fits(page, {**DESKTOP, "width": width})


@pytest.mark.parametrize("width", [PHONE["width"], 800, 1280])
def test_without_the_script_menus_stay_on_the_screen_and_no_key_is_named(
    width: int, browser: Browser, running: Installed
) -> None:
    with signed_in(browser, running, java_script_enabled=False) as context:
        page = context.new_page()
        page.set_viewport_size({**DESKTOP, "width": width})
        for path in ("/inbox", "/deliveries"):
            page.goto(running.at(path))
            expect(page.locator("kbd:visible")).to_have_count(0)
            for menu in page.locator(".chips > .menu").all():
                menu.locator("summary").click()
                expect(menu.locator(".options")).to_be_in_viewport(ratio=1)
                # Only one menu is open at a time.
                expect(page.locator(".menu[open]")).to_have_count(1)


def test_rows_that_move_down_when_deliveries_are_renewed_keep_the_focus(running: Installed, person: BrowserContext) -> None:
    with visit(person, running.at("/deliveries")) as seen:
        page = seen.page
        shown = page.request.get(page.url).text()
        new = re.search(r'<li class="row".*?</li>', shown, re.DOTALL)
        assert new is not None
        # A new delivery begins, and its row is the first.
        row = re.sub(r'data-open="[^"]+"', 'data-open="another"', new[0].replace(' aria-current="true"', ""))
        renewed = shown.replace(new[0], row + new[0])
        page.route("**/deliveries*", lambda route: route.fulfill(body=renewed, content_type="text/html"))
        title(page, 1).focus()
        focused = title(page, 1).get_attribute("data-open")
        page.evaluate("refresh()")
        expect(title(page, 0)).to_have_attribute("data-open", "another")
        expect(title(page, 2)).to_have_attribute("data-open", focused or "")
        expect(title(page, 2)).to_be_focused()
