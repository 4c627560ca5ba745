"""One read of a topic for many Triggers (decision 0018). What is where: README.md."""
