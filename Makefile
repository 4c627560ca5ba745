lock:
	$(UV) $(LOCK) --extra local --group build --output-file requirements/local.lock
