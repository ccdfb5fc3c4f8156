"""`mulosd methods`: what can decode, and what each knob means, from the configurations themselves."""

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import click

WIDTH = 100


@click.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the decoding methods, or the knobs of NAME with defaults and meanings."""
    from mulosd.errors import unknown_name
    from mulosd.methods import METHODS

    if name is None:
        width = max(map(len, METHODS))
        for known in METHODS:
            click.echo(f"{known:<{width}}  {_about(METHODS[known])}")
        click.echo("\n`mulosd methods NAME` lists the knobs of one.")
        return
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    click.echo("\n".join(_page(METHODS[name])))


def _about(configuration: Any) -> str:
    """The first sentence of a configuration's docstring."""
    return (inspect.getdoc(configuration) or "").partition("\n")[0]


def _page(configuration: Any) -> Iterator[str]:
    """Name, needs and knobs: the method's own first, those of the target's sampler last."""
    from mulosd.methods import SAMPLER_KNOBS, declared_knobs

    yield f"{configuration.name}: {_about(configuration)}"
    yield f"needs: {configuration.needs}"
    knobs = declared_knobs(configuration)
    own = inspect.get_annotations(configuration)
    for key in sorted(knobs, key=lambda key: (key not in own, key in SAMPLER_KNOBS)):
        yield ""
        yield from _knob(knobs[key])


def _knob(knob: Any) -> Iterator[str]:
    default = "unset" if knob.default is None else knob.default
    doc = knob.doc
    choices = f"one of {', '.join(knob.choices)}" if knob.choices else knob.type_name.replace(" | None", "")
    low = "" if doc.low is None else f" from {doc.low:g}" + (f" ({doc.low_means})" if doc.low_means else "") + " on"
    yield f"{knob.name} = {default}   [{choices}{low}]"
    yield from textwrap.wrap(doc.text, WIDTH, initial_indent="    ", subsequent_indent="    ")
