"""`knafka up`: run a supervisor under a view until somebody says stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from knafka_cli.events import sending
from knafka_cli.shared import event_input
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation, RunningState
from knafka_console import opening
from knafka_local.supervisor import Options, Supervisor
from knafka_local.tokens.accounts import ServiceAccount
from knafka_local.view import View

EXIT_FORCED: Final = 130
"""Exit code of an impatient Ctrl-C, as shells have it."""


async def up(options: Options, view: View, send: Path | None = None) -> None:
    """Run until SIGINT or SIGTERM, which stop everything cleanly; the second one kills.

    `send`: a file of events to send, once, when all is up. Raises `KnafkaError` if it can't start.
    """
    began = time.monotonic()
    supervisor = Supervisor(options, view)
    installation = Installation(options.data)
    _stop_on_signals(supervisor, view)
    try:
        with opening.listener(options.console_port, enabled=options.console) as listener:
            await _run(supervisor, installation, listener, view, send, began)
    except asyncio.CancelledError:
        view.say(f"stopped; everything is kept in {options.data}")
    finally:
        supervisor.kill()


async def _run(
    supervisor: Supervisor,
    installation: Installation,
    listener: socket.socket | None,
    view: View,
    send: Path | None,
    began: float,
) -> None:
    """For ever; `listener` is the console's."""
    async with (
        supervisor.running(),
        opening.opened(supervisor, installation.data, listener) as url,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(view.follow(supervisor.snapshot))
        await asyncio.sleep(0)  # what there is is shown before what happens
        if url:
            view.say(f"console at {url}")
        view.say(f"up after {time.monotonic() - began:.1f} s; Ctrl-C stops everything")
        group.create_task(snapshot_file.keep(installation, supervisor.snapshot))
        if not supervisor.snapshot().brokers:
            view.say("no Broker is declared: name its YAML with -f, such as examples/quickstart")
        if send is not None:
            await _send(supervisor, installation.data, send, view)
        await asyncio.Event().wait()


def _stop_on_signals(supervisor: Supervisor, view: View) -> None:
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    signals = (signal.SIGINT, signal.SIGTERM)

    def force() -> None:
        supervisor.kill()
        os._exit(EXIT_FORCED)

    def stop() -> None:
        view.say("stopping: what is in flight is finished; once more to force it")
        for number in signals:
            loop.add_signal_handler(number, force)
        if main is not None:
            main.cancel()

    for number in signals:
        loop.add_signal_handler(number, stop)


def authorization_of(state: RunningState, data: Path, url: str) -> Callable[[], bytes]:
    """Makes the header line of the service account `default` of a Broker's namespace, as a pod that
    names none has; an empty one where nobody is asked."""
    ingress = next((ingress for ingress in state.ingresses if state.url_of(ingress) == url), None)
    if ingress is None or ingress.audience is None:
        return bytes
    # Here, as most ask for no tokens.
    from knafka_local.tokens.issuer import Issuer, TokenSender

    account = ServiceAccount(ingress.namespace, "default")
    return TokenSender(Issuer.of(Installation(data).issuer), account, ingress.audience).header


async def _send(supervisor: Supervisor, data: Path, file: Path, view: View) -> None:
    brokers = [broker.url for broker in supervisor.snapshot().brokers if broker.url]
    if len(brokers) != 1:
        view.say(f"{file} is not sent: that needs exactly one Broker, and there are {len(brokers)}")
        return
    view.say(f"sending {file} to {brokers[0]}")
    with file.open("rb") as lines:
        try:
            summary = await sending.send(
                event_input.events_of(lines, str(file)),
                brokers[0],
                lambda answer: view.say(str(answer)),
                connections=1,
                authorization=authorization_of(supervisor.state, data, brokers[0]),
            )
        except event_input.BadInput as error:
            view.say(str(error))
        else:
            view.say(f"{summary}")
