"""The console in a cluster: see `function`."""

from __future__ import annotations

import asyncio
import os
import sys

from knafka.core.errors import KnafkaError
from knafka_console.function import own_client, serve
from knafka_console.settings import ConsoleSettings

if __name__ == "__main__":
    try:
        asyncio.run(serve(ConsoleSettings.from_environment(os.environ), own_client()))
    except KnafkaError as error:
        sys.exit(f"knafka console: {error}")
