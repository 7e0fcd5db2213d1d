"""Decisions on exports: their forms, bulk jobs, approval rules, and the filters that choose exports."""
