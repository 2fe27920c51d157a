"""The canary step by step: what it does, and what it says."""

from __future__ import annotations

from dataclasses import replace
import math

from canary_rig import NEW, OLD, plan, QUICK, started, World
import pytest

from lerobot_serve.router.canary.canary import Canary, NotAllowed
from lerobot_serve.router.canary.comparison import Comparison
from lerobot_serve.router.canary.evidence import Counts
from lerobot_serve.router.canary.forecast import episodes_to_decide
from lerobot_serve.router.canary.guards import Limits
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.record import HISTORY_KEPT
from lerobot_serve.router.canary.states import Event, NEXT, State


def whats(happenings) -> list[str]:
    return [happening.what for happening in happenings]


def test_without_a_plan_there_is_no_canary():
    world = World(Canary(None))
    world.good_episodes()
    assert world.look() == ()
    assert (world.canary.state, world.canary.share_percent) == (State.OFF, None)
    for word in (world.canary.pause, world.canary.promote, world.canary.rollback):
        with pytest.raises(NotAllowed, match='a canary that is off: no canary'):
            word('why')


def test_from_the_first_step_to_all_episodes():
    world, shares = World(), []
    while world.canary.state is not State.PROMOTED:
        shares += [world.canary.share_percent] if world.canary.share_percent not in shares else []
        world.good_episodes()
        world.wait(60)
    assert shares == [0, 5, 25, 50]
    assert (world.canary.share_percent, world.canary.step) == (100, 3)
    told = whats(world.canary.history)
    assert told == ['began', 'started', 'passed', 'promoted', 'promoted', 'promoted']
    assert world.canary.text.startswith('promoted: all new episodes to the candidate; candidate 9')


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'shadowed for 3 of 24 h'}}, 'waiting: shadowed for 3 of 24 h'),
        ({'candidate': {'healthy': False, 'health_text': 'drained'}}, 'candidate is not healthy'),
        ({'champion': {'healthy': False}}, 'the slot of the champion is not healthy'),
        ({'candidate': {'policy': ''}}, 'the policy of the candidate is not known yet'),
        ({'champion': {'policy': ''}}, 'the policy of the champion is not known yet'),
    ],
)
def test_it_waits_until_both_slots_are_there(change, told):
    world = World()
    world.others = change.get('others', {})
    for slot in ('candidate', 'champion'):
        world.change(slot, **change.get(slot, {}))
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (State.WAITING, 0)
    assert told in world.canary.text
    with pytest.raises(NotAllowed, match='cannot promote a canary that is waiting'):
        world.canary.promote('now')
    world.others = {}
    world.change('candidate', healthy=True, policy=NEW)
    world.change('champion', healthy=True, policy=OLD)
    assert whats(world.look()) == ['started']
    assert world.canary.share_percent == 5


def test_a_step_takes_its_least_episodes_and_its_least_time():
    world = started(plan=plan(seconds=100.0, episodes=20))
    world.good_episodes()
    world.wait(90)
    assert world.canary.state is State.RUNNING
    assert world.canary.text == (
        'running: step 1 of 3, 5 % of new episodes to the candidate: 20 of 20 episodes of the '
        'candidate, 1.52 of 1.67 min; candidate 90 % of 20, champion 90 % of 100'
    )
    world.wait(10)
    assert world.canary.step == 1
    world.end('candidate', 19)
    world.end('champion', 100)
    world.wait(500)
    assert (world.canary.step, world.canary.state) == (1, State.RUNNING)
    world.end('candidate', 1)
    world.look()
    assert world.canary.step == 2


def test_undecided_it_holds_and_says_how_many_more():
    world = started(terms=Terms(margin=0.1, settle_s=0))
    world.end('candidate', 40, 10)
    world.end('champion', 800, 200)
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (State.HELD, 5)
    assert world.canary.text.startswith(
        'held: undecided: candidate 80 % of 50, champion 80 % of 1000. About 2'
    )
    assert world.canary.text.endswith('until it is promoted, if the rates stay so')


@pytest.mark.parametrize('share', [5, 50])
def test_the_forecast_is_kept(share):
    champion, candidate, terms = Counts(80, 20), Counts(40, 10), Terms(margin=0.1, settle_s=0)
    forecast = episodes_to_decide(champion, candidate, share_percent=share, terms=terms, trials=3)
    assert forecast.promoted
    others = (100 - share) // share
    world = started(plan=plan(str(share), '100'), terms=terms)
    world.end('candidate', 40, 10)
    world.end('champion', 80, 20)
    world.wait(100)
    more = 0
    while world.canary.state is not State.PROMOTED:
        world.end('candidate', 4, 1)
        world.end('champion', 4 * others, others)
        world.look()
        more += 5
    assert forecast.episodes == pytest.approx(more, rel=0.15)


def test_at_a_small_share_the_champion_is_known_sooner():
    few, many = (
        episodes_to_decide(
            Counts(80, 20), Counts(40, 10), share_percent=share, terms=Terms(), trials=3
        )
        for share in (5, 50)
    )
    assert few.episodes < 0.8 * many.episodes


def test_too_few_to_forecast_is_said():
    world = started(plan=plan(episodes=5), terms=Terms(settle_s=0))
    world.end('candidate', 5)
    world.end('champion', 50, 10)
    world.wait(100)
    assert 'Too few episodes to say how many more are needed' in world.canary.text


def test_what_will_not_be_decided_is_said():
    world = started(terms=Terms(margin=0.0, settle_s=0))
    world.end('candidate', 500, 500)
    world.end('champion', 5000, 5000)
    world.wait(100)
    assert 'more episodes of the candidate will not decide it' in world.canary.text
    assert 'promote or roll back by hand' in world.canary.text


def test_a_worse_candidate_is_rolled_back_before_its_time():
    world = started(terms=Terms(settle_s=0))
    world.end('candidate', 5, 25)
    world.end('champion', 90, 10)
    assert whats(world.look()) == ['rolled_back']
    assert (world.canary.state, world.canary.share_percent) == (State.ROLLED_BACK, 0)
    assert world.canary.text == (
        'rolled back: the candidate is worse than the champion: candidate 17 % of 30, champion '
        '90 % of 100; wrong in at most 5 % of canaries whose candidate is not'
    )


@pytest.mark.parametrize('by_hand', [True, False])
def test_what_was_shown_is_forgotten_when_it_begins_anew(by_hand):
    world = started(terms=Terms(settle_s=0))
    world.end('candidate', 5, 25)
    world.end('champion', 90, 10)
    world.look()
    assert world.canary.state is State.ROLLED_BACK
    if by_hand:
        world.canary.resume('another lamp')
    else:
        world.change('candidate', policy='better@3')
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (State.RUNNING, 5)
    assert world.canary.record.comparison == Comparison()


def test_what_a_step_has_half_shown_does_not_count_in_the_next():
    world = started(terms=Terms(margin=0.4, settle_s=0))
    world.end('candidate', 12, 1)
    world.end('champion', 90, 10)
    world.look()
    assert 0 < world.canary.record.comparison.not_worse < world.canary.terms.promotion_level
    world.canary.promote('sure')
    assert world.canary.record.comparison == Comparison()


def test_the_highest_evidence_is_kept():
    comparison, champion = Comparison(), Counts(90, 10)
    for candidate in (Counts(15, 1), Counts(2, 14), Counts(15, 15)):
        before = comparison.not_worse, comparison.worse
        comparison.look(champion, candidate, Terms(margin=0.4, false_promotion=1e-9))
        assert (comparison.not_worse, comparison.worse) >= before
        assert comparison.worse >= before[1]
    assert comparison.not_worse > 0
    assert comparison.worse > 0


def test_a_later_step_compares_only_its_own_episodes():
    world = World(Canary(plan(), Terms(margin=0.3, settle_s=0))).start()
    world.end('candidate', 60)
    world.end('champion', 950, 50)
    world.wait(100)
    assert world.canary.step == 1
    # a bad day for both: pooled with the good one the candidate would look worse
    world.end('candidate', 50, 50)
    world.end('champion', 50, 50)
    world.wait(100)
    assert world.canary.step == 2
    # and a candidate that has become bad is not carried by its past
    world.end('candidate', 10, 90)
    world.end('champion', 50, 50)
    world.look()
    assert world.canary.state is State.ROLLED_BACK


def test_outcomes_of_the_first_seconds_do_not_count():
    world = started(terms=replace(QUICK, settle_s=200.0))
    world.end('candidate', 500)
    world.end('champion', 500, 100)
    world.wait(150)
    assert world.canary.state is State.RUNNING
    assert 'outcomes count in 49 s; candidate without an outcome' in world.canary.text
    world.wait(60)
    assert whats(world.canary.history) == ['began', 'started']
    world.good_episodes()
    world.wait(60)
    assert world.canary.step == 1


def test_longer_episodes_than_were_left_out_hold():
    world = started()
    world.others = {'longest_episode_s': 30.0}
    world.good_episodes()
    world.wait(100)
    assert (world.canary.state, world.canary.step) == (State.HELD, 0)
    assert 'an episode took 30 s' in world.canary.text


@pytest.mark.parametrize('state', [State.RUNNING, State.HELD, State.PAUSED])
@pytest.mark.parametrize(
    'bad',
    [
        {'failed_answers': 50},
        {'latency_ms_p95': 500.0},
        {'trips': 4000},
        {'fallbacks': 4000},
        {'healthy': False},
    ],
)
def test_a_guard_rolls_back_at_once(state, bad):
    world = started(terms=Terms(settle_s=0))
    world.end('candidate', 16, 4)
    world.end('champion', 85, 15)
    if state is State.HELD:
        world.wait(100)
    if state is State.PAUSED:
        world.canary.pause('lunch')
    world.look()
    assert world.canary.state is state
    world.change('candidate', **bad)
    assert whats(world.look()) == ['rolled_back']
    assert world.canary.share_percent == 0


def test_guards_let_a_promoted_canary_be():
    world = World().to_step(3)
    assert world.canary.state is State.PROMOTED
    world.change('candidate', healthy=False, failed_answers=10**6, trips=10**6)
    world.end('candidate', 0, 100)
    assert world.look() == ()
    assert world.canary.share_percent == 100


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'no shadow'}}, 'held: no shadow'),
        ({'champion': {'healthy': False, 'health_text': 'gone'}}, 'champion is not healthy: gone'),
        ({'candidate': {'policy': ''}}, 'policy of the candidate is not known'),
        ({'candidate': {'unreported': 6, 'episodes': 26}}, 'publish an EpisodeOutcome'),
        ({'candidate': {'commands': 10}}, '~/executed_action'),
        ({'candidate': {'latency_ms_p95': math.nan}}, 'too few answers of the candidate'),
        ({'champion': {'latency_ms_p95': math.nan}}, 'too few answers of the champion'),
    ],
)
def test_missing_data_never_promotes(change, told):
    world = started()
    world.good_episodes()
    world.others = change.get('others', {})
    for slot in ('candidate', 'champion'):
        world.change(slot, **change.get(slot, {}))
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (State.HELD, 0)
    assert told in world.canary.text


def test_after_a_hold_it_goes_on():
    world = started()
    world.good_episodes()
    world.others = {'missing': 'x'}
    world.wait(100)
    world.others = {}
    world.look()
    assert world.canary.step == 1


def test_no_divergence_holds_where_it_has_a_limit():
    world = started(limits=Limits(divergence=2.0))
    world.good_episodes()
    world.wait(100)
    assert 'divergence was measured on 0 observations' in world.canary.text
    world.others = {'divergence': 1.0, 'divergence_samples': 50}
    world.look()
    assert world.canary.step == 1


# an operator's word


def test_a_paused_canary_keeps_its_share_and_its_time():
    world = started()
    assert world.canary.pause('  look at\nrobot 7 ') == ('paused: by an operator: look at robot 7')
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (State.PAUSED, 5)
    assert 'by an operator: look at robot 7; step 1 of 3' in world.canary.text
    world.canary.resume('ok')
    world.look(after_s=30)
    assert world.canary.step == 0
    world.wait(60)
    assert world.canary.step == 1


def test_an_operator_may_promote_without_waiting():
    world = started(terms=Terms(settle_s=0))
    assert 'step 2 of 3, 25 % of new episodes' in world.canary.promote('Ann: urgent')
    world.look()
    # a promotion by hand proves nothing: the next one waits for the comparison again
    world.end('candidate', 16, 4)
    world.end('champion', 16, 4)
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (State.HELD, 1)
    world.canary.promote('Ann')
    world.look()
    world.canary.pause('Bob')
    world.canary.promote('Ann')
    assert (world.canary.state, world.canary.share_percent) == (State.PROMOTED, 100)
    assert 'Ann' in world.canary.text


def test_a_paused_canary_that_is_promoted_stays_paused():
    world = started()
    world.canary.pause('by hand from here')
    world.canary.promote('step')
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (State.PAUSED, 25)


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'no shadow'}}, 'not promoted: no shadow'),
        ({'candidate': {'policy': ''}}, 'policy of the candidate is not known'),
    ],
)
def test_an_operator_cannot_promote_what_may_take_no_traffic(change, told):
    world = started()
    world.others = change.get('others', {})
    world.change('candidate', **change.get('candidate', {}))
    world.look()
    with pytest.raises(NotAllowed) as error:
        world.canary.promote('now')
    assert told in str(error.value)
    assert world.canary.step == 0


def test_a_champion_that_is_ill_does_not_bind_an_operator():
    world = started()
    world.change('champion', healthy=False)
    world.look()
    assert world.canary.state is State.HELD
    world.canary.promote('the champion is lost')
    assert world.canary.step == 1


@pytest.mark.parametrize('step', [0, 2, 3])
def test_an_operator_may_always_roll_back_and_begin_anew(step):
    world = World().to_step(step)
    told = world.canary.rollback('a bad feeling')
    assert told == 'rolled back: by an operator: a bad feeling'
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (State.ROLLED_BACK, 0)
    for word in (world.canary.promote, world.canary.rollback, world.canary.pause):
        with pytest.raises(NotAllowed, match='a canary that is rolled back: rolled back: by'):
            word('again')
    assert world.canary.resume('it was the lamp').startswith('waiting: from 0, by an operator')
    world.look()
    assert (world.canary.share_percent, world.canary.step) == (5, 0)
    world.wait(1000)
    assert world.canary.step == 0


def test_a_reason_is_one_line_of_bounded_length():
    world = started()
    assert len(world.canary.pause('x\n' * 10**6)) < 600
    assert 'no reason given' in world.canary.rollback('')


# what begins anew


@pytest.mark.parametrize('slot', ['candidate', 'champion'])
def test_another_policy_begins_anew(slot):
    world = World().to_step(2)
    world.change(slot, policy='other@3')
    happened = world.look()
    assert whats(happened) == ['anew', 'started']
    assert f'the {slot} is now other@3; it was' in happened[0].why
    assert (world.canary.share_percent, world.canary.step) == (5, 0)
    assert world.canary.record.comparison == Comparison()
    # enough episodes, but what has passed was the other policy
    world.end('candidate', 7, 3)
    world.end('champion', 90, 10)
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (State.HELD, 0)
    assert 'undecided' in world.canary.text


def test_a_canary_that_is_over_concerns_the_candidate_alone():
    for end in (lambda world: world.to_step(3), lambda world: world.start()):
        world = World()
        end(world)
        if world.canary.state is not State.PROMOTED:
            world.canary.rollback('x')
        state = world.canary.state
        world.change('champion', policy='other@3')
        world.look()
        assert world.canary.state is state
        world.change('candidate', policy='other@4')
        assert whats(world.look()) == ['anew', 'started']


def test_a_policy_that_is_not_known_for_a_while_changes_nothing():
    world = started()
    world.good_episodes()
    world.change('candidate', policy='')
    world.wait(100)
    world.change('candidate', policy=NEW)
    world.look()
    assert world.canary.step == 1


def test_another_plan_or_other_terms_begin_anew():
    world = World().to_step(2)
    world.canary.replan(plan(), QUICK)
    assert world.canary.step == 2
    world.canary.replan(plan('10', '100'), QUICK)
    assert (world.canary.state, world.canary.share_percent) == (State.WAITING, 0)
    assert 'from 0, plan and terms are now: 10:10:60, 100' in world.canary.text
    world.look()
    assert world.canary.share_percent == 10
    world.canary.replan(plan('10', '100'), Terms())
    assert world.canary.state is State.WAITING
    world.canary.replan(None, Terms())
    assert (world.canary.state, world.canary.share_percent) == (State.OFF, None)
    world.canary.replan(plan('10', '100'), Terms())
    assert world.canary.state is State.WAITING


def test_limits_may_change_at_any_time():
    world = started()
    world.end('candidate', 9, 1)
    world.change('candidate', latency_ms_p95=150.0)
    world.canary.limits = Limits(latency_ratio=4.0)
    world.end('champion', 90, 10)
    world.look()
    assert world.canary.state is State.RUNNING
    world.canary.limits = Limits()
    world.look()
    assert world.canary.state is State.ROLLED_BACK


# time


def test_a_clock_that_jumps_promotes_nothing():
    world = started(plan=plan(seconds=600.0))
    world.good_episodes()
    world.look(after_s=10**6)
    assert world.canary.step == 0
    assert world.canary.record.time_ns <= 62 * 10**9
    world.now_ns = 0
    world.look(after_s=0)
    assert world.canary.record.time_ns <= 62 * 10**9


def test_history_is_bounded():
    world = started()
    for _ in range(HISTORY_KEPT):
        world.canary.pause('x')
        world.canary.resume('y')
    assert len(world.canary.history) == HISTORY_KEPT
    assert world.canary.history[-1].what == 'resumed'


# the table


def test_nothing_but_a_person_or_another_policy_leads_out_of_the_ends():
    ways = {state: {event for s, event in NEXT if s is state} for state in State}
    assert ways[State.PROMOTED] == {Event.ROLL_BACK, Event.ANEW, Event.STOP}
    assert ways[State.ROLLED_BACK] == {Event.RESUME, Event.ANEW, Event.STOP}


def test_every_state_can_be_left_and_reached():
    assert {state for state, _ in NEXT} == set(State) == set(NEXT.values())
    assert {event for _, event in NEXT} == set(Event)


def test_the_table_in_the_text_is_the_table():
    from lerobot_serve.router.canary import states

    lines = [line.split() for line in states.__doc__.splitlines() if line.startswith('    ')]
    header, rows = lines[0], {line[0]: line[1:] for line in lines[1:]}
    for state in State:
        for event, cell in zip(header, rows[state.name], strict=True):
            after = NEXT.get((state, Event[event]))
            assert cell == (after.name if after else '.'), (state, event)
        assert NEXT.get((state, Event.STOP)) is (None if state is State.OFF else State.OFF)
