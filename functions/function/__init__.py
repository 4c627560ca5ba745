"""What func's scaffolding imports: `new()` makes the function that FUNCTION_TARGET names (FN-2)."""

from knafka.hosted import new

__all__ = ["new"]
