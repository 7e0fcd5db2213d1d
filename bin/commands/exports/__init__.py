"""`export` with its decisions and bulk jobs, approval rules, and delivery receipts."""
