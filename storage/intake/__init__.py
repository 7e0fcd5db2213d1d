"""What inbound sources submitted: findings, handoffs, emails, rejections."""
