"""The foreign judges: what the official SlateDB client and Java Iceberg make of our work, and how tests ask
them."""
