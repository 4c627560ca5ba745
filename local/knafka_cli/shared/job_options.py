"""The jobs on our command line: their options, and how a job is run.

`knafka_jobs.command_options` declares each option once, with its check and its help.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from knafka_cli.shared import dead_letter_jobs
from knafka_cli.shared.options import arguments_of
from knafka_jobs.command_options import OPTIONS

Asked: TypeAlias = dict[str, Any]
"""What was given, as text, by the option's name without dashes before it; None: nothing. Of a flag
it is whether it was given."""


def taking(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that takes these options of the jobs; it gets them as its first parameter."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = {name: _parameter(name) for name in names}

        @wraps(command)
        def run(**given: Any) -> None:
            asked = {name: given.pop(parameter.name) for name, parameter in parameters.items()}
            command(asked, **given)

        # Typer reads both.
        all_of_them = [*parameters.values(), *own]
        signature = inspect.Signature(
            sorted(
                all_of_them, key=lambda parameter: parameter.default is not inspect.Parameter.empty
            )
        )
        setattr(run, "__signature__", signature)  # noqa: B010  # mypy knows no such attribute
        run.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    declared = OPTIONS[name]
    text = declared["help"] % declared
    option: dict[str, Any] = {"help": f"{text[0].upper()}{text[1:]}."}
    kind: Any = bool
    if is_text := declared.get("action") != "store_true":
        kind = str | None
        option["metavar"] = name.upper()
        if "type" in declared:
            option["parser"] = _checked(declared["type"])
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None if is_text else False,
        annotation=Annotated[kind, typer.Option(f"--{name}", **option)],
    )


def _checked(read: Callable[[str], Any]) -> Callable[[str], str]:
    """The text itself, if the job can read it."""

    def check(text: str) -> str:
        try:
            read(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise typer.BadParameter(str(error)) from None
        return text

    return check


def run_job(command: str, *options: Mapping[str, Any]) -> dict[str, Any]:
    """A job's answer; its progress is a line that changes on a terminal, lines elsewhere."""
    given = [command, *(word for group in options for word in arguments_of(group))]
    console = Console(stderr=True)
    if not console.is_terminal:
        answer = dead_letter_jobs.run(given, lambda line: typer.echo(line, err=True))
    else:
        with console.status(command) as status:
            answer = dead_letter_jobs.run(given, lambda line: status.update(line))
    result: dict[str, Any] = json.loads(answer)
    return result
