"""Outbound HTTP: the daemon that signs and delivers exports. It never imports the service."""
