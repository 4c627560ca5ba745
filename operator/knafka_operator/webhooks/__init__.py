"""Webhooks: defaults and checks, served by kopf."""
