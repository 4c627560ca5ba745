"""Bearer tokens of senders, callers and destinations. What is where: README.md."""
