# SPDX-License-Identifier: Apache-2.0
"""Loading exported programs: what identifies one, and what is said when one cannot be loaded."""

from __future__ import annotations

import json
import shutil

import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.exported.sidecar import MODES

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
safetensors_torch = pytest.importorskip('safetensors.torch', reason='(TORCH=none)')

from support.policies import exported_rig as rig  # noqa: E402

from lerobot_serve.policies.exported import programs  # noqa: E402
from lerobot_serve.policies.exported.loader import load  # noqa: E402

FILES = ('policy.json', 'program.pt2', 'statistics.safetensors')


def change_sidecar(**values):
    return lambda folder: (folder / FILES[0]).write_text(json.dumps({**rig.SIDECAR, **values}))


def normalize(**modes):
    return change_sidecar(normalization={**rig.SIDECAR['normalization'], **modes})


def change_statistics(**values):
    changed = {**rig.STATISTICS, **{name.replace('_', '.'): v for name, v in values.items()}}
    kept = {name: value for name, value in changed.items() if value is not None}
    return lambda folder: safetensors_torch.save_file(kept, folder / FILES[2])


def remove(name):
    return lambda folder: (folder / name).unlink()


def data(name, content):
    return lambda folder: (folder / name).write_bytes(content)


BROKEN = {
    'no folder': (lambda f: shutil.rmtree(f), 'is not a folder'),
    'no sidecar': (remove('policy.json'), 'policy.json is missing; copy'),
    'no program': (remove('program.pt2'), r'must hold either program.pt2 or .* got neither'),
    'two programs': (data('program.onnx', b''), 'either program.pt2 or program.onnx, got both'),
    'a script': (
        lambda f: (f / 'program.pt2').rename(f / 'program.pt'),
        'got neither .TorchScript, program.pt, is no longer served',
    ),
    'not JSON': (data('policy.json', b'{'), 'not JSON'),
    'other inputs': (change_sidecar(inputs=['state']), r'inputs must be state, observation.* got'),
    'same cameras': (
        change_sidecar(cameras=rig.SIDECAR['cameras'] * 2),
        'the cameras must have different names',
    ),
    'other feature': (normalize(velocity='none'), 'normalization must be a group of'),
    'no statistics': (remove('statistics.safetensors'), 'lacks state.mean, state.std, which the'),
    'a statistic less': (change_statistics(action_max=None), "lacks action.max.*'min_max' of act"),
    'count': (change_statistics(state_mean=torch.zeros(3)), r'state.mean must be 2 finite .*\(3,'),
    'type': (change_statistics(state_mean=torch.zeros(2).int()), 'got .* of torch.int32'),
    'not finite': (change_statistics(state_std=torch.full((2,), torch.inf)), 'std must be 2 fin'),
    'negative': (change_statistics(state_std=-torch.ones(2)), 'state: std must be at least 0'),
    'reversed': (change_statistics(action_min=torch.full((2,), 9.0)), 'action: .* max at least'),
    'no archive': (data('program.pt2', b'version https://git-lfs'), 'not a readable program arch'),
    'rows': (change_sidecar(chunk_size=5), r'returns \(1, 4, 2\) of .*requires \(1, 5, 2\)'),
    'actions': (
        lambda f: (
            change_sidecar(action_names=['a', 'b', 'c'])(f),
            change_statistics(action_min=torch.zeros(3), action_max=torch.ones(3))(f),
        ),
        r'returns \(1, 4, 2\) of .*requires \(1, 4, 3\)',
    ),
    'order': (change_sidecar(inputs=['state', rig.CAMERA]), 'the program fails on 1 x state, obs'),
}


@pytest.mark.parametrize(('spoil', 'text'), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_explained(folder, spoil, text):
    spoil(folder)
    with pytest.raises(PolicyError, match=text) as caught:
        load(LoadOptions(str(folder)))
    assert '\n' not in str(caught.value)


def test_an_empty_path_is_explained():
    with pytest.raises(PolicyError, match=r"is its folder, .*; '' is not a folder"):
        load(LoadOptions())


class Other(rig.Network):
    """Has other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.ones(rig.ROWS))


class Memory(rig.Network):
    """Remembers what it saw."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        self.colours.add_(1)
        return state[:, None] * self.rows[:, None] + image.mean()


class Noise(rig.Network):
    """Draws random numbers."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state[:, None] * self.rows[:, None] + torch.rand_like(state)[:, None] + image.mean()


class Half(rig.Network):
    """Answers in another type."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return (state[:, None] * self.rows[:, None] + image.mean()).half()


class Two(rig.Network):
    """Answers with more than a chunk."""

    def forward(
        self, image: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return state[:, None] * self.rows[:, None], image


@pytest.mark.parametrize(
    ('make', 'network', 'text'),
    [
        (rig.exported, Memory, 'changes its own buffers'),
        (rig.exported, Noise, 'returns different outputs for equal inputs'),
        (rig.exported, Half, 'of torch.float16, but'),
        (rig.exported, Two, r'returns \(1, 4, 2\) of torch.float32, \(1, 3, 8, 6\) of .*, but'),
        (rig.as_onnx, Half, 'of torch.float16, but'),
        (rig.as_onnx, Two, r'returns \(1, 4, 2\) of torch.float32, \(1, 3, 8, 6\) of .*, but'),
    ],
)
def test_a_program_that_is_no_policy_is_explained(make, network, text, tmp_path):
    path = rig.write_policy(tmp_path, make(network()))
    with pytest.raises(PolicyError, match=text):
        load(LoadOptions(path))


class Large(rig.Network):
    """Makes a tensor far larger than anything it was given."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state[:, None] * self.rows[:, None] + torch.ones(1 << 10, 1 << 10).sum()


class Outer(rig.Network):
    """Makes one of what it was given."""

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        wide = torch.arange(1 << 10) + state.sum()
        return state[:, None] * self.rows[:, None] + (wide[:, None] * wide).sum()


@pytest.mark.parametrize('network', [Large, Outer])
def test_memory_of_a_first_run_is_bounded(tmp_path, network, monkeypatch):
    path = rig.write_policy(tmp_path, rig.exported(network()))
    load(LoadOptions(path))
    monkeypatch.setattr('lerobot_serve.policies.exported.programs.TENSOR_LIMIT_BYTES', 4 << 20)
    load(LoadOptions(path))
    monkeypatch.setattr('lerobot_serve.policies.exported.programs.TENSOR_LIMIT_BYTES', 3 << 20)
    with pytest.raises(PolicyError, match='makes a tensor of 4 MB in one step'):
        load(LoadOptions(path))


def test_a_program_for_one_request_does_not_pass_for_more(tmp_path):
    path = rig.write_policy(tmp_path, rig.exported(dynamic=False))
    with pytest.raises(
        PolicyError, match=r'the program fails on 2 x observation.images.front, st'
    ):
        load(LoadOptions(path))


@pytest.mark.parametrize('mode', ['mean_std', 'min_max'])
@pytest.mark.parametrize('dynamic', [True, False])
def test_what_this_process_runs_first_has_run_in_the_trial(tmp_path, monkeypatch, mode, dynamic):
    def noted(self, inputs, seed):
        seen.append([each.clone() for each in inputs])
        return run(self, inputs, seed)

    def run_here(_, function, task, data, **__):
        # as the child gets it
        getattr(programs, function)(data, json.loads(json.dumps(task)))
        trial.extend(seen)
        seen.clear()
        return ''

    seen, trial, run = [], [], programs.TorchProgram.run
    low, high = torch.tensor([0.25, -2.0, 7.0]), torch.tensor([0.75, 3.0, 9.0])
    own = dict(zip(MODES[mode], (low, high), strict=True))
    statistics = {f'{rig.CAMERA}.{name}': value for name, value in own.items()}
    monkeypatch.setattr(rig, 'STATISTICS', rig.STATISTICS | statistics)
    monkeypatch.setattr(programs.TorchProgram, 'run', noted)
    monkeypatch.setattr(programs, 'try_in_child', run_here)
    modes = {**rig.SIDECAR['normalization'], rig.CAMERA: mode}
    batch = 'dynamic' if dynamic else 1
    program = rig.exported(dynamic=dynamic)
    load(LoadOptions(rig.write_policy(tmp_path, program, normalization=modes, batch=batch)))
    assert len(trial) == 1 + dynamic
    # image and state, neither of them zeros
    assert all(each.abs().min() > 0 for inputs in trial for each in inputs)
    assert seen
    assert all(any(all_equal(inputs, tried) for tried in trial) for inputs in seen)


def all_equal(inputs, others):
    """Return whether the tensors are of the same shapes and values."""
    return [*map(torch.Tensor.tolist, inputs)] == [*map(torch.Tensor.tolist, others)]


def test_missing_statistics_are_served_without_when_allowed(folder):
    remove('statistics.safetensors')(folder)
    policy = load(LoadOptions(str(folder), allow_missing_statistics=True))
    assert policy.describe().notes == (
        'no statistics for state, action: served without normalising them',
    )
    (prediction,) = policy.predict([rig.request((5, 6), (255, 0, 0))])
    assert prediction.robot[2].tolist() == [11, 13]
    assert prediction.model.tolist() == prediction.robot.tolist()


def test_what_is_there_is_used_where_something_is_missing(folder):
    change_statistics(state_std=None)(folder)
    policy = load(LoadOptions(str(folder), allow_missing_statistics=True))
    assert policy.describe().notes == ('no statistics for state: served without normalising them',)
    (prediction,) = policy.predict([rig.request((5, 6))])
    assert prediction.robot[0].tolist() == [0, 0.5]


def test_a_program_that_takes_raw_values_needs_no_statistics(folder):
    normalize(state='none', action='none')(folder)
    remove('statistics.safetensors')(folder)
    policy = load(LoadOptions(str(folder)))
    assert policy.describe().notes == ()
    assert policy.predict([rig.request((5, 6))])[0].robot[1].tolist() == [5, 6]


def test_the_fingerprint_follows_each_file(folder):
    seen = {load(LoadOptions(str(folder))).describe().fingerprint}
    for change in (
        normalize(state='min_max', action='none'),
        change_statistics(state_min=torch.zeros(2), state_max=torch.ones(2)),
        lambda folder: torch.export.save(rig.exported(Other()), folder / 'program.pt2'),
    ):
        change(folder)
        seen.add(
            load(LoadOptions(str(folder), allow_missing_statistics=True)).describe().fingerprint
        )
    assert len(seen) == 4


def test_what_the_operator_says(folder):
    names = tuple(rig.SIDECAR['state_names'])
    said = LoadOptions(str(folder), 'cpu', 'mine', names, names, 30.0)
    assert load(said).describe().fingerprint.startswith('mine@')
    with pytest.raises(PolicyError, match=r'^state_names is set to .* policy has '):
        load(LoadOptions(str(folder), state_names=names[::-1]))


def test_without_room_nothing_is_loaded(folder):
    with pytest.raises(PolicyError, match=r'needs \d+ MB of this .* MB are free'):
        load(LoadOptions(str(folder), memory_margin_bytes=1 << 50))


def test_it_computes_with_the_threads_that_were_said(folder):
    before = torch.get_num_threads()
    try:
        load(LoadOptions(str(folder), cpu_threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_loaded_policy_does_not_need_its_files(folder):
    policy = load(LoadOptions(str(folder)))
    for name in FILES:
        size = (folder / name).stat().st_size
        (folder / name).write_bytes(b'\0' * size)
    expected = rig.model_chunk((5, 6), (0, 0, 0))
    assert policy.predict([rig.request((5, 6))])[0].model == pytest.approx(expected)
