"""The control plane: reconciles the objects declared in Kubernetes, and configures, scales and
deletes the functions that serve them.

The local mode uses all packages but `runtime`, on a `Cluster` of its own. README.md describes each
package.
"""
