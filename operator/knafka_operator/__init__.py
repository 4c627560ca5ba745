"""The control plane: from what is declared in Kubernetes to what the functions are told.

    model      declared values: resources, identity, autoscaling, conditions, settings
    decide     pure: what was observed -> status, topics, contracts, manifests, effects in order
    scale      how many drains each Trigger has, one scaler for each Kafka cluster
    reconcile  observe, decide and act for each kind; one record of state for each object
    engine     one controller for the objects of every kind
    runtime    watches, cache, API client, webhooks (kopf), Lease, metrics

The local mode runs all but `runtime`, on a `Cluster` of its own.
"""
