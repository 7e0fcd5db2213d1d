"""What gunicorn loads in each worker process: settings, the database, the application."""

from schemas.settings import load_settings
from service.app import create_app
from storage.database import open_database
from storage.logs import configure

_settings = load_settings()
configure(_settings.log_level, _settings.log_format)
open_database(_settings.database_url)
app = create_app(_settings)
