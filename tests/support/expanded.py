"""What a process gets of a container's arguments and variables, as Kubernetes expands them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """As Kubernetes has it: `$$` is a dollar sign, `$(NAME)` a variable's value if it is set."""

    def of(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(of, text)


def arguments(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    return [expanded(each, variables) for each in container["args"]]


def environment(container: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    return {
        each["name"]: expanded(each["value"], variables)
        for each in container["env"]
        if "value" in each
    }
