"""Starts gunicorn, as `python -m gunicorn` does, but never imports from the current folder: others may write in it."""

from gunicorn.app.wsgiapp import WSGIApplication


class ServiceApplication(WSGIApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn without its change of the import path."""

    def chdir(self) -> None:
        """Stay in the current folder, and leave it off the import path."""


if __name__ == "__main__":
    ServiceApplication("%(prog)s [OPTIONS] [APP_MODULE]", prog="gunicorn").run()
