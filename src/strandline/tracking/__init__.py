"""Bookkeeping for jobs that people write themselves: plan, windows and watermark are ours, the rest is theirs."""
