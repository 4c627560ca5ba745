"""Records: what the operator keeps in memory about each object, and who owns a topic or group."""
