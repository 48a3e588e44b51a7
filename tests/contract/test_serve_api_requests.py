"""What is asked wrongly is a problem that says why; pages of foreign sites are not served."""

from __future__ import annotations

import gzip
import json
import os
import random
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trustme

from headwater.errors import InvalidInput
from headwater.log.keys import MAX_BATCH_MESSAGES
from headwater.queue.keys import MAX_PUSH_MESSAGES
from headwater.serve.api.formats import MAX_ARROW_BATCHES, entries_of_lines, table_of_arrow
from headwater.serve.api.table import ROUTES
from headwater.serve.http.authorization import Cors
from headwater.serve.http.messages import Refused
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import parse_address
from headwater.serve.store_server import tls_context
from tests.contract.test_serve_api_streams import ARROW, NDJSON, arrow
from tests.support.api import ApiClient, ApiServer, messages_of
from tests.support.stores import Stores

PATH = messages_of("requests")


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    limits = HttpLimits(max_body=100_000)
    with ApiServer(stores.url("plain"), limits=limits, origins=("https://app.example",)) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Iterator[ApiClient]:
    client = api.client()
    yield client
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/streams//messages", None, 404),
        ("GET", "/v1/streams/%ff", None, 400),
        ("GET", "/v1/streams/a%20b", None, 400),
        ("GET", "/v1/streams/{}", None, 400),
        ("PATCH", PATH, {}, 405),
        ("OPTIONS", PATH, None, 204),
        ("GET", f"{PATH}?from=0", None, 400),
        ("GET", f"{PATH}?from=x", None, 400),
        ("GET", f"{PATH}?count=0", None, 400),
        ("GET", f"{PATH}?block_ms=60001", None, 400),
        ("GET", f"{PATH}?count=1&count=2", None, 400),
        ("GET", f"{PATH}?count", None, 400),
        ("GET", f"{PATH}?unknown=1", None, 400),
        ("GET", "/v1/streams/requests/offset", None, 400),
        ("GET", PATH, {}, 400),
        ("POST", PATH, b"", 400),
        ("POST", PATH, b"{", 400),
        ("POST", PATH, b"\xff", 400),
        ("POST", PATH, b"[" * 200 + b"]" * 200, 400),
        ("POST", PATH, b'{"data":' + b"[" * 40_000 + b"]" * 40_000 + b"}", 400),
        ("POST", PATH, {"tag": "t"}, 400),
        ("POST", PATH, {"value": "x", "data": 1}, 400),
        ("POST", PATH, {"value": 1}, 400),
        ("POST", PATH, {"value": "!", "encoding": "base64"}, 400),
        ("POST", PATH, {"value": "x", "more": 1}, 400),
        ("POST", PATH, {"value": "x", "headers": {"hw.x": "y"}}, 400),
        ("POST", PATH, {"tag": "t" * 5000, "value": "x"}, 400),
        ("POST", f"{PATH}?producer=p", {"value": "x"}, 400),
        ("POST", f"{PATH}?sequence=1", {"value": "x"}, 400),
        ("POST", PATH, b"x" * 100_001, 413),
        ("PUT", "/v1/streams/requests/retention", {"max_count": -1}, 400),
    ],
)
def test_what_is_wrong_is_a_problem_that_says_why(
    client: ApiClient, method: str, path: str, body: Any, status: int
) -> None:
    answer = client.ask(method, path, body)
    assert answer.status == status
    if status == 204:
        return
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.body["status"] == status
    assert answer.body["detail"]
    assert answer.body["request_id"] == answer.headers["x-request-id"]


def test_a_method_that_is_not_taken_is_answered_with_those_that_are(client: ApiClient) -> None:
    assert client.ask("PATCH", PATH, {}).headers["allow"] == "GET, HEAD, POST"
    assert client.ask("PATCH", "/v1/queues/requests/pop", {}).headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (PATH, {"messages": []}, "tag, value, data, encoding, headers"),
        (PATH, [{"value": "x"}, {"key": "x"}], "tag, value, data, encoding, headers"),
        (PATH, b'{"value":"x"}\n{"key":"x"}\n', "tag, value, data, encoding, headers"),
        ("/v1/streams/requests/evict", {"offset": 3}, "up_to, past_readers"),
    ],
)
def test_a_field_that_is_not_known_is_refused_with_those_that_are(
    client: ApiClient, path: str, body: Any, fields: str
) -> None:
    media = NDJSON if isinstance(body, bytes) else "application/json"
    answer = client.ask("POST", path, body, media=media)
    assert answer.status == 400
    assert answer.body["detail"].endswith(f"; the fields are: {fields}")


@pytest.mark.parametrize("path", [PATH, "/v1/queues/requests/messages"])
@pytest.mark.parametrize("body", [{"value": {"km": 3}}, [{"value": "x"}, {"value": 3}]])
def test_a_value_that_is_no_text_is_to_be_sent_as_data(
    client: ApiClient, path: str, body: Any
) -> None:
    assert client.ask("POST", path, body).body["detail"].endswith("; send it as `data`")


def test_a_format_that_is_not_spoken_is_named(client: ApiClient) -> None:
    assert client.post(PATH, b"a,b", media="text/csv").status == 415
    packed = client.post(
        PATH, gzip.compress(b'{"value": "v"}'), headers={"Content-Encoding": "gzip"}
    )
    assert (packed.status, "packed by gzip" in packed.body["detail"]) == (415, True)
    plain = {"Content-Encoding": "identity"}
    assert client.post(PATH, {"value": "v"}, headers=plain).status == 201
    assert client.get(PATH, accept="text/csv").status == 406
    assert client.get(PATH, accept="text/csv, */*;q=0.1").status == 200


def test_a_request_has_its_id_or_one_that_it_brought(client: ApiClient) -> None:
    assert client.get("/healthz", x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    bad = client.get("/healthz", x_request_id="a b").headers["x-request-id"]
    assert bad != client.get("/healthz").headers["x-request-id"]
    assert " " not in bad


def test_a_page_of_a_foreign_site_is_not_served_on_the_loopback(client: ApiClient) -> None:
    for origin in ("https://evil.example", "null"):
        assert client.get(PATH, origin=origin).status == 403
    assert client.get(PATH, host="evil.example:6300").status == 403
    allowed = client.get(PATH, origin="https://app.example")
    assert allowed.status == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    preflight = client.ask("OPTIONS", PATH, headers={"Origin": "https://app.example"})
    assert "POST" in preflight.headers["access-control-allow-methods"]
    refused = client.ask("OPTIONS", PATH, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("origin", ["app.example", "https://a\r\nX: y"])
def test_what_is_no_origin_is_refused_before_the_server_starts(origin: str) -> None:
    with pytest.raises(InvalidInput, match="not an origin"):
        Cors([origin])


@pytest.mark.parametrize("address", ["6300", "localhost", ":6300", "a:b", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="not an address"):
        parse_address(address)


def test_a_server_speaks_tls(stores: Stores, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with ApiServer(stores.url("plain"), tls=tls_context(certificate, key)) as api:
        connection = HTTPSConnection("localhost", api.port, context=trusted, timeout=60)
        connection.request("GET", "/readyz")
        assert connection.getresponse().read().startswith(b'{"status":"ok"')
        connection.request("BREW", "/readyz")
        assert connection.getresponse().status == 400
        connection.close()
    with pytest.raises(InvalidInput, match="not a certificate"):
        tls_context(key, key)
    with pytest.raises(InvalidInput, match="needs its certificate"):
        tls_context(None, key)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_an_arrow_body_that_is_compressed_is_refused(codec: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pytest.raises(InvalidInput, match="without compression"):
        table_of_arrow(arrow(["t"] * 100, [b"v" * 1000] * 100, options=options))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "a"]).dictionary_encode(),
        pa.array([1.5, 2.5]),
        pa.array([["a"], ["b"]]),
        pa.array(["a", "b"], pa.string_view()),
    ],
)
def test_an_arrow_column_that_could_unfold_is_refused(column: Any) -> None:
    batch = pa.record_batch({"tag": ["t", "t"], "value": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(InvalidInput, match="plain"):
        table_of_arrow(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("behind", [arrow(["b"], [b"2"]), b"\0", b"\xff" * 8])
def test_bytes_behind_an_arrow_stream_are_refused_and_nothing_is_written(
    client: ApiClient, name: str, behind: bytes
) -> None:
    """Two streams in one body were answered with 201, and the second was dropped."""
    answer = client.post(messages_of(name), arrow(["a"], [b"1"]) + behind, media=ARROW)
    assert answer.status == 400
    assert "one Arrow IPC stream" in answer.body["detail"]
    assert client.get(f"/v1/streams/{name}").status == 404


def test_an_arrow_column_that_is_given_twice_is_refused(client: ApiClient, name: str) -> None:
    columns = [pa.array(["a"]), pa.array([b"1"]), pa.array([b"2"])]
    batch = pa.RecordBatch.from_arrays(columns, ["tag", "value", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    answer = client.post(messages_of(name), bytes(sink.getvalue()), media=ARROW)
    assert answer.status == 400
    assert "'value'" in answer.body["detail"]


def test_a_body_of_more_messages_than_a_batch_has_is_refused_before_they_are_made() -> None:
    with pytest.raises(InvalidInput, match=f"{MAX_BATCH_MESSAGES} messages, and this body has"):
        # Not one of them is read, or it would be this that is refused.
        entries_of_lines(b"no message\n" * (MAX_BATCH_MESSAGES + 1))
    for route in ROUTES:
        if route.path.endswith("/messages") and route.method == "POST":
            most = MAX_PUSH_MESSAGES if "queue" in route.path else MAX_BATCH_MESSAGES
            with pytest.raises(msgspec.ValidationError, match=f"array` of length <= {most}"):
                msgspec.json.decode(b"[%b{}]" % (b"{}," * most), type=route.body)


def test_an_arrow_body_of_many_batches_or_a_large_schema_is_refused() -> None:
    schema = pa.schema({"tag": pa.string(), "value": pa.binary()})
    empty = pa.RecordBatch.from_pylist([], schema).serialize().to_pybytes()
    body = schema.serialize().to_pybytes() + empty * MAX_ARROW_BATCHES
    assert table_of_arrow(body).num_rows == 0
    with pytest.raises(InvalidInput, match=f"{MAX_ARROW_BATCHES} record batches"):
        table_of_arrow(body + empty)
    with pytest.raises(InvalidInput, match="schema of an Arrow body"):
        table_of_arrow(pa.schema([schema.field(0)] * 3000).serialize().to_pybytes() + empty)


def test_bytes_that_are_nearly_arrow_or_json_are_refused_and_nothing_worse() -> None:
    chance = random.Random(int(os.environ.get("HEADWATER_SEED", "7")))
    whole = arrow(["tag"] * 5, [b"value"] * 5)
    lines = b"".join(json.dumps({"tag": "t", "value": str(n)}).encode() + b"\n" for n in range(5))
    turns = 300 * int(os.environ.get("HEADWATER_LONG", "1"))
    outcomes = {"read": 0, "refused": 0}
    for decode, good in ((table_of_arrow, whole), (entries_of_lines, lines)):
        for _ in range(turns):
            spoilt = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
            cut = bytes(spoilt[: chance.randrange(1, len(spoilt) + 1)])
            try:
                decode(cut)
            except (InvalidInput, Refused):
                outcomes["refused"] += 1
            else:
                outcomes["read"] += 1
    assert outcomes["refused"] > turns // 2


def test_an_empty_line_and_an_empty_batch_are_no_messages(client: ApiClient) -> None:
    lines = b'{"value":"x"}\n\n{"value":"y"}'
    assert client.post(PATH, lines, media=NDJSON).body["written"] == 2
    assert client.post(PATH, []).body["written"] == 0
    assert client.post(PATH, arrow([], []), media=ARROW).body["written"] == 0
