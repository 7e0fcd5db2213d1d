"""Every provider is described, and a request for its target has a closed form with the settings of that provider."""

from typing import Any, Final

import pytest
from openapi_schema_validator import OAS31Validator

from schemas.base.errors import ValidationFailed
from schemas.targets.forms import TargetForm, settings_form
from schemas.targets.providers import PROVIDERS, setting_from
from schemas.targets.target import TargetRequest
from schemas.trackers.registry import GENERIC_WEBHOOK, TRACKERS, provider_keys
from tests.support.trackers.settings import OF_ALL, REQUIRED, every_setting


def body(key: str, settings: object = None) -> dict[str, Any]:
    """Return a request for a new target; with the minimum settings unless others are given."""
    url = "https://tracker.example.com/acme/shop"
    given = REQUIRED.get(key, {}) if settings is None else settings
    return {"provider_key": key, "base_url": url, "name": "Shop", "provider_settings": given}


def problems(request: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        TargetForm().read(request)
    return sorted((each.path, each.code) for each in refused.value.problems)


def settings_of(key: str) -> list[dict[str, Any]]:
    """Return valid settings for a tracker."""
    least = REQUIRED.get(key, {})
    return [least, {**least, **OF_ALL}, every_setting(key)]


def unfit_settings_of(key: str) -> list[tuple[Any, str, str]]:
    """Return invalid settings for a tracker, each with the path and code of the problem."""
    least, path = REQUIRED.get(key, {}), "/provider_settings"
    missing: list[tuple[Any, str, str]] = [
        ({other: value for other, value in least.items() if other != name}, f"{path}/{name}", "required") for name in least
    ]
    return [
        *missing,
        (None, path, "null"),
        ([], path, "invalid_type"),
        ({**least, "token": "of-a-user"}, path, "unknown_member"),
        ({**least, "colour": "red"}, path, "unknown_member"),
        ({**least, "labels": "website-risk"}, f"{path}/labels", "invalid_type"),
        ({**least, "labels": [7]}, f"{path}/labels/0", "invalid_type"),
        ({**least, "labels": [" "]}, f"{path}/labels/0", "too_short"),
        ({**least, "labels": ["x" * 101]}, f"{path}/labels/0", "too_long"),
        ({**least, "labels": [str(number) for number in range(21)]}, f"{path}/labels", "too_many"),
        ({**least, "on_fixed": "delete"}, f"{path}/on_fixed", "not_allowed"),
        ({**least, "api_base": "tracker.example.com"}, f"{path}/api_base", "invalid_url"),
        ({**least, "api_base": "https://a:b@tracker.example.com"}, f"{path}/api_base", "invalid_url"),
    ]


def test_a_webhook_takes_no_settings() -> None:
    assert TargetForm().read(body(GENERIC_WEBHOOK)).provider_settings == {}
    assert problems(body(GENERIC_WEBHOOK, {"labels": []})) == [("/provider_settings", "unknown_member")]


@pytest.mark.parametrize("key", TRACKERS)
def test_a_tracker_takes_its_settings_and_its_rate_limit(key: str) -> None:
    for settings in settings_of(key):
        request: TargetRequest = TargetForm().read(body(key, settings))
        assert (request.provider_key, request.provider_settings) == (key, settings)
        assert request.max_per_minute == TRACKERS[key].max_per_minute
    assert TargetForm().read({**body(key), "max_per_minute": 7}).max_per_minute == 7
    assert TargetForm().read({**body(key), "max_per_minute": None}).max_per_minute is None


@pytest.mark.parametrize("key", TRACKERS)
def test_settings_that_a_tracker_does_not_have_are_refused_at_their_own_path(key: str) -> None:
    for settings, path, code in unfit_settings_of(key):
        assert problems({**body(key), "provider_settings": settings}) == [(path, code)], settings


@pytest.mark.parametrize("key", REQUIRED)
def test_a_required_setting_is_named_where_there_are_no_settings_at_all(key: str) -> None:
    request = {name: value for name, value in body(key).items() if name != "provider_settings"}
    assert problems(request) == [(f"/provider_settings/{name}", "required") for name in sorted(REQUIRED[key])]


def test_an_unknown_provider_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValidationFailed) as refused:
        TargetForm().read({**body("trello"), "provider_settings": {"board": 1}})
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("/provider_key", "not_allowed")
    assert problem.message.endswith(f": {', '.join(provider_keys())}.")


def test_every_provider_says_what_it_is_and_which_secret_it_needs() -> None:
    found = list(PROVIDERS.values())
    assert [each.key for each in found] == list(PROVIDERS) == list(provider_keys())
    for each in found:
        assert each.base_url_example.startswith("https://")
        assert each.secret.startswith(each.credential_help)
        assert each.credential_url is None or each.secret.endswith(each.credential_url)
        OAS31Validator.check_schema(each.settings_schema)
        for name, schema in each.settings_schema["properties"].items():
            assert schema["description"].endswith("."), name


@pytest.mark.parametrize("key", TRACKERS)
def test_the_described_settings_are_those_that_the_form_takes(key: str) -> None:
    validator = OAS31Validator(TRACKERS_SCHEMAS[key])
    assert TRACKERS_SCHEMAS[key]["properties"].keys() == every_setting(key).keys()
    for settings in settings_of(key):
        assert validator.is_valid(settings), settings
        assert settings_form(key).read(settings) == settings
    # A schema cannot express the rule about user names in URLs.
    beyond = ("https://a:b@tracker.example.com",)
    for settings, _, _ in unfit_settings_of(key):
        values = settings.values() if isinstance(settings, dict) else ()
        assert validator.is_valid(settings) == any(value in beyond for value in values), settings


TRACKERS_SCHEMAS: Final = {each.key: each.settings_schema for each in PROVIDERS.values()}

# Columns: the schema of a setting; the text entered; the setting.
TYPED = [
    ({"type": "array"}, ["a", "b"], ["a", "b"]),
    ({"type": "string"}, ["a", "b"], "b"),
    ({"type": "integer"}, ["3"], 3),
    ({"type": "integer"}, ["three"], "three"),
    ({"type": "integer"}, ["9" * 5000], "9" * 5000),
    ({"type": "integer"}, ["²"], "²"),
    ({}, ["unknown"], "unknown"),
]


@pytest.mark.parametrize(("schema", "texts", "setting"), TYPED)
def test_typed_text_is_converted_to_the_type_of_the_setting(
    schema: dict[str, Any], texts: list[str], setting: object
) -> None:
    assert setting_from(schema, texts) == setting
