"""Engine: one controller for the objects of every kind, on Kubernetes and in the local mode.

kinds       the table of kinds, and what the controller asks of each
controller  one object: finalizer, reconcile, back-off, deletion
deletions   how long a deletion is tried
"""
