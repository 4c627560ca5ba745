"""The Kubernetes API: clients, cache, watches, Lease."""
