"""What a measurement runs: installations, services, receivers, databases and proxies on loopback."""
