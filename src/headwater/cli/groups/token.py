"""``headwater token``: who may do what on `headwater serve`, as a file of digests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson

app = typer.Typer()

TokensFile = Annotated[
    Path,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="HEADWATER_TOKENS",
        help="The file of tokens; servers notice within a second that it has changed.",
        show_default=False,
    ),
]
Holder = Annotated[
    str,
    typer.Argument(metavar="HOLDER", help="Whose token it is, a person or a program."),
]


def _patterns(what: str) -> typer.models.OptionInfo:
    found = typer.Option(
        metavar="PATTERN",
        help=f"Names that the token allows to {what}, such as orders-* or *; may be repeated.",
        show_default=False,
    )
    assert isinstance(found, typer.models.OptionInfo)
    return found


@app.command()
def new(
    holder: Holder,
    tokens: TokensFile,
    read: Annotated[list[str] | None, _patterns("read")] = None,
    write: Annotated[list[str] | None, _patterns("read and write")] = None,
    admin: Annotated[list[str] | None, _patterns("read, write and administrate")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it once: the file keeps only a digest of it."""
    from headwater.kernel.declaring import Scope
    from headwater.serve.tokens import add_token

    patterns = {Scope.READ: read or [], Scope.WRITE: write or [], Scope.ADMIN: admin or []}
    token = add_token(tokens, holder, patterns)
    output.answer(views.stores.TokenCreatedView(holder=holder, token=token), token, as_json)


@app.command("list")
def list_tokens(tokens: TokensFile, as_json: AsJson = False) -> None:
    """Show whose tokens are in the file, and what they allow."""
    from headwater.serve.tokens import read_entries

    output.show_list(
        read_entries(tokens),
        lambda entry: views.stores.TokenView(
            holder=entry.holder, read=entry.read, write=entry.write, admin=entry.admin
        ),
        {
            "holder": lambda entry: entry.holder,
            "read": lambda entry: " ".join(entry.read) or None,
            "write": lambda entry: " ".join(entry.write) or None,
            "admin": lambda entry: " ".join(entry.admin) or None,
        },
        as_json,
        nothing="no tokens: `headwater token new` makes one",
    )


@app.command()
def remove(holder: Holder, tokens: TokensFile, as_json: AsJson = False) -> None:
    """Remove the token of a holder: servers refuse it within a second."""
    from headwater.serve.tokens import remove_token

    remove_token(tokens, holder)
    done = views.stores.TokenRemovedView(holder=holder)
    output.answer(done, f"removed the token of {holder}", as_json)
