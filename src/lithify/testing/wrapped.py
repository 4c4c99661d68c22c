"""The wrapped store, by the name tests know it."""

from lithify.store.wrapped import Call, WrappedStore, WrappedWriter

__all__ = ["Call", "WrappedStore", "WrappedWriter"]
