"""One read of a topic for many Triggers (docs/decisions/0018-shared-dispatchers.md).

    shared topic --owns--> fetchers --fill--> buffers <--cursors-- group readers <--read-- drains

`topic` is a topic as one process reads it for many groups, `reader` is one group's `LogReader` in
it, `fetcher` a consumer that fills the `buffer` of each of its partitions, and `record` a record
that is taken apart once for all.

`contract` follows the topic that says which Triggers they are, `drain` is a drain for each of them,
and `served` puts that behind a request.
"""
