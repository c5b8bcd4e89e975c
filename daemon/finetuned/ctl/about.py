"""`schema` and `version`."""

import json

import typer

import finetuned


def schema() -> None:
    """Print the JSON Schema of job files, so that an editor completes and checks them."""
    from finetuned.core.spec import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def version() -> None:
    """Print the version."""
    typer.echo(f"finetuned {finetuned.__version__}")
