"""The sensor function: conditions over several events. What is where: README.md."""
