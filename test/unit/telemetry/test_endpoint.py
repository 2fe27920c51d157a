# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoint of a node, asked as Prometheus and Kubernetes ask."""

from __future__ import annotations

from contextlib import ExitStack, suppress
import re
import socket
import threading
import time
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.core import GaugeMetricFamily
import pytest
from support.network.ports import free_port
from support.waiting import wait_until
from support.zenoh.access_rig import Keys

from lerobot_serve.parameters import ParameterError
from lerobot_serve.telemetry import http_endpoint
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint, start_endpoint

LIMIT = http_endpoint.REQUESTS_LIMIT


@pytest.fixture
def why_not() -> list[str]:
    return ['']


@pytest.fixture
def standing_still() -> list[str]:
    return ['']


@pytest.fixture
def endpoint(why_not, standing_still):
    made = HttpEndpoint(
        '127.0.0.1',
        0,
        lambda: [GaugeMetricFamily('robots', 'here', value=3)],
        why_not_ready=lambda: why_not[0],
        why_not_alive=lambda: standing_still[0],
    )
    yield made
    made.close()


def get(endpoint: HttpEndpoint, path: str) -> str:
    with urlopen(f'http://127.0.0.1:{endpoint.port}{path}', timeout=10) as answer:
        return answer.read().decode()


def test_metrics_are_read_when_asked_for(endpoint):
    assert 'robots 3.0' in get(endpoint, '/metrics')
    assert '# HELP robots here' in get(endpoint, '/metrics?name[]=robots')


def test_the_end_of_the_keys_is_that_of_what_was_read(tmp_path):
    keys = Keys(tmp_path / 'keys')
    folder = keys.add('robot', 'robot_1')
    parameters = SimpleNamespace(metrics_address='127.0.0.1', metrics_port=free_port())
    endpoint = start_endpoint(
        parameters, list, keys=str(folder), why_not_ready=str, why_not_alive=str
    )
    (folder / 'certificate.pem').unlink()
    text = get(endpoint, '/metrics')
    endpoint.close()
    (expires_s,) = re.findall(r'^lerobot_serve_keys_expire_timestamp_seconds (.*)$', text, re.M)
    assert float(expires_s) - time.time() == pytest.approx(365 * 86400, abs=3600)


def test_alive_and_ready_are_two_things(endpoint, why_not):
    assert get(endpoint, '/readyz') == 'ready\n'
    why_not[0] = 'no slot is healthy'
    assert get(endpoint, '/healthz') == 'alive\n'
    with pytest.raises(HTTPError) as error:
        get(endpoint, '/readyz')
    assert error.value.code == 503
    assert error.value.read() == b'no slot is healthy\n'


def test_a_thread_that_stands_still_is_not_alive(endpoint, standing_still):
    standing_still[0] = 'standing still: tick'
    with pytest.raises(HTTPError) as error:
        get(endpoint, '/healthz')
    assert error.value.code == 503
    assert error.value.read() == b'standing still: tick\n'
    assert get(endpoint, '/readyz') == 'ready\n'


def test_head_has_the_status_and_headers_of_get_without_the_body(endpoint, why_not):
    for path in ('/metrics', '/healthz', '/readyz'):
        url = f'http://127.0.0.1:{endpoint.port}{path}'
        with urlopen(url, timeout=10) as got, urlopen(Request(url, method='HEAD')) as head:
            assert (head.status, head.headers['Content-Type']) == (
                200,
                got.headers['Content-Type'],
            )
            assert int(head.headers['Content-Length']) == len(got.read())
            assert head.read() == b''
    why_not[0] = 'no slot is healthy'
    with pytest.raises(HTTPError) as error:
        urlopen(Request(f'http://127.0.0.1:{endpoint.port}/readyz', method='HEAD'))
    assert error.value.code == 503


def test_another_page_says_which_there_are(endpoint):
    with pytest.raises(HTTPError) as error:
        get(endpoint, '/')
    assert error.value.code == 404
    assert b'/metrics' in error.value.read()


def test_a_client_that_says_nothing_keeps_nobody_waiting(endpoint):
    with socket.create_connection(('127.0.0.1', endpoint.port)):
        assert get(endpoint, '/healthz') == 'alive\n'


@pytest.mark.parametrize(('address', 'port'), [('127.0.0.1', None), ('no.such.host.invalid', 0)])
def test_a_port_that_is_taken_and_an_address_that_is_none_are_refused(endpoint, address, port):
    with pytest.raises(ParameterError, match=f'{address}.*use another port, or 0.*IPv4 address'):
        HttpEndpoint(
            address,
            endpoint.port if port is None else port,
            list,
            why_not_ready=str,
            why_not_alive=str,
        )


def test_no_address_is_not_all_interfaces():
    with pytest.raises(ParameterError, match=r"metrics_address is ''.*or 0\.0\.0\.0 for all"):
        HttpEndpoint('', 0, list, why_not_ready=str, why_not_alive=str)


def threads_of_requests() -> int:
    return sum('process_request_thread' in each.name for each in threading.enumerate())


def test_idle_connections_are_bounded_in_number(endpoint):
    with ExitStack() as stack:
        for _ in range(LIMIT + 4):
            stack.enter_context(socket.create_connection(('127.0.0.1', endpoint.port)))
        wait_until(lambda: threads_of_requests() >= LIMIT, 'all places are taken')
        assert threads_of_requests() == LIMIT
        with pytest.raises(OSError):
            get(endpoint, '/healthz')
    wait_until(lambda: not threads_of_requests(), 'they have ended')
    assert get(endpoint, '/healthz') == 'alive\n'


def test_a_request_that_never_ends_is_ended(endpoint, monkeypatch):
    monkeypatch.setattr(http_endpoint, 'REQUEST_TIMEOUT_S', 0.5)
    with socket.create_connection(('127.0.0.1', endpoint.port)) as connection:
        connection.settimeout(0.05)
        deadline = time.monotonic() + 10
        with suppress(ConnectionError):
            while time.monotonic() < deadline:
                connection.send(b'G')
                with suppress(TimeoutError):
                    assert connection.recv(1) == b''
                    break
        assert time.monotonic() < deadline


def test_a_request_without_a_thread_keeps_no_place(endpoint, monkeypatch, capsys):
    def fail(*_) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fail)
        with socket.create_connection(('127.0.0.1', endpoint.port)) as connection:
            assert connection.recv(1) == b''
    assert not endpoint._server._until_s
    assert get(endpoint, '/healthz') == 'alive\n'


def test_its_end_is_the_end_of_its_requests(endpoint):
    with socket.create_connection(('127.0.0.1', endpoint.port)) as connection:
        wait_until(lambda: endpoint._server._until_s, 'it is served')
        endpoint.close()
        connection.settimeout(http_endpoint.REQUEST_TIMEOUT_S / 2)
        assert connection.recv(1) == b''


def test_after_its_end_nobody_answers(why_not):
    made = HttpEndpoint('127.0.0.1', 0, list, why_not_ready=lambda: why_not[0], why_not_alive=str)
    made.close()
    with pytest.raises(OSError):
        get(made, '/healthz')
