"""A fleet: many datasets, a few keepers that watch them, and one pool of workers."""
