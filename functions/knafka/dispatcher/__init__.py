"""The dispatcher: reads a Broker's topic for one Trigger, filters, delivers, settles, commits.

    lanes      which event may be sent next, given the order; pure
    unsettled  a record on its way from the log to being settled, and its partition
    courier    sends one event: attempt, reply, dead letter; decides nothing by itself
    drain      one invocation: join the group, deliver until idle or out of budget, leave
    function   POST /drain as an ASGI function, with streamed progress
    __main__   `python -m knafka.dispatcher`

It refuses to commit an offset before its event is delivered, filtered out or durably buried.
"""
