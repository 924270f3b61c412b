"""Alerts: what a service tells people about its pipelines when nobody is looking."""
