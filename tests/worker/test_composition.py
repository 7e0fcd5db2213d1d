"""What the settings make of the parts of a worker."""

from pathlib import Path

import pytest

from tests.support.factories import make_settings
from worker import composition


@pytest.mark.parametrize("changes", [{"CONSOLE_ENABLED": "false"}, {"DEPLOYMENT_MODE": "webhook-only"}])
def test_no_ticket_links_to_a_console_that_is_not_served(tmp_path: Path, changes: dict[str, str]) -> None:
    base = {"PUBLIC_BASE_URL": "https://relay.example.com"}
    assert composition.compose_event_options(make_settings(tmp_path, base)).public_base_url == base["PUBLIC_BASE_URL"]
    assert composition.compose_event_options(make_settings(tmp_path, base | changes)).public_base_url is None
