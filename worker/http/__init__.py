"""Outbound HTTP: guarded client, connection pool, dialer, deadline, response parser, signing."""
