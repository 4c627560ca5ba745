"""Clients: IO, thin, each behind a Protocol of `knafka.ports`; nothing here decides anything.

log         kafka_writer, kafka_reader, kafka_admin
subscriber  http_subscriber
"""
