"""`python -m knafka_cli` is the command `knafka`."""

from __future__ import annotations

from knafka_cli.command_line import main

main()
