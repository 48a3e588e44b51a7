"""The pages and the OpenAPI document of the HTTP API say what its table of routes says."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from headwater import errors
from headwater.kernel.declaring import Scope
from headwater.serve.api.routes import Router, document, status_of
from headwater.serve.api.table import ROUTES
from headwater.serve.http.messages import Refused
from tests.support.http_reference import MARK, PAGE, generated


def test_the_reference_page_is_made_of_the_table() -> None:
    told = PAGE.read_text().partition(f"{MARK}\n\n")[2]
    assert told == generated(), "run python -m tests.support.http_reference"


def test_every_route_has_a_name_and_words_of_its_own() -> None:
    names = [route.operation for route in ROUTES]
    assert len(set(names)) == len(names)
    assert all(route.summary.endswith(".") for route in ROUTES)
    places = [(route.method, route.path) for route in ROUTES]
    assert len(set(places)) == len(places)


def test_every_change_by_an_administrator_shows_its_object_in_the_audit() -> None:
    hidden = {r.operation for r in ROUTES if r.scope is Scope.ADMIN and r.look is None}
    assert not hidden


def test_the_document_describes_every_route() -> None:
    told = msgspec.json.decode(document(ROUTES))
    assert told["openapi"] == "3.1.0"
    found = {(m.upper(), path) for path, item in told["paths"].items() for m in item}
    assert found == {(route.method, route.path) for route in ROUTES}
    names = set(told["components"]["schemas"])
    text = document(ROUTES).decode()
    missing = {
        part.partition('"')[0]
        for part in text.split("#/components/schemas/")[1:]
        if part.partition('"')[0] not in names
    }
    assert not missing


def test_every_route_is_found_by_its_path() -> None:
    router = Router(ROUTES)
    for route in ROUTES:
        names = tuple(f"n%2F{place}" for place, _ in enumerate(route.parameters))
        path = route.path
        for parameter, name in zip(route.parameters, names, strict=True):
            path = path.replace(f"{{{parameter}}}", name)
        assert router.find(route.method, path) == (
            route,
            tuple(name.replace("%2F", "/") for name in names),
        )
        with pytest.raises(Refused):
            router.find(route.method, f"{path}/more/more/more")


def test_every_error_has_a_status() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    for kind in kinds:
        if issubclass(kind, errors.HeadwaterError):
            error = kind.__new__(kind)
            assert 400 <= status_of(error) <= 599, kind
