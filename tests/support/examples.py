"""How long the models are tried: a little in every test run, much more when asked.

``HEADWATER_EXAMPLES=1000 pytest tests/contract -k model`` tries a thousand runs of each model.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "8"))

# Every client on every kind of store.
everywhere = pytest.mark.parametrize(
    "client",
    [
        pytest.param(f"{store}-{manner}", marks=[pytest.mark.cluster] if store == "cluster" else [])
        for store in ("embedded", "plain", "redis", "cluster")
        for manner in ("sync", "async")
    ],
    indirect=True,
)
patient = pytest.mark.timeout(300 + EXAMPLES)
MODEL_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
