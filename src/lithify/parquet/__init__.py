"""Merging Parquet files by copying their pages, without decoding rows. It knows nothing of tables.

From the lowest layer up:

- `errors`: the reasons for which pages cannot be copied.
- `thrift`: Thrift's compact protocol. `footer`: a file's footer. `statistics`: bounds and their order.
- `kernel`: compiled code for levels, indexes and values.
- `pages`: the pages of a column chunk, checked.
- `columns`: one output column chunk of many. `decoding`: columns that Arrow decodes.
- `copier`: many files to one.
"""
