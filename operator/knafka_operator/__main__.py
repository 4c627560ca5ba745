"""`python -m knafka_operator`: the operator in its pod, or beside a cluster (KUBECONFIG).

Its settings are environment variables: see `installation.settings`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import kopf

from knafka.core.errors import InvalidDocument
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import ClusterError
from knafka_operator.runtime import replica


def main() -> None:
    """Read the settings, and run one replica of the operator until SIGTERM or SIGINT. Exits with 2
    if a setting is invalid, and with 1 if no cluster is configured."""
    try:
        settings = Settings.from_environment(os.environ)
    except InvalidDocument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger().setLevel(settings.log_level.upper())
    for logger_name in ("aiohttp.access", "kubernetes", "urllib3"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)
    # kopf warns that it can't handle signals outside the main thread.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    # kopf logs each daemon that ends, and each handler that succeeds.
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
    try:
        asyncio.run(replica.run(settings))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
