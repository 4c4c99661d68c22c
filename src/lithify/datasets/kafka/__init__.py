"""Keyed logs in Kafka's record-batch format. So far the engine: reading, checking, filtering, writing and
planning of record batches, as functions of values. No URL leads here yet."""
