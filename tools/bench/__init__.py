"""The benchmark: measures our functions and bare prototypes of them (the *floor*) in the same run.

    cli          the command line: which cases, how many runs, where the results go
    world        Kafka, a sink, and kbench, for as long as the benchmark runs
    targets      what is measured: ours, the floor, or anything that has a URL or a topic
    receiving    cases whose load comes by HTTP
    dispatching  cases whose load waits in a topic
    beside       ours and another state of it under one load, at the same time
    isolation    neighbours in a shared dispatcher: Triggers, Subscriptions
    channels     neighbours on a receiver: KafkaChannels
    usage        CPU and memory of what is measured
    results      rows, medians, spreads, ratios, verdicts; pure
    document     results as Markdown and as a plot, for docs/performance.md; pure
    kbench/      the load generator and the sink, in Go: neither may be the limit
    floor_*.py   what HTTP, a filter and Kafka cost in Python with nothing else

`python tools/bench/run.py --help`. It compares no figures of different runs: the machine is never
in the same state, so what counts is the ratio to the floor that was measured in the same run.
"""
