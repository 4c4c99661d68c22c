"""What is told of the work as it goes on: logs, progress, metrics. Each is drawn from events."""
