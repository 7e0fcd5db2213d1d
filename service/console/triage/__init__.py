"""Pages where people decide: the inbox, deliveries, decisions on one ticket or many, and approval rules."""
