"""The dispatcher: reads a Broker's topic for one Trigger, filters, delivers, settles, commits.

    lanes       which event may be sent next, given the order; pure
    congestion  how many attempts a subscriber may get at once; pure
    pending     a record on its way from the log to being settled, and its partition
    sender      one attempt to send one event: POST, reply, dead letter
    workers     as many attempts at once as may be, and each again when it is due
    drain       membership in the Trigger's group: read, filter, deliver, commit, leave
    lease       how long a drain lives, and who asks for the next
    served      one Egress in a process: its drains, one at a time, and its metrics
    own         an Egress with a dispatcher of its own
    shared      many Egresses in one dispatcher
    streaming   the response to POST /drain
    function    POST /drain as an ASGI function, with streamed progress
    __main__    `python -m knafka.dispatcher`

It refuses to commit an offset before its event is delivered, filtered out or durably dead-lettered.
"""
