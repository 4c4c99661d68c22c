"""Coordination of several processes on one dataset, for all kinds."""
