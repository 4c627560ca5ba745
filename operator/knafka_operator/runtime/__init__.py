"""Runtime: connects the operator to Kubernetes by watches, cache, API client, webhooks, Lease and
metrics."""
