"""Engine: one controller for the objects of every kind. What is where: README.md."""
