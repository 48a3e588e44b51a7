"""Errors keep their facts on the way to another process."""

from __future__ import annotations

import copy
import pickle

import pytest

from headwater import errors

SAMPLES = [
    errors.InvalidInput("no"),
    errors.UnknownStream("rides"),
    errors.StaleSequence("rides", "p", 1, 2),
    errors.StoreUnreachable("redis://h", "gone", lasting=True),
    errors.MissingMessages("rides", 1, 2),
    errors.AppRefused(["one", "two"]),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_that_is_pickled_or_copied_is_the_same(error: errors.HeadwaterError) -> None:
    error.partition = 3
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert vars(same) == vars(error)
        assert same.args == error.args
