"""The console: Brokers, KafkaChannels and what gets their events as one page, with what its viewer
may do to them.

    Source -> document -> server -> page                  whatever it is a console of
      local, opening                                      of a `knafka up`
      cluster, cluster_document, cluster_kafka,           of a cluster: on this machine, by
      figures, metrics                                    `knafka console`
      function, sign_in, settings                         the same in the cluster, for many viewers
    snapshot_document, dead_letter_topics                 what both have

`python3 -m knafka_local.console` is the function. It is in the operator's image, so nothing that it
imports may need more than that has (requirements/operator.lock).
Not here: what anything of it means; that is the operator's.
"""
