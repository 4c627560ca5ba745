"""Sensors: conditions over several events, as pure values and functions (BUS-1 to BUS-S14)."""
