"""Events of delivered tickets: what scan runs changed, the events formed from it, and their deliveries."""
