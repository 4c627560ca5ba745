"""The console: Brokers, KafkaChannels and what gets their events as one page, with what its viewer
may do to them.

    model     the console's documents, and `Source`, the Protocol that gets them
    sources   of a `knafka up` (`installation_console`), and of a cluster under one viewer's rights
    web       the server, the page, signing in
    opening   a console on this machine: that of `knafka up`, and `knafka console` of a cluster
    function  the same in the cluster, for many viewers (`settings`)

`python3 -m knafka_console` is the function. It is in the operator's image, so nothing that it
imports may need more than that has (requirements/operator.lock, and of `local/` the client).
Not here: what anything of it means; that is the operator's.
"""
