"""`python -m knafka_local` is the command `knafka`."""

from __future__ import annotations

from knafka_local.cli import main

main()
