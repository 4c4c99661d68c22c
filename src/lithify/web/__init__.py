"""The dashboard: pages, JSON and events over HTTP. A rendering of `lithify.api.client` and
`lithify.api.fleets`, with no logic of its own."""
