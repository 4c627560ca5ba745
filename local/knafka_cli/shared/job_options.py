"""Adds the options of the Spark jobs to commands, and runs a job with them.

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

JobArguments: TypeAlias = dict[str, Any]
"""The values of a command's job options by name, without the leading dashes. The value is text, or
None if the user didn't give the option; for a flag it is True or False."""


def takes_job_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the jobs' options of these names. The command gets
    their values as its first argument, a `JobArguments`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Return a command that takes the options in `names`, too, and calls `command`."""
        # The first parameter is the `JobArguments`, which no option sets.
        _, *own_parameters = inspect.signature(command, eval_str=True).parameters.values()
        parameters = {name: _typer_parameter(name) for name in names}

        @wraps(command)
        def run(**options: Any) -> None:
            """Call `command` with the values of the jobs' options as its first argument."""
            job_arguments = {
                name: options.pop(parameter.name) for name, parameter in parameters.items()
            }
            command(job_arguments, **options)

        # Typer reads the signature and the annotations. In a signature, parameters without a
        # default must come first.
        signature = inspect.Signature(
            sorted(
                [*parameters.values(), *own_parameters],
                key=lambda parameter: parameter.default is not inspect.Parameter.empty,
            )
        )
        setattr(run, "__signature__", signature)  # noqa: B010  # mypy knows no such attribute
        run.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return run

    return decorate


def _typer_parameter(name: str) -> inspect.Parameter:
    """Return the Typer parameter for the jobs' option of this name, made from the option's
    declaration for argparse: a flag, or a text whose default is None."""
    declared = OPTIONS[name]
    help_text = declared["help"] % declared  # argparse's help may refer to other fields
    option: dict[str, Any] = {"help": f"{help_text[0].upper()}{help_text[1:]}."}
    value_type: Any
    default: bool | None
    if declared.get("action") == "store_true":
        value_type, default = bool, False
    else:
        value_type, default = str | None, None
        option["metavar"] = name.upper()
        if "type" in declared:
            option["parser"] = _checking_parser(declared["type"])
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[value_type, typer.Option(f"--{name}", **option)],
    )


def _checking_parser(read: Callable[[str], Any]) -> Callable[[str], str]:
    """Return a function that returns a text unchanged if `read`, the job's own parser, accepts it;
    it raises `typer.BadParameter` otherwise."""

    def check(text: str) -> str:
        """Return the text unchanged; raises `BadParameter` if the job's parser refuses it."""
        try:
            read(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise typer.BadParameter(str(error)) from None
        return text

    return check


def run_job(command: str, *options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the Spark job `command`, such as `compact`, in a process of its own; returns the job's
    result, a JSON object.

    `options` are mappings from the names of the job's options to their values. Progress is shown on
    stderr: as one changing line on a terminal, otherwise as a line for each step. Raises
    `JobFailed`.
    """
    arguments = [command, *(word for mapping in options for word in arguments_of(mapping))]
    console = Console(stderr=True)
    if not console.is_terminal:
        answer = dead_letter_jobs.run_job_process(
            arguments, lambda line: typer.echo(line, err=True)
        )
    else:
        with console.status(command) as status:
            answer = dead_letter_jobs.run_job_process(arguments, lambda line: status.update(line))
    result: dict[str, Any] = json.loads(answer)
    return result
