"""What every kind's decision is made of: conditions, effects and their order; pure."""
