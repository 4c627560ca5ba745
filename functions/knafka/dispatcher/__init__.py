"""The dispatcher: reads a topic for one Trigger, filters, delivers, settles, commits.

It commits an offset only after its event is delivered, filtered out or durably dead-lettered,
unless its Trigger declares at-most-once delivery. What is where: README.md.
"""
