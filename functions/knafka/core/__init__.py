"""The pure core: what an event, a filter, a delivery and an offset are.

Nothing here opens a socket, reads a clock or looks at the environment; time, randomness and
configuration come in as arguments. Import-linter checks that.
"""
