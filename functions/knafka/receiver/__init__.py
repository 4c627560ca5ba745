"""The receiver: a CloudEvent over HTTP becomes a record in the Broker's topic, then 202 (BRK-10).

It doesn't filter, doesn't change data, and doesn't answer 202 before Kafka has stored the event.
What is where: README.md.
"""
