"""Quotas of clients: how much each may use, and how long one that used more has to wait."""
