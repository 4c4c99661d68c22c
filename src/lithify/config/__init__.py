"""The settings of a process and the origin of each value."""
