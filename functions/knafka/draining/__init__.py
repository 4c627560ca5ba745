"""The code that every function that drains has in common. What is where: README.md."""
