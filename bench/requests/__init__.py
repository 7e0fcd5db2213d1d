"""Measurements of requests to the service: rates, and response times beside slow and hostile clients."""
