"""Where tickets may be sent: target URLs, address classes, the operator's policy."""
