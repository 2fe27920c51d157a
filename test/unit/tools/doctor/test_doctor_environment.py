# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a machine; each trouble is made up, none is made."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.findings import listed, wrong

from lerobot_serve.requirements import FROM_ROS, missing_packages, REQUIREMENTS
from lerobot_serve.tools.doctor import environment
from lerobot_serve.tools.doctor.environment import MiddlewareFacts
from lerobot_serve.tools.doctor.finding import Finding, FindingLevel
from lerobot_serve.tools.doctor.machine import (
    check_clocks,
    ClockReading,
    file_system_space,
    FileSystemSpace,
    MachineFacts,
    PROFILE_VARIABLES,
    read_clocks,
    read_machine,
)

MIB = 1 << 20
S = 1_000_000_000
GOOD = MachineFacts(
    {'ROS_DISTRO': 'jazzy'},
    '3.12.3',
    FileSystemSpace(1024 * MIB, 1024 * MIB),
    8 * MIB,
    8 * MIB,
    1024,
    1 << 20,
)
FAST = MiddlewareFacts('rmw_fastrtps_cpp')
COMPLAINT = 'the segment has 512 KiB: images will be lost. Unset X, or give yours a larger one'


def changed(**changes: object) -> MachineFacts:
    return replace(GOOD, **changes)


def variables(**given: str) -> MachineFacts:
    return changed(variables={**GOOD.variables, **given})


def troubles(
    machine: MachineFacts = GOOD, middleware: MiddlewareFacts = FAST, kind: str = 'lerobot'
) -> list[Finding]:
    """Return what is not well."""
    found = environment.check_environment(machine, middleware, kind)
    return [finding for finding in found if finding.name in wrong(found)]


def test_a_good_machine_is_well():
    assert troubles() == []


TROUBLES = [
    changed(variables={}),
    variables(ROS_DISTRO='foxy'),
    changed(missing=frozenset(['simplejpeg'])),
    changed(missing=frozenset(['lerobot'])),
    changed(missing=frozenset(['std_srvs'])),
    changed(missing=frozenset(FROM_ROS)),
    changed(missing=frozenset(['mcap'])),
    variables(ROS_DOMAIN_ID='abc'),
    variables(ROS_DOMAIN_ID='-1'),
    variables(ROS_DOMAIN_ID='233'),
    variables(ROS_DOMAIN_ID='150'),
    variables(ROS_LOCALHOST_ONLY='1'),
    variables(ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST'),
    variables(ROS_AUTOMATIC_DISCOVERY_RANGE='OFF'),
    variables(ROS_AUTOMATIC_DISCOVERY_RANGE='OFF', ROS_STATIC_PEERS='10.0.0.7'),
    variables(ROS_LOCALHOST_ONLY='1', ROS_STATIC_PEERS='10.0.0.7'),
    variables(ROS_LOCALHOST_ONLY='1', ROS_AUTOMATIC_DISCOVERY_RANGE='OFF'),
    # ROS compares the case, too
    variables(ROS_AUTOMATIC_DISCOVERY_RANGE='subnet'),
    variables(ROS_DISCOVERY_SERVER='10.0.0.5:11811'),
    variables(ROS_AUTOMATIC_DISCOVERY_RANGE='WORLD'),
    replace(
        variables(FASTRTPS_DEFAULT_PROFILES_FILE='/gone.xml'),
        missing_profiles=frozenset(['/gone.xml']),
    ),
    changed(shared_memory=None),
    changed(shared_memory=FileSystemSpace(8 * MIB, 64 * MIB)),
    changed(shared_memory=FileSystemSpace(60 * MIB, 64 * MIB)),
    changed(shared_memory=FileSystemSpace(512 * MIB, 512 * MIB, writable=False)),
    changed(deaf={4711: '/opt/driver --fast'}),
    changed(receive_buffer_bytes=212992),
    changed(send_buffer_bytes=212992),
    changed(open_files=128),
    changed(open_files=512, open_files_allowed=4096),
]
MIDDLEWARES_IN_TROUBLE = [
    MiddlewareFacts(error='the log folder'),
    MiddlewareFacts('rmw_cyclonedds_cpp', 'x is in use'),
    MiddlewareFacts('rmw_fastrtps_cpp', COMPLAINT),
    MiddlewareFacts('rmw_fastrtps_cpp', 'odd'),
]


@pytest.mark.golden
def test_each_trouble_alone_is_found_with_its_remedy(golden):
    found = [troubles(machine) for machine in TROUBLES]
    found += [troubles(middleware=each) for each in MIDDLEWARES_IN_TROUBLE]
    assert {len(findings) for findings in found} == {1}
    golden.holds('doctor/environment.txt', listed(each for one in found for each in one))


@pytest.mark.parametrize(
    ('gone', 'kind', 'named'),
    [
        ('torch', '', []),
        ('torch', 'builtin', ['package torch']),
        ('lerobot', 'builtin', []),
        ('lerobot', 'lerobot', ['package lerobot']),
    ],
)
def test_only_what_is_needed_is_asked_for(gone, kind, named):
    assert wrong(troubles(changed(missing=frozenset([gone])), kind=kind)) == named


@pytest.mark.parametrize('name', [*FROM_ROS, *REQUIREMENTS])
def test_every_package_that_may_be_missing_is_looked_for(name):
    named = 'ROS' if name in FROM_ROS else f'package {name}'
    assert wrong(troubles(changed(missing=frozenset([name])))) == [named]


@pytest.mark.parametrize('text', ['0', '7', '101', '215', '232', ' 5'])
def test_domains_that_are_well(text):
    assert environment.domain(text).verdict is FindingLevel.OK


@pytest.mark.parametrize('reach', ['', 'LOCALHOST', 'SUBNET', 'SYSTEM_DEFAULT'])
def test_named_peers_are_found_unless_discovery_is_off(reach):
    machine = variables(ROS_STATIC_PEERS='10.0.0.2', ROS_AUTOMATIC_DISCOVERY_RANGE=reach)
    assert troubles(machine) == []


def test_a_discovery_server_finds_everybody_whatever_the_range():
    machine = variables(
        ROS_DISCOVERY_SERVER=';10.0.0.5:11811',
        ROS_SUPER_CLIENT='true',
        ROS_AUTOMATIC_DISCOVERY_RANGE='OFF',
    )
    assert troubles(machine) == []


NUMBERS = st.none() | st.integers(0, 1 << 40)
MACHINES = st.builds(
    MachineFacts,
    st.dictionaries(
        st.sampled_from(
            [
                'ROS_DISTRO',
                'ROS_DOMAIN_ID',
                'ROS_LOCALHOST_ONLY',
                'ROS_AUTOMATIC_DISCOVERY_RANGE',
                'ROS_STATIC_PEERS',
                'ROS_DISCOVERY_SERVER',
                'ROS_SUPER_CLIENT',
                *PROFILE_VARIABLES,
            ]
        ),
        st.sampled_from(['', '1', 'OFF', 'LOCALHOST', 'jazzy', '٣', '²']) | st.text(),
    ),
    st.text(),
    st.none() | st.builds(FileSystemSpace, st.integers(0), st.integers(0), st.booleans()),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.frozensets(st.sampled_from([*FROM_ROS, *REQUIREMENTS])),
    st.frozensets(st.text()),
)
MIDDLEWARES = st.builds(MiddlewareFacts, st.text(), st.text(), st.text())


@given(MACHINES, MIDDLEWARES, st.sampled_from(['', 'builtin', 'lerobot']))
def test_whatever_the_machine_every_check_says_something(machine, middleware, kind):
    """A finding without the remedy that it needs could not even be made."""
    findings = environment.check_environment(machine, middleware, kind)
    assert {'ROS', 'ROS_DOMAIN_ID', 'discovery', 'shared memory', 'open files'} <= {
        finding.name for finding in findings
    }
    assert all(isinstance(finding, Finding) for finding in findings)


def test_this_machine_is_read():
    machine = read_machine()
    assert machine.open_files is None or machine.open_files > 0
    assert machine.python.startswith('3.')
    assert 'numpy' not in machine.missing
    assert environment.check_environment(machine, FAST, '')


def test_what_is_not_there_is_seen(tmp_path, monkeypatch):
    assert file_system_space(str(tmp_path / 'none')) is None
    assert file_system_space(str(tmp_path)).total_bytes > 0
    assert missing_packages(['no_such_package', 'json']) == ['no_such_package']
    monkeypatch.setenv('FASTRTPS_DEFAULT_PROFILES_FILE', str(tmp_path / 'none.xml'))
    assert read_machine().missing_profiles == {str(tmp_path / 'none.xml')}


def clock_after(step_ns: int = 0, *, synchronised: bool | None = True) -> ClockReading:
    return ClockReading(103 * S + step_ns, 8 * S, synchronised)


CLOCKS = [
    *map(clock_after, (0, -S // 10, S // 10, 3600 * S)),
    clock_after(synchronised=False),
    clock_after(synchronised=None),
]


@pytest.mark.golden
def test_a_clock_that_jumps_or_that_nobody_keeps_right_is_named(golden):
    before = ClockReading(100 * S, 5 * S, True)
    found = [finding for after in CLOCKS for finding in check_clocks(before, after)]
    golden.holds('doctor/clocks.txt', listed(found))


def test_the_clocks_of_this_machine_are_read():
    before, after = read_clocks(), read_clocks()
    assert after.monotonic_ns > before.monotonic_ns
    assert after.wall_ns > 1_600_000_000 * S
