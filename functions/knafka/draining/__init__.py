"""What every function that drains has in common: the request, the lease, and its renewal."""
