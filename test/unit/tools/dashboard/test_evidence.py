# SPDX-License-Identifier: Apache-2.0
"""Explanations and captures of incidents."""

from __future__ import annotations

import os

import pytest

from lerobot_serve.tools.dashboard import evidence
from lerobot_serve.tools.dashboard.evidence import (
    Captures,
    Explanations,
    IncidentPlace,
    is_capture_name,
)

PLACE = IncidentPlace('robot_7', '2026-07-30T10:15:00Z')
NAME = '20260730T101500.125Z-robot_7-12-not_finite.safetensors'


def test_without_a_folder_or_a_robot_the_sentence_says_why(tmp_path):
    assert '--trace-folder' in Explanations(None).explain('1', PLACE)
    nobody = IncidentPlace('', PLACE.instant)
    assert 'rollout history' in Explanations(tmp_path).explain('1', nobody)


def test_a_folder_without_traces_is_explained_by_diagnose_itself(tmp_path):
    text = Explanations(tmp_path).explain('1', PLACE)
    assert 'Traceback' not in text and str(tmp_path) in text


def test_a_client_that_looks_like_an_option_is_a_name(tmp_path):
    text = Explanations(tmp_path).explain('1', IncidentPlace('--help', PLACE.instant))
    assert 'usage:' not in text


def test_an_explanation_that_takes_too_long_is_ended(tmp_path):
    text = Explanations(tmp_path, limit_s=0.01).explain('1', PLACE)
    assert 'no explanation within 0.01 s' in text and 'lerobot-serve diagnose' in text


def test_a_dashboard_that_ends_ends_the_explanation(tmp_path):
    known = Explanations(tmp_path)
    known.close()
    assert known.explain('1', PLACE) == 'the dashboard ends'


def test_explanations_are_kept_and_bounded(tmp_path, monkeypatch):
    calls = []

    def run(process: object, *given: object) -> tuple[str, bool]:
        calls.append(given)
        return str(given), True

    monkeypatch.setattr(Explanations, '_run', run)
    known = Explanations(tmp_path)
    for number in range(evidence.KEPT + 5):
        known.explain(str(number), PLACE)
    known.explain(str(evidence.KEPT), PLACE)
    assert len(calls) == evidence.KEPT + 5
    known.explain('0', PLACE)
    assert len(calls) == evidence.KEPT + 6


@pytest.mark.parametrize(
    ('name', 'is_capture'),
    [
        (NAME, True),
        (NAME + '.part', False),
        (f'../{NAME}', False),
        (f'20260730T101500.125Z-a/../{NAME}', False),
        ('passwd', False),
        ('', False),
        (NAME + '\n', False),
    ],
)
def test_only_names_of_captures_are_captures(name, is_capture):
    assert is_capture_name(name) is is_capture


def test_the_captures_of_an_incident_are_those_of_its_robot_around_its_time(tmp_path):
    for name in (
        NAME,
        NAME.replace('1015', '1016'),
        NAME.replace('1015', '1115'),
        NAME.replace('robot_7', 'robot_8'),
        NAME.replace('robot_7', 'all'),
        'README',
    ):
        (tmp_path / name).write_bytes(b'12345')
    os.symlink('/etc/passwd', tmp_path / NAME.replace('12', '99'))
    found = Captures(tmp_path).of_incident(PLACE)
    assert [each['name'] for each in found] == [
        NAME.replace('robot_7', 'all'),
        NAME,
        NAME.replace('1015', '1016'),
    ]
    assert all(each['bytes'] == 5 for each in found)
    assert Captures(None).of_incident(PLACE) == []
    assert Captures(tmp_path / 'none').of_incident(PLACE) == []


def test_the_captures_of_a_robot_are_not_those_of_one_with_a_longer_name(tmp_path):
    names = [NAME.replace('robot_7', client) for client in ('arm', 'arm-2', 'arm-2-3', 'all')]
    for name in names:
        (tmp_path / name).touch()
    captures = Captures(tmp_path)
    for client, name in zip(('arm', 'arm-2', 'arm-2-3'), names, strict=False):
        found = captures.of_incident(IncidentPlace(client, PLACE.instant))
        assert {each['name'] for each in found} == {name, names[-1]}


def test_a_capture_that_its_server_removes_meanwhile_is_left_out(tmp_path, monkeypatch):
    gone = NAME.replace('12', '13')
    for name in (NAME, gone):
        (tmp_path / name).touch()
    captures = Captures(tmp_path)
    entries = captures._entries()
    (tmp_path / gone).unlink()
    monkeypatch.setattr(captures, '_entries', lambda: entries)
    assert [each['name'] for each in captures.of_incident(PLACE)] == [NAME]


def test_a_capture_that_is_a_link_or_a_pipe_is_not_opened(tmp_path):
    os.symlink('/etc/passwd', tmp_path / NAME)
    os.mkfifo(tmp_path / NAME.replace('12', '13'))
    captures = Captures(tmp_path)
    assert captures.open(NAME) is None and captures.open(NAME.replace('12', '13')) is None
    assert Captures(None).open(NAME) is None
