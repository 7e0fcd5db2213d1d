"""Loaded once by gunicorn, before it forks the processes that serve: settings, the database, the application.

Nothing connects, starts a thread or opens a file here; the processes do so when they first need to.
"""

from runtime import logs
from schemas.base.fields import WebUrl
from schemas.settings.definitions import RouteFamily, load_settings
from service.app import create_app
from service.http.rejections import RejectionRecorder
from storage.db.engine import open_database


def _open_database(url: str) -> None:
    if url.startswith("sqlite:"):
        open_database(url)
        return
    from service.server.greenlet_connection import GreenletConnection  # noqa: PLC0415 - SQLite does not need its driver

    open_database(url, driver=GreenletConnection)


_settings = load_settings()
# Again: gevent has patched the locks of logging since `gunicorn_config` did it.
logs.configure(_settings.log_level, _settings.log_format)
_open_database(_settings.database_url)
_rejections = RejectionRecorder()
if RouteFamily.CONSOLE in _settings.route_families:
    _rejections.start()
app = create_app(_settings, rejections=_rejections)
# marshmallow compiles the expression for URLs when one is first checked: 30 ms, which no request should wait for.
WebUrl().deserialize("https://riskrelay.invalid/")
