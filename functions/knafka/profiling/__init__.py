"""Profiling of a running function, as Go's net/http/pprof has it (DSP-14): off unless wanted.

    server     http://127.0.0.1:8008/debug/pprof/, in threads of its own
    cpu        where time goes, by looking at every thread a hundred times a second
    heap       what Python allocates and keeps
    threads    what every thread and every task of the event loop is doing now
    format     profiles as `go tool pprof` and speedscope read them

Nothing of this is imported by a function that isn't to be profiled.
"""
