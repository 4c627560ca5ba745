"""The console: a page that shows Brokers, channels and Triggers, and lets viewers act on them.

    model     the console's documents, and `Source`, the Protocol that provides them
    sources   a `knafka up` (`installation_console`), or a cluster under one viewer's rights
    web       the server, the page, signing in
    opening   serves a console on this machine: for `knafka up`, or `knafka console` of a cluster
    function  serves it in the cluster, for many viewers (`settings`)

`python3 -m knafka_console` is the function. It runs in the operator's image, so it may import only
what this image has: requirements/operator.lock, and of `local/` the client.
Not here: what the shown states mean; the operator decides that.
"""
