"""The address of a list: what its links keep, and what a change of filters removes."""

from service.console.triage.list_address import ListAddress

ADDRESS = ListAddress("/inbox", {"severity": "high,low", "q": "a b&c", "cursor": "Mg", "export": "exp_1"})


def test_an_address_without_parameters_is_its_path() -> None:
    assert ListAddress("/inbox", {}).href() == "/inbox"
    assert ListAddress("/inbox", {"q": ""}).href() == "/inbox"


def test_a_link_keeps_and_encodes_the_parameters_that_it_does_not_change() -> None:
    assert ADDRESS.href(export="exp_2") == "/inbox?severity=high,low&q=a+b%26c&cursor=Mg&export=exp_2"
    assert ADDRESS.href(cursor=None, export=None) == "/inbox?severity=high,low&q=a+b%26c"


def test_another_filter_begins_at_the_first_page() -> None:
    assert ADDRESS.filtered(q=None) == "/inbox?severity=high,low"


def test_a_value_is_added_to_a_filter_and_removed_again() -> None:
    assert ADDRESS.toggled("severity", "info") == "/inbox?severity=high,low,info&q=a+b%26c"
    assert ADDRESS.toggled("severity", "high") == "/inbox?severity=low&q=a+b%26c"
    assert ListAddress("/inbox", {"severity": "low"}).toggled("severity", "low") == "/inbox"


def test_a_value_may_have_commas() -> None:
    address = ListAddress("/inbox", {"rule": r"Image\, without alt,zap"})
    assert address.values("rule") == ["Image, without alt", "zap"]
    assert address.toggled("rule", "zap") == "/inbox?rule=Image%5C,+without+alt"
    assert ListAddress("/inbox", {}).toggled("rule", "a,b") == "/inbox?rule=a%5C,b"


def test_a_search_form_keeps_the_filters_but_not_the_page() -> None:
    assert list(ADDRESS.fields("q")) == [("severity", "high,low")]
