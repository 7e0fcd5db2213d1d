"""Which targets an export may be approved for; every rejection names its cause and remedy."""

from datetime import timedelta

import pytest

from schemas.base.errors import ValidationFailed
from schemas.targets.approval import ApprovalState, TargetUrlRefused, not_active, require_approvable
from schemas.targets.target import TargetStatus
from schemas.targets.validations import REVALIDATE_AT_MOST, VALID_FOR, is_about_address, next_validation_in
from schemas.url_policy.policy import RefusalReason, TargetPolicy

ACTIVE = ApprovalState(TargetStatus.ACTIVE, None, "passed", None)
HTTPS = "https://tracker.example.com/hook"

#: Columns: the state of a target; the code of the rejection.
STATES = [
    (ACTIVE, None),
    (ACTIVE._replace(validation_reason="certificate_expires_soon"), None),
    (ACTIVE._replace(validation_status=None), None),
    (ACTIVE._replace(validation_status="failed", validation_reason="dns_not_found"), "target_unavailable"),
    (ACTIVE._replace(validation_status="failed"), "target_unavailable"),
    *((ACTIVE._replace(status=status), "target_not_active") for status in TargetStatus if status != TargetStatus.ACTIVE),
    (ApprovalState(TargetStatus.PAUSED, "client", "failed", "tls_failed"), "target_not_active"),
]


@pytest.mark.parametrize(("state", "code"), STATES)
def test_an_export_is_approved_for_an_active_target_whose_last_validation_did_not_fail(
    state: ApprovalState, code: str | None
) -> None:
    if code is None:
        require_approvable("tgt_1", HTTPS, state, TargetPolicy())
        return
    with pytest.raises(ValidationFailed) as refused:
        require_approvable("tgt_1", HTTPS, state, TargetPolicy())
    [reported] = refused.value.problems
    assert (reported.path, reported.code) == ("/target_id", code)
    for reason in (state.status_reason, state.validation_reason if state.status == TargetStatus.ACTIVE else None):
        assert reason is None or f"({reason})" in reported.message
    next_step = "validates it again" if code == "target_unavailable" else "To resume it: "
    assert ("To set its secret: " if state.status == TargetStatus.INACTIVE else next_step) in reported.message


#: Columns: a URL; a policy that now rejects it; the reason.
REFUSED = [
    ("http://tracker.example.com/hook", TargetPolicy(), "scheme_not_allowed"),
    ("https://tracker.example.com:9443/hook", TargetPolicy(), "port_not_allowed"),
    (HTTPS, TargetPolicy(allowed_ports=((8443, 8443),)), "port_not_allowed"),
    ("https://127.0.0.1/hook", TargetPolicy(), "address_loopback"),
    ("https://169.254.169.254/hook", TargetPolicy(), "address_metadata"),
    ("https://user@tracker.example.com/hook", TargetPolicy(), "userinfo"),
]


@pytest.mark.parametrize(("url", "policy", "reason"), REFUSED)
def test_a_refused_url_raises_an_error_with_the_target_the_url_and_the_reason(
    url: str, policy: TargetPolicy, reason: str
) -> None:
    with pytest.raises(TargetUrlRefused) as refused:
        require_approvable("tgt_1", url, ACTIVE._replace(validation_status="failed"), policy)
    assert (refused.value.target_id, refused.value.base_url, refused.value.reason) == ("tgt_1", url, reason)
    [reported] = refused.value.problems
    assert (reported.path, reported.code) == ("/target_id", "target_not_active")
    assert reported.message.startswith(f"This target is blocked ({reason}). ")
    assert refused.value.message == "Validation failed"


def test_a_disabled_target_is_refused_for_its_status_and_not_for_its_url() -> None:
    with pytest.raises(ValidationFailed) as refused:
        require_approvable("tgt_1", "http://10.0.0.1/", ACTIVE._replace(status=TargetStatus.DISABLED), TargetPolicy())
    assert not isinstance(refused.value, TargetUrlRefused)


def test_failed_targets_are_validated_again_later_each_time_and_at_least_once_an_hour() -> None:
    assert next_validation_in(0) == VALID_FOR
    waits = [next_validation_in(failures) for failures in range(1, 40)]
    assert waits[:7] == [timedelta(seconds=seconds) for seconds in (30, 60, 120, 240, 480, 960, 1920)]
    assert set(waits[7:]) == {REVALIDATE_AT_MOST}


def test_only_failures_of_the_url_and_its_name_are_about_the_address() -> None:
    assert [reason for reason in RefusalReason if not is_about_address(reason.value)] == []
    assert is_about_address("dns_timeout")
    for reason in (None, "connect_refused", "tls_certificate", "certificate_expired", "deadline_exceeded"):
        assert not is_about_address(reason)


@pytest.mark.parametrize("reason", [None, "no_secret", "no_standard_secret"])
def test_the_message_for_an_inactive_target_names_the_command_for_its_secret_once(reason: str | None) -> None:
    assert not_active(TargetStatus.INACTIVE, reason).message.count("secret set target") == 1
