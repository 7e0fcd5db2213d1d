"""Runs compliance requests as a worker does."""

from runtime.clock import utc_now
from storage.secrets.vault import Vault
from worker.background.compliance import ComplianceTask


def run_compliance_tasks(vault: Vault) -> None:
    """Run due compliance requests until none is left. Fails if one of them fails."""
    task = ComplianceTask(vault, "worker:test", utc_now)
    while task.run_once():
        pass
    assert task.failed == 0
