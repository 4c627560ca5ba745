"""`python -m knafka_operator`: the operator in its pod, or beside a cluster (KUBECONFIG).

Its settings are environment variables: see `settings`.
"""

from __future__ import annotations

import logging
import os
import sys

import kopf

from knafka.core.errors import InvalidDocument
from knafka_operator import handlers
from knafka_operator.settings import Settings

LIVENESS = "http://0.0.0.0:8080/healthz"


def main() -> None:
    try:
        settings = Settings.from_environment(os.environ)
    except InvalidDocument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger().setLevel(settings.log_level.upper())
    for chatty in ("aiohttp.access", "kubernetes", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It tells of each daemon that ends, and of each handler that got through.
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
    kopf.run(
        clusterwide=True,
        identity=settings.identity,  # type: ignore[arg-type]  # kopf names the type nowhere public
        peering_name=handlers.PEERING,
        liveness_endpoint=LIVENESS,
        memo=kopf.Memo(),
    )


if __name__ == "__main__":
    main()
