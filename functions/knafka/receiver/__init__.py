"""The receiver: a CloudEvent over HTTP becomes a record in the Broker's topic, then 202 (BRK-10).

It refuses to filter, to change data, and to answer 202 before Kafka has. What is where: README.md.
"""
