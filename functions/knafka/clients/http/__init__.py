"""HTTP clients: requests to subscribers and other destinations. What is where: README.md."""
