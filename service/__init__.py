"""The inbound door: Falcon resources, one noun each. It never imports the worker."""
