"""Pure decisions: from what is declared and observed to topics, contracts, manifests, status."""
