"""Events of delivered tickets: changes by scan runs, the events formed from them, and the deliveries of events."""
