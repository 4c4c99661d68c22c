"""Keyed logs in Kafka's record-batch format: reading, checking, planning, cleaning and publishing."""
