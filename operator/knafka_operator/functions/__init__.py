"""Knative Services of functions: building, applying and rolling them."""
