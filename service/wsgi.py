"""What gunicorn loads in each worker process: settings, the database, the application."""

from runtime import error_reports, logs, metrics, tracing
from schemas.settings.definitions import RouteFamily, load_settings
from service.app import create_app
from service.http.rejections import RejectionRecorder
from service.server.greenlet_connection import GreenletConnection
from storage.db.engine import open_database

_settings = load_settings()
logs.configure(_settings.log_level, _settings.log_format)
error_reports.configure(_settings, "service")
tracing.configure(_settings, "service")
metrics.open_files(_settings.data_dir, metrics.ProcessKind.SERVICE)
open_database(_settings.database_url, driver=GreenletConnection)
_rejections = RejectionRecorder()
if RouteFamily.CONSOLE in _settings.route_families:
    _rejections.start()
app = create_app(_settings, rejections=_rejections)
