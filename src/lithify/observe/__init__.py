"""Logs, progress and metrics, all made from events."""
