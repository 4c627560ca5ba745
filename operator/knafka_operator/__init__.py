"""The control plane: from what is declared in Kubernetes to what the functions are told.

The local mode runs what is below `runtime`, on a `Cluster` of its own. What is where: README.md.
"""
