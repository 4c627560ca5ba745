"""The jobs' input and output: Spark's session, the tables (Delta, by Spark) and Kafka."""
