"""What ties the operator to Kubernetes: kopf handlers, API client, webhooks, Lease, metrics."""
