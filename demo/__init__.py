"""A demonstration: a SlateDB database, compacted by Lithify, judged by SlateDB's own client."""
