"""Where tickets may be sent: the form of a target URL and the classes of addresses."""
