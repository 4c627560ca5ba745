"""Senders: who may send events to a receiver, and at which address."""
