# SPDX-License-Identifier: Apache-2.0
"""
A program that judges what a fault run left: traces, what witnesses saw on the wire, and faults.

    python check.py FOLDER

It shares no code with the package, and imports only Python's own library. It prints one JSON
object: `violations`, a list of sentences for each rule, `counts` and `series_ms`. A rule:

    ended       each request of a robot has one end in its trace, its numbers have no gap, and what
                a witness, a router or a server has seen is among them
    proven      each reply that a robot notes was seen: by a witness, a router or a server; one
                that passed at the moment of a kill may lack that, and is counted
    explained   each request that was lost was on its way during a fault, or shortly after it
    flagged     no policy changes within an episode without POLICY_CHANGED on the wire
    placed      both routers hold an episode in one slot, unless a later placement moves it; not
                one whose request its robot gave up, at a router that was away from the store
    one_split   one version of the split has one share, whichever router names it
    obeyed      a second after a command of an operator has succeeded, and until the next one that
                may change it, no router places a new episode against it, unless this router is in
                trouble itself: a slot that was drained or rolled back gets none, a split holds
    led         each step of a rollout is taken once, by one router; one that falls into the
                moment in which its router loses the state is not stored, and counted
    safe        each command is finite; each of a policy is younger than max_action_age_s
    recovered   after each fault all robots go on
    whole       no trace has an unreadable line, but for the last one of a process that was killed
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
import json
from pathlib import Path
import sys
from typing import Any

Record = dict[str, Any]
Request = tuple[str, int, int]
POLICY_CHANGED = 2
# parts without which requests are routed as well as with them
HARMLESS = ('store', 'link to the store')
# parts whose fault keeps one router from the store
OF_A_ROUTER = ('router', 'link to the store')
UNANSWERED = ('timed_out', 'abandoned')
# of a robot's own will; a chunk is rejected when its episode has just ended
OWN_REASONS = ('episode_started', 'rejected_chunk', 'stopped')
# then it had waited for too long for that to be the reason
OWN_WAIT_S = 1.0
# after a fault a robot has sessions to open and requests that run into their timeout; a killed
# process loses what it had not yet written
AFTER_S, LOST_BY_KILL_S = 5.0, 1.0
NS = 1_000_000_000
# in which a command of an operator takes effect at all routers
OBEYED_AFTER_S = 1.0
# command -> what begins with its success, and which commands may end that
COMMANDS = {
    ('drain', 'b'): ('drained', {('restore', 'b')}),
    ('rollout', 'abort'): ('rolled back', {('rollout', 'undo'), ('rollout', 'start')}),
    ('split',): ('split', {('split',), ('rollout', 'start')}),
}
# events of a rollout with which it begins to count again, and its steps
BEGINNINGS, STEPS = ('began', 'planned', 'restarted'), ('started', 'promoted')


@dataclass(frozen=True, slots=True)
class Intent:
    """What an operator wants, between two times; `percent` is that of a split."""

    what: str
    begin_ns: int
    end_ns: int
    percent: int

    def forbids(self, placement: Record) -> bool:
        """Return whether a placement within these times is against it."""
        if self.what == 'split':
            return placement['split_percent'] != self.percent
        return placement['slot'] == 'b'


class Evidence:
    """All records of a run, and what was found wrong."""

    def __init__(self, folder: Path) -> None:
        self.violations: dict[str, list[str]] = {
            rule: []
            for rule in (
                'ended', 'proven', 'explained', 'flagged', 'placed', 'one_split', 'obeyed',
                'led', 'safe', 'recovered', 'whole',
            )
        }  # fmt: skip
        self.counts: Counter[str] = Counter()
        self.series_ms: dict[str, list[float]] = defaultdict(list)
        self.faults = list(lines(folder / 'faults.jsonl'))
        self.commands = list(lines(folder / 'operator.jsonl'))
        self._killed = {each['name'] for each in self.faults if each['how'] == 'killed'}
        self.seen = [record for file in folder.glob('witness_*.jsonl') for record in lines(file)]
        self.runs: dict[str, list[Record]] = {}
        for file in sorted(folder.glob('*/*.jsonl')):
            self.runs[f'{file.parent.name}/{file.name}'] = list(self._records(file))

    def _records(self, file: Path) -> Iterator[Record]:
        text = file.read_bytes().split(b'\n')
        for number, line in enumerate(text):
            if not line:
                continue
            try:
                yield json.loads(line)
            except ValueError:
                if number == len(text) - 1 and file.parent.name in self._killed:
                    self.counts['torn last lines'] += 1
                else:
                    self.blame('whole', f'{file.name}: line {number + 1} cannot be read')

    def blame(self, rule: str, text: str) -> None:
        self.violations[rule].append(text)

    def of(self, role: str, kind: str) -> Iterator[Record]:
        """Yield the records of a kind in the traces of a role."""
        for records in self.runs.values():
            if records and records[0].get('role') == role:
                yield from (each for each in records if each['kind'] == kind)

    def faults_near(self, mono_ns: int, after_s: float = AFTER_S) -> Iterator[Record]:
        """Yield the faults that lasted at that time, or shortly before; the last one first."""
        for fault in reversed(self.faults):
            if fault['began_ns'] <= mono_ns <= over_ns(fault, after_s):
                yield fault

    def in_trouble(self, router: str, mono_ns: int) -> bool:
        """Return whether a router was away from the store then, or shortly before."""
        return any(
            fault['part'] == 'store'
            or (fault['name'].split('_to_')[0] == router and fault['part'] in OF_A_ROUTER)
            for fault in self.faults_near(mono_ns)
        )

    def near_fault(
        self,
        mono_ns: int,
        how: str = '',
        after_s: float = AFTER_S,
        harmless: tuple[str, ...] = (),
    ) -> str:
        """Return the last part that had failed at that time, or shortly before; else empty."""
        found = (
            f'{fault["part"]} {fault["how"]}'
            for fault in self.faults_near(mono_ns, after_s)
            if fault['part'] not in harmless and how in ('', fault['how'])
        )
        return next(found, '')


def over_ns(fault: Record, after_s: float = AFTER_S) -> float:
    """Return until when a fault explains what happens."""
    return max(fault['recovered_ns'], fault['ended_ns']) + after_s * NS


def lines(file: Path) -> Iterator[Record]:
    """Yield the records of a file that its writer has ended."""
    for line in file.read_text().splitlines():
        yield json.loads(line)


def number_of(record: Record) -> Request:
    return record['client_id'], record['session_epoch'], record['seq']


def seen_number(record: Record) -> Request:
    return record['client'], record['epoch'], record['seq']


def check(folder: Path) -> Evidence:
    """Judge a folder by all rules."""
    evidence = Evidence(folder)
    ends = ends_of(evidence)
    check_ends(evidence, ends)
    check_replies(evidence, ends)
    check_losses(evidence, ends)
    check_flags(evidence, ends)
    check_placements(evidence, ends)
    check_intents(evidence)
    check_steps(evidence)
    check_commands(evidence)
    check_recovery(evidence)
    for what in ('requests', 'requests seen on the wire', 'placements', 'control steps'):
        if not evidence.counts[what]:
            evidence.blame('whole', f'no {what} were recorded')
    return evidence


def ends_of(evidence: Evidence) -> dict[Request, Record]:
    """Return the end of each request; a second one of the same request is a violation."""
    ends: dict[Request, Record] = {}
    for record in evidence.of('edge', 'request'):
        number = number_of(record)
        if number in ends:
            evidence.blame('ended', f'request {number} has two ends')
        ends[number] = record
    return ends


def check_ends(evidence: Evidence, ends: dict[Request, Record]) -> None:
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for client, epoch, seq in ends:
        numbers[client, epoch].add(seq)
    for (client, epoch), found in numbers.items():
        for missing in sorted(set(range(1, max(found) + 1)) - found):
            evidence.blame('ended', f'request {(client, epoch, missing)} has no end')
    witnessed = {seen_number(each) for each in evidence.seen}
    for number in sorted(witnessed - ends.keys()):
        evidence.blame('ended', f'request {number} was seen on the wire and has no end')
    for role in ('router', 'server'):
        known = {number_of(each) for each in evidence.of(role, 'request')}
        evidence.counts[f'requests known to a {role}'] = len(known)
        for number in sorted(known - ends.keys()):
            evidence.blame('ended', f'request {number} is known to a {role} and has no end')
    evidence.counts['requests'] = len(ends)
    evidence.counts['requests seen on the wire'] = len(
        {seen_number(each) for each in evidence.seen if each['way'] == 'request'}
    )


def check_replies(evidence: Evidence, ends: dict[Request, Record]) -> None:
    proofs = {seen_number(each) for each in evidence.seen if each['way'] == 'reply'}
    for role in ('router', 'server'):
        proofs |= {number_of(each) for each in evidence.of(role, 'request')}
    for number, end in ends.items():
        if end['status'] in UNANSWERED:
            continue
        evidence.counts['replies'] += 1
        if number in proofs:
            continue
        if evidence.near_fault(end['mono_ns'], 'killed', LOST_BY_KILL_S):
            evidence.counts['replies only the robot has seen, at a kill'] += 1
        else:
            evidence.blame('proven', f'only the robot has seen the reply to {number}')


def check_losses(evidence: Evidence, ends: dict[Request, Record]) -> None:
    sent_ns: dict[Request, int] = {}
    for each in evidence.seen:
        if each['way'] == 'request':
            sent_ns.setdefault(seen_number(each), each['mono_ns'])
    for number, end in ends.items():
        if end['status'] not in UNANSWERED:
            continue
        reason = end.get('reason', end['status'])
        waited_s = (end['mono_ns'] - sent_ns.get(number, end['mono_ns'])) / NS
        if reason in OWN_REASONS and waited_s <= OWN_WAIT_S:
            evidence.counts[f'given up by the robot: {reason}'] += 1
            continue
        evidence.counts[f'lost: {reason}'] += 1
        if fault := evidence.near_fault(end['mono_ns'], harmless=HARMLESS):
            evidence.counts[f'lost at {fault}'] += 1
        else:
            evidence.blame('explained', f'request {number} was lost without a fault: {reason}')


def check_flags(evidence: Evidence, ends: dict[Request, Record]) -> None:
    flags: dict[Request, int] = defaultdict(int)
    for each in evidence.seen:
        if each['way'] == 'reply':
            flags[seen_number(each)] |= each['flags']
    replies = [
        (number, end)
        for number, end in sorted(ends.items())
        if end['status'] not in UNANSWERED and end.get('policy') and end.get('episode_id')
    ]
    last: dict[tuple[str, str], str] = {}
    for number, end in replies:
        episode = end['client_id'], end['episode_id']
        before = last.setdefault(episode, end['policy'])
        last[episode] = end['policy']
        if end['policy'] == before:
            continue
        evidence.counts['changes of a policy within an episode'] += 1
        if number not in flags:
            evidence.counts['changes that no witness has seen'] += 1
        elif not flags[number] & POLICY_CHANGED:
            evidence.blame('flagged', f'reply to {number}: {before} -> {end["policy"]}')


def check_placements(evidence: Evidence, ends: dict[Request, Record]) -> None:
    placements = list(placements_of(evidence))
    evidence.counts['placements'] = len(placements)
    slots: dict[str, str] = {}
    shares: dict[int, set[int]] = defaultdict(set)
    for router, each in placements:
        # a moved episode keeps the split that it began with
        if (version := each.get('split_version')) and not each['moved']:
            shares[version].add(each['split_percent'])
        if not (episode := each.get('episode_id')):
            continue
        before = slots.setdefault(episode, each['slot'])
        if each['moved']:
            evidence.counts['moved placements'] += 1
        elif each['slot'] != before and is_given_up(evidence, router, each, ends):
            evidence.counts['placements that nobody used, at a router that could not know'] += 1
            continue
        elif each['slot'] != before:
            evidence.blame('placed', f'{episode}: slot {before}, then {each["slot"]}, not moved')
        slots[episode] = each['slot']
    evidence.counts['episodes that were placed'] = len(slots)
    check_slots(evidence, [each for _, each in placements])
    evidence.counts['versions of the split'] = len(shares)
    for version, found in sorted(shares.items()):
        if len(found) > 1:
            evidence.blame('one_split', f'version {version} of the split is {sorted(found)} %')


def placements_of(evidence: Evidence) -> Iterator[tuple[str, Record]]:
    """Yield router and placement, in the order of their times."""
    found = (
        (name.partition('/')[0], each)
        for name, records in evidence.runs.items()
        for each in records
        if each['kind'] == 'placement'
    )
    yield from sorted(found, key=lambda each: each[1]['mono_ns'])


def is_given_up(
    evidence: Evidence, router: str, placement: Record, ends: dict[Request, Record]
) -> bool:
    """Return whether no robot used a placement, and its router could not know of others."""
    end = ends.get(number_of(placement))
    is_used = end is None or end['status'] not in UNANSWERED
    return not is_used and evidence.in_trouble(router, placement['mono_ns'])


def check_slots(evidence: Evidence, placements: list[Record]) -> None:
    """A router asks only servers of a slot in which some router has placed the episode."""
    placed: dict[str, set[str]] = defaultdict(set)
    for each in placements:
        placed[each.get('episode_id', '')].add(each['slot'])
    for each in evidence.of('router', 'request'):
        slot = each.get('routing', {}).get('slot')
        episode = each.get('episode_id', '')
        if each['status'] == 'ok' and slot and slot not in placed[episode]:
            if evidence.near_fault(each['mono_ns'], 'killed', LOST_BY_KILL_S):
                evidence.counts['placements that a killed router did not write down'] += 1
            else:
                evidence.blame(
                    'placed', f'{episode} is served by slot {slot}, without a placement'
                )


def check_intents(evidence: Evidence) -> None:
    """What an operator has said holds at all routers."""
    intents = list(intents_of(evidence.commands))
    for command in evidence.commands:
        how = {0: 'done', 1: 'refused'}.get(command['status'], 'not confirmed')
        evidence.counts[f'commands of the operator: {how}'] += 1
    for router, each in new_placements(evidence):
        name, at_ns = each['episode_id'], each['mono_ns']
        for intent in intents:
            if not intent.begin_ns <= at_ns < intent.end_ns:
                continue
            if evidence.in_trouble(router, at_ns):
                evidence.counts['new episodes at a router that could not know'] += 1
                continue
            evidence.counts[f'new episodes while {intent.what} holds'] += 1
            if intent.forbids(each):
                evidence.blame(
                    'obeyed',
                    f'{name} at {router} in slot {each["slot"]} with {each["split_percent"]} %, '
                    f'{(at_ns - intent.begin_ns) / NS:.1f} s after {intent}',
                )


def intents_of(commands: list[Record]) -> Iterator[Intent]:
    """Yield what an operator wants, from a command that has succeeded to one that may end it."""
    for number, command in enumerate(commands):
        for words, (what, ends) in COMMANDS.items():
            if command['status'] == 0 and is_command(command, words):
                later = (
                    each['began_ns']
                    for each in commands[number + 1 :]
                    if any(is_command(each, end) for end in ends)
                )
                begin_ns = command['ended_ns'] + round(OBEYED_AFTER_S * NS)
                percent = int(command['words'][1]) if what == 'split' else 0
                yield Intent(what, begin_ns, next(later, sys.maxsize), percent)


def is_command(command: Record, words: tuple[str, ...]) -> bool:
    return tuple(command['words'][: len(words)]) == words


def new_placements(evidence: Evidence) -> Iterator[tuple[str, Record]]:
    """Yield router and placement of each episode's begin, as far as all was written down."""
    known: set[str] = set()
    for router, each in placements_of(evidence):
        if not (episode := each.get('episode_id')):
            continue
        is_new = episode not in known
        known.add(episode)
        if is_new and not evidence.near_fault(each['mono_ns'], 'killed', LOST_BY_KILL_S):
            yield router, each


def check_steps(evidence: Evidence) -> None:
    """No two routers take the same step of a rollout, nor one router twice."""
    events = sorted(
        (each['mono_ns'], name.partition('/')[0], each['event'], each.get('share_percent'))
        for name, records in evidence.runs.items()
        for each in records
        if each['kind'] == 'canary'
    )
    taken: set[tuple[str, int | None]] = set()
    for at_ns, router, event, share in events:
        evidence.counts[f'rollouts: {event}'] += 1
        if event in BEGINNINGS:
            taken.clear()
        elif event in STEPS and evidence.in_trouble(router, at_ns):
            # not stored: the next leader takes it again
            evidence.counts['steps at the moment in which the state was lost'] += 1
        elif event in STEPS and (event, share) in taken:
            evidence.blame('led', f'{event} to {share} % twice')
        else:
            taken.add((event, share))


def check_commands(evidence: Evidence) -> None:
    for records in evidence.runs.values():
        if not records or records[0].get('role') != 'edge':
            continue
        longest_s = records[0]['parameters']['max_action_age_s']
        for each in records:
            if each['kind'] == 'executed':
                check_command(evidence, each, longest_s)
            if each['kind'] == 'incident':
                fault = evidence.near_fault(each['mono_ns']) or 'no fault'
                evidence.counts[f'{each["name"]} at {fault}'] += 1


def check_command(evidence: Evidence, command: Record, longest_s: float) -> None:
    evidence.counts['control steps'] += 1
    is_policys = command['rung'] == 'policy'
    evidence.counts['control steps with an action of a policy'] += is_policys
    if {'commanded', 'raw'} & set(command.get('not_finite', ())):
        evidence.blame('safe', f'step {command["control_step"]} holds a number that is not finite')
    age_s = command.get('age_s')
    if is_policys and command.get('commanded') and (age_s is None or age_s > longest_s):
        evidence.blame('safe', f'step {command["control_step"]}: an action of {age_s} s')


def check_recovery(evidence: Evidence) -> None:
    # what is lost in these times is not explained
    evidence.counts['seconds without a fault'] = round(seconds_without_fault(evidence.faults))
    for fault in evidence.faults:
        name = f'{fault["part"]} {fault["how"]}'
        evidence.counts[f'faults: {name}'] += 1
        after_ms = (fault['recovered_ns'] - fault['ended_ns']) / 1e6
        evidence.series_ms[f'{name}, until all robots go on'].append(max(0.0, after_ms))
        if not fault['has_recovered']:
            evidence.blame('recovered', f'{fault["name"]} {fault["how"]}: a robot does not go on')


def seconds_without_fault(faults: list[Record]) -> float:
    """Return how long a run was between its first and its last fault, and not near any."""
    free_s, last_ns = 0.0, None
    for fault in faults:
        if last_ns is not None:
            free_s += max(0.0, (fault['began_ns'] - last_ns) / NS)
        last_ns = max(last_ns or 0, over_ns(fault))
    return free_s


def main(arguments: Iterable[str]) -> int:
    """Return 0 when no rule is violated, otherwise 1."""
    (folder,) = arguments
    evidence = check(Path(folder))
    found = {
        'violations': evidence.violations,
        'counts': dict(evidence.counts),
        'series_ms': evidence.series_ms,
    }
    print(json.dumps(found, indent=2))
    return int(any(evidence.violations.values()))


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
