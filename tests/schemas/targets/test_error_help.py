"""Every documented error code has an explanation with its cause and remedy."""

import re
from pathlib import Path

from schemas.targets.error_help import help_for
from schemas.url_policy.policy import NEVER_ALLOWED

ERROR_CODES = Path(__file__).resolve().parents[3] / "docs" / "error-codes.md"
#: Sections about something other than addresses; the codes of addresses share one explanation.
SECTIONS = ("Codes of attempts", "Codes of trackers", "Codes of exports", "Codes of targets")


def documented(*sections: str) -> set[str]:
    """Return the codes in the first column of the tables of these sections."""
    found: set[str] = set()
    for section in ERROR_CODES.read_text().split("\n## ")[1:]:
        if section.startswith(sections):
            firsts = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
            found |= {code for first in firsts for code in re.findall(r"`(\w+)`", first)}
    return found


def test_every_documented_failure_code_has_its_own_explanation() -> None:
    shared = {help_for("address_private"), help_for("no such code")}
    codes = documented(*SECTIONS)
    assert {"connect_refused", "attempts_exhausted", "breaker_open"} <= codes
    assert [code for code in sorted(codes) if help_for(code) in shared] == []


def test_the_explanation_of_an_address_code_names_a_setting_only_where_it_helps() -> None:
    codes = documented("Codes of addresses")
    settings = {
        "port_not_allowed": "TARGET_ALLOWED_PORTS",
        "scheme_not_allowed": "TARGET_ALLOW_HTTP",
        **dict.fromkeys(["single_label", "local_suffix", *NEVER_ALLOWED], None),
    }
    assert {"address_private", "backslash", *settings} <= codes
    for code in codes:
        named = re.findall(r"TARGET_[A-Z_]+", help_for(code).fix)
        assert named == [each for each in [settings.get(code, "TARGET_ALLOWED_NETWORKS")] if each], code
    assert help_for("no such code") != help_for("address_private")


def test_the_field_that_a_failed_validation_is_about_is_part_of_the_explanation() -> None:
    cause, fix = help_for("tracker_not_found:project")
    assert cause == f"{help_for('tracker_not_found').cause} It is about `project`."
    assert fix == help_for("tracker_not_found").fix


def test_explanations_are_sentences() -> None:
    for code in [*documented(*SECTIONS), "address_private", "no such code"]:
        why, to_do = help_for(code)
        assert why[0].isupper()
        assert why.endswith(".")
        assert to_do[0].isupper()
        assert to_do.endswith(".")
