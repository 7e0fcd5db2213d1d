"""Forbidden content: rules and the detectors behind them."""
