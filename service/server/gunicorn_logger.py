"""Writes gunicorn's log lines in our format, including those of the parent process."""

from typing import Any

from gunicorn.glogging import Logger


class RootLogger(Logger):  # type: ignore[misc]  # gunicorn has no annotations
    """Passes gunicorn's records to the root logger, which `runtime.logs` configures."""

    def setup(self, cfg: Any) -> None:
        """Set up logging as gunicorn does, then remove gunicorn's handlers."""
        super().setup(cfg)
        self.error_log.propagate = True
        self.error_log.handlers.clear()
