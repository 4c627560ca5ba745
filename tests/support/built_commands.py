"""The command line is built once for all tests that call it, as it is in a process of its own.

Typer's runner would build all of it, with each option of each command, at every call: 20 ms.
Registered by `pytest_plugins` in tests/conftest.py.
"""

from functools import cache

import typer.main
import typer.testing

setattr(typer.testing, "_get_command", cache(typer.main.get_command))  # noqa: B010
