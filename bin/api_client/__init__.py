"""Requests to a RiskRelay, also on another host: the only part of the command line that sends them."""
