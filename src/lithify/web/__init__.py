"""The dashboard: pages, JSON and events over HTTP. It renders `lithify.api.client` and `lithify.api.fleets`,
without logic of its own."""
