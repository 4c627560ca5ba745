"""Tracing: W3C trace context, sampling, spans, and their exporter. What is where: README.md."""
