"""DeadLetterArchives, and the operations on their tables."""
