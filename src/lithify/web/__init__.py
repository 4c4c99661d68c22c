"""The dashboard: pages, JSON and events over HTTP. A rendering of `lithify.client` and `lithify.fleets`, with
no logic of its own."""
