"""The documentation site: `make site` builds it from docs/ and what the code says of itself."""
