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
    """Read the settings and run one replica; exits with 2 for invalid settings, 1 without a
    cluster."""
    try:
        settings = Settings.from_environment(os.environ)
    except InvalidDocument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger().setLevel(settings.log_level.upper())
    for chatty in ("aiohttp.access", "kubernetes", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It warns that it takes no signals in a thread.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    # It tells of each daemon that ends, and of each handler that got through.
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
    try:
        asyncio.run(replica.run(settings))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
