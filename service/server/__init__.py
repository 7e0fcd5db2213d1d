"""The gunicorn worker and its client connections."""
