"""The dispatcher: reads a topic for one Trigger, filters, delivers, settles, commits.

It refuses to commit an offset before its event is delivered, filtered out or durably dead-lettered,
unless its Trigger wants at-most-once delivery. What is where: README.md.
"""
