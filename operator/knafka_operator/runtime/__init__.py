"""What ties the operator to Kubernetes: watches, cache, API client, webhooks, Lease, metrics."""
