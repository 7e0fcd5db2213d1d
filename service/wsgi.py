"""What gunicorn loads in each worker process: settings, the database, the application."""

from schemas.settings import RouteFamily, load_settings
from service.app import create_app
from service.greenlet_connection import GreenletConnection
from service.refusals import Refusals
from storage import error_reports, logs, metrics, traces
from storage.database import open_database

_settings = load_settings()
logs.configure(_settings.log_level, _settings.log_format)
error_reports.configure(_settings, "service")
traces.configure(_settings, "service")
metrics.open_files(_settings.data_dir, metrics.Role.SERVICE)
open_database(_settings.database_url, driver=GreenletConnection)
_refusals = Refusals()
if RouteFamily.CONSOLE in _settings.route_families:
    _refusals.begin()
app = create_app(_settings, refusals=_refusals)
