"""gunicorn loads this module once, before it forks the serving processes: settings, the database, the application.

This module opens no connections and files and starts no threads; each process does that when it first needs them.
"""

from runtime import logs
from schemas.base.fields import WebUrl
from schemas.settings.definitions import RouteFamily, load_settings
from service.app import create_app
from service.http.rejections import RejectionRecorder
from storage.db.engine import open_database

_settings = load_settings()
# Configured again, because gevent has patched the locks of logging since `gunicorn_config` configured it.
logs.configure(_settings.log_level, _settings.log_format)
if _settings.database_url.startswith("sqlite:"):
    open_database(_settings.database_url)
else:
    # SQLite does not need this driver.
    from service.server.greenlet_connection import GreenletConnection

    open_database(_settings.database_url, driver=GreenletConnection)
_rejections = RejectionRecorder()
if RouteFamily.CONSOLE in _settings.route_families:
    _rejections.start()
app = create_app(_settings, rejections=_rejections)
# marshmallow compiles the pattern of URLs at the first check, which takes 30 ms. No request should wait for that.
WebUrl().deserialize("https://riskrelay.invalid/")
