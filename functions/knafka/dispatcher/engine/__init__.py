"""The delivery engine of own and shared dispatchers. What is where: README.md."""
