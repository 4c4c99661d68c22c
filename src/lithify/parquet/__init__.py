"""Merging Parquet files by copying their pages, without decoding rows. It knows nothing of tables.

From the lowest layer up:

- `errors`: the reasons for which pages cannot be copied.
- `thrift`: Thrift's compact protocol. `footer`: what a footer says, checked. `statistics`: bounds and their order.
- `kernel`: compiled code for levels, indexes and values.
- `pages`: the pages of a column chunk, checked. `repack`: pages built from others' levels, indexes and values.
- `columns`: one output column chunk of many. `decoding`: the same through Arrow, for what cannot be copied.
- `copier`: many files to one.
"""
