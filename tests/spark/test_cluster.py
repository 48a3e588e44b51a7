"""The same on a real cluster, by spark-submit, in a session that nobody prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import Stream
from tests.spark.standalone import Standalone


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_stream_is_read_by_the_executors_of_a_cluster(
    standalone: Standalone,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(5000)
    found = standalone.submit("read_on_cluster.py", embedded_url, stream.name, str(tmp_path))
    assert found["master"] == standalone.url
    assert found["executors"] == 2
    assert found["whole"] == [5000, 5000 * 5001 // 2, 6]
    assert found["streamed"] == [5000, 5000 * 5001 // 2]
    assert "there is no stream 'nobody'" in found["error"]
    assert "Traceback" not in found["error"]
