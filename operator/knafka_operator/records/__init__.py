"""What the operator keeps in memory of each object, and whose a topic or group is."""
