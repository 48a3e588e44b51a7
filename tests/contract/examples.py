"""How long the models are tried: a little in every test run, much more when asked.

``HEADWATER_EXAMPLES=1000 pytest tests/contract -k model`` tries a thousand runs of each model.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "60"))


def model_settings(share: float = 1.0) -> settings:
    """Settings for one model on one store; ``share`` is for those that take longer."""
    return settings(
        max_examples=max(1, int(EXAMPLES * share)),
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,
        # Reporting how often what was drawn takes longer than the runs themselves.
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
