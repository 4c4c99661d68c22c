"""The settings of a process: what there is, and where the effective values come from."""
