"""A fleet: many datasets, a few coordinators that watch them, and one pool of workers."""
