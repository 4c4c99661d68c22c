"""Facts as text, tables and pictures."""
