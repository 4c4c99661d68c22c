"""The data engine: runs functions on ranges as Spark tasks, one Spark job of one task per range.

`ports.Engine` is the protocol for all callers; `spark.SparkEngine` implements it.
"""
