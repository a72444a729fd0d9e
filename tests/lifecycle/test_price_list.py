"""The price list of a cluster's folder: fetched from a server of the test, kept, and read in place of the package's.

It does not prove what Oracle's server answers.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gpucluster.artifacts import http_client
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.lifecycle import price_list
from gpucluster.paths import ClusterPaths
from gpucluster.prices import PriceList, shipped

H100, OTHER = "B98415", "B00000"


def _list(price: float) -> str:
    def item(number: str) -> dict[str, object]:
        prices = [{"model": "PAY_AS_YOU_GO", "value": price}]
        return {"partNumber": number, "currencyCodeLocalizations": [{"currencyCode": "USD", "prices": prices}]}

    return json.dumps({"lastUpdated": "2026-11-29T00:00:00Z", "items": [item(H100), item(OTHER)]})


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path / ".gpucluster")
    made.create()
    return made


def _answering(text: str, status: HTTPStatus = HTTPStatus.OK) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def _refresh(paths: ClusterPaths, text: str, status: HTTPStatus = HTTPStatus.OK) -> PriceList:
    server = _answering(text, status)
    try:
        return price_list.refresh(paths, f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        server.server_close()


def test_without_a_refreshed_list_that_of_the_package_holds(paths: ClusterPaths) -> None:
    assert price_list.read(paths) == PriceList.parse(shipped())


def test_a_refreshed_list_holds_from_then_on_with_the_parts_of_shapes(paths: ClusterPaths) -> None:
    listed = _refresh(paths, _list(9.5))
    assert (listed.updated, listed.parts) == ("2026-11-29", {H100: 9.5})
    assert price_list.read(paths) == listed
    assert OTHER not in paths.price_list.read_text()


def test_what_is_no_list_changes_nothing(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PAUSES", ())
    with pytest.raises(InputError, match="not a price list"):
        _refresh(paths, "<html>")
    for status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.NOT_FOUND):
        with pytest.raises(EnvironmentFault, match="the price list can't be fetched") as caught:
            _refresh(paths, "", status)
        assert "without --refresh-prices" in caught.value.hint
    assert not paths.price_list.exists()


def test_a_damaged_list_is_named(paths: ClusterPaths) -> None:
    paths.price_list.write_text("{")
    with pytest.raises(InputError) as caught:
        price_list.read(paths)
    assert caught.value.where == str(paths.price_list)


def test_earlier_lists_are_kept_by_their_day(paths: ClusterPaths) -> None:
    assert [each.updated for each in price_list.every(paths)] == [PriceList.parse(shipped()).updated]
    _refresh(paths, _list(9.0))
    _refresh(paths, _list(8.0))
    _refresh(paths, _list(7.0).replace("2026-11-29", "2026-12-01"))
    every = price_list.every(paths)
    assert [each.updated for each in every][-2:] == ["2026-11-29", "2026-12-01"]
    assert every[0].updated == PriceList.parse(shipped()).updated < "2026-11-29"
    assert [each.parts[H100] for each in every][-2:] == [8.0, 7.0]
    assert every[0].parts == PriceList.parse(shipped()).parts
