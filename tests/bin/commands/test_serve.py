"""The service and workers check the installation at their start, and apply its default secret to the targets."""

from pathlib import Path

import pytest

from bin.cli.installation import WrongSettings, database_at
from bin.commands.installation.serve import require_startable
from storage.db.engine import connection
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets
from tests.support.factories import make_customer, make_settings, make_target

#: The mode, whether the operator's account is set, and the statuses of its target and of another account's target.
STARTS = [
    ("self-hosted", False, ["active", "active"]),
    ("cloud", True, ["active", "inactive"]),
    ("cloud", False, ["inactive", "inactive"]),
]


@pytest.mark.parametrize(("mode", "is_named", "statuses"), STARTS)
def test_a_start_deactivates_targets_of_accounts_that_may_not_use_the_default_secret(
    mode: str, is_named: bool, statuses: list[str], database_url: str, tmp_path: Path
) -> None:
    with database_at(database_url), connection():
        operator, other = make_customer(), make_customer()
        made = [make_target(each).id for each in (operator, other)]
    changes = {"DATABASE_URL": database_url, "DEPLOYMENT_MODE": mode}
    require_startable(make_settings(tmp_path, {**changes, "OPERATOR_ACCOUNT_ID": str(operator.account_id * is_named or "")}))
    with database_at(database_url), connection():
        assert [targets.get(each, DefaultSecret()).status.value for each in made] == statuses
    require_startable(make_settings(tmp_path, {"DATABASE_URL": database_url, "DEPLOYMENT_MODE": "self-hosted"}))
    with database_at(database_url), connection():
        assert {targets.get(each, DefaultSecret()).status.value for each in made} == {"active"}


def test_a_start_without_keys_is_refused_and_changes_nothing(database_url: str, tmp_path: Path) -> None:
    with database_at(database_url), connection():
        target = make_target(make_customer())
    settings = make_settings(tmp_path, {"DATABASE_URL": database_url, "DEPLOYMENT_MODE": "cloud"}, encryption_keys=())
    with pytest.raises(WrongSettings, match="ENCRYPTION_KEYS: set neither"):
        require_startable(settings)
    with database_at(database_url), connection():
        assert targets.get(target.id, DefaultSecret()).status == "active"
