"""Who may send events to a receiver, and by which address."""
