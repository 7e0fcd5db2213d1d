"""The outbound door: the RQ daemon that signs and delivers exports. It never imports the service."""
