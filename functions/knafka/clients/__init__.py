"""Clients: IO, thin, each behind one small Protocol; nothing here decides anything.

log            what a log can do          kafka_log, kafka_admin and memory_log implement it
subscriber     one POST to a destination  http_subscriber implements it
"""
