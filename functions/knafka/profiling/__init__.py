"""Profiling of a running function (DSP-14), off unless wanted. What is where: README.md."""
