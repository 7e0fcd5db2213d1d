"""Starts gunicorn as `python -m gunicorn` does, but never imports from the current folder: other users may write to it.

GUNICORN_CMD_ARGS is ignored: some platforms set it for every program, to another address and an access log with queries.
"""

import os
from pathlib import Path

os.environ.pop("GUNICORN_CMD_ARGS", None)

# gunicorn's defaults contain the current folder, and it could not be imported without one.
try:
    Path.cwd()
except FileNotFoundError:
    os.chdir("/")

from gunicorn.app.wsgiapp import WSGIApplication


class ServiceApplication(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's application, without the change of the import path."""

    def chdir(self) -> None:
        """Stay in the current folder, and do not add it to the import path."""


if __name__ == "__main__":
    ServiceApplication("%(prog)s [OPTIONS] [APP_MODULE]", prog="gunicorn").run()
