"""What the jobs read and write: the tables (Delta, through Spark) and Kafka."""
