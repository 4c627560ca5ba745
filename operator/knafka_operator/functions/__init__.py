"""Knative Services of functions: what they are like, applied and rolled."""
