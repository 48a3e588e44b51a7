"""What the library refuses, in the words of the command that was typed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headwater.cli.program import as_typed, not_utf8


@dataclass
class Parameter:
    """What is known of an option or an argument of a command."""

    name: str
    opts: list[str]
    param_type_name: str = "option"
    metavar: str | None = None


PARAMETERS = [
    Parameter("ack_ms", ["--ack-ms"]),
    Parameter("expire_ms", ["--expire-ms"]),
    Parameter("lease", ["--lease"]),
    Parameter("quorum", ["--quorum"]),
    Parameter("rate", ["--rate"]),
    Parameter("count", ["--count", "-c"]),
    Parameter("as_json", ["--json"]),
    Parameter("tag", [], "argument", "[TAG]"),
    Parameter("members", [], "argument", "[MEMBER]..."),
]


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("ack_ms must be from 1 to 9, not 0", "--ack-ms must be from 1 to 9, not 0"),
        ("expire_ms needs ack_ms: or else", "--expire-ms needs --ack-ms: or else"),
        ("write_quorum must be from 1 to 1, not 5", "--quorum must be from 1 to 1, not 5"),
        ("the count of rate must be from 1", "the count of --rate must be from 1"),
        ("count must be from 0 to 9, not 10", "--count must be from 0 to 9, not 10"),
        ("tag must be a str", "TAG must be a str"),
        # English, and what the user wrote.
        ("the count is 5; a rate is missing", "the count is 5; a rate is missing"),
        (
            "there is no stream 'ack_ms'; check the name",
            "there is no stream 'ack_ms'; check the name",
        ),
        ("no module 'as_json' in /x/ack_ms/y", "no module 'as_json' in /x/ack_ms/y"),
    ],
)
def test_arguments_of_the_library_become_options(said: str, typed: str) -> None:
    assert as_typed(said, PARAMETERS) == typed


def test_what_is_not_utf8_is_named() -> None:
    given = {"ack_ms": 5, "members": ["a", "b\udcff"]}
    said = "'utf-8' codec can't encode character: surrogates not allowed"
    assert not_utf8(said, PARAMETERS, given) == r"MEMBER 'b\udcff' is not UTF-8; encode it so"
    secret = {"tag": "redis://:secret\udcff@host"}
    assert not_utf8(said, PARAMETERS, secret) == "TAG is not UTF-8; encode it so"
    assert not_utf8(said, PARAMETERS, {"tag": "t"}) is None
    assert not_utf8("count must be an int", PARAMETERS, given) is None


def test_the_deadline_of_a_lease_is_the_option_that_a_channel_has() -> None:
    parameters = [Parameter("lease", ["--lease"])]
    assert as_typed("ack_ms must be from 1", parameters) == "--lease must be from 1"
