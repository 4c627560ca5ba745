"""Ports: what the planes ask of Kafka and of HTTP, as Protocols and value types without any IO.

    log         append, read, administer; `knafka.clients` has it on Kafka and in memory
    subscriber  one POST to one destination; `knafka.clients` has it over HTTP/1.1

Every plane may import them. The drain between both planes is a document: see `knafka.core.drain`.
"""
