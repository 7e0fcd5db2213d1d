"""Pages for decisions: the inbox, deliveries, decisions on one ticket or many, and approval rules."""
