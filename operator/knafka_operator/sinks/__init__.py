"""KafkaSinks: addresses whose events are written to somebody's topic.

decide     its topic, its receiver and its conditions, in upstream's words
manifests  its receiver's Knative Service
admission  what is filled in and what is refused
kind       how one is reconciled and deleted

As declared: `model.sinks`.
"""
