"""Dictionaries that tell when everything in them is looked at for the sake of one."""

from __future__ import annotations

from typing import Any, NoReturn


class LookUps(dict[Any, Any]):
    """A dictionary in which things are looked up one by one."""

    def _all(self, *_: object) -> NoReturn:
        raise AssertionError("everything in it was looked at")

    __iter__ = items = keys = values = _all


def only_look_ups(of: object) -> None:
    """Have its dictionaries refuse anything else."""
    for name, value in vars(of).items():
        if isinstance(value, dict):
            setattr(of, name, LookUps(value))
