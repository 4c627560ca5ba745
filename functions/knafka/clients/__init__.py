"""Clients: IO, thin, each behind one small Protocol; nothing here decides anything.

log            what a log can do          kafka_writer, kafka_reader, kafka_admin; memory_log
subscriber     one POST to a destination  http_subscriber implements it
"""
