"""Submissions of inbound sources: findings, handoffs, emails, rejections."""
