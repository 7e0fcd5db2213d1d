"""Servers of measurements: installations, services, receivers, databases and proxies on loopback."""
