"""Apache Iceberg tables as datasets, through PyIceberg."""
