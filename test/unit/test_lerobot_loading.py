"""Loading LeRobot directories: what they are described as, and why they are refused."""

from dataclasses import replace
import json
from pathlib import Path
import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from lerobot_rig import (  # noqa: E402
    folder_of,
    KINDS,
    LEROBOT,
    loaded,
    loading,
    NAMES,
    requests_for,
)
from safetensors.torch import load_file, save_file  # noqa: E402

from lerobot_serve.policies.base import Camera, PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import compat, loader, network  # noqa: E402
from lerobot_serve.policies.lerobot.kinds import kind_of  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402
from lerobot_serve.wire.schema import StateClass  # noqa: E402

PRE_STATISTICS = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
POST_STATISTICS = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


@pytest.fixture
def copied(tmp_path):
    """A directory of an ACT policy that a test may damage."""
    return Path(shutil.copytree(folder_of('act'), tmp_path / 'act'))


def change_json(file, change):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def change_tensors(file, change):
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def refused(folder, **said):
    with pytest.raises(PolicyError) as refusal:
        load(loading(folder, **said))
    text = str(refusal.value)
    assert '\n' not in text
    return text


@pytest.mark.parametrize(
    ('kind', 'state_class', 'chunk_size', 'steps'),
    [
        ('act', StateClass.CHUNK_STATELESS, 16, 1),
        ('diffusion', StateClass.NEEDS_HISTORY, 4, 2),
        ('vqbet', StateClass.NEEDS_HISTORY, 4, 3),
        ('tdmpc', StateClass.RECURRENT, 5, 1),
        ('smolvla', StateClass.CHUNK_STATELESS, 16, 1),
    ],
)
def test_a_policy_describes_itself(kind, state_class, chunk_size, steps):
    described = loaded(kind).describe()
    assert described.policy_type == kind
    assert described.fingerprint.startswith(f'{kind}@')
    assert described.state_names == described.action_names == NAMES
    assert described.state_class is state_class
    assert described.chunk_size == chunk_size
    assert (described.observation_steps, described.observation_stride_steps) == (steps, 1)
    assert described.supports_rtc == (kind == 'smolvla')
    assert described.trained_fps == 30.0
    assert described.device == 'cpu'


def test_its_cameras_are_the_features():
    assert loaded('act').describe().cameras == (
        Camera('observation.images.front', 48, 64),
        Camera('observation.images.wrist', 48, 64),
    )


def test_the_fingerprint_follows_every_file(copied):
    first = load(loading(copied)).describe().fingerprint
    assert load(loading(copied)).describe().fingerprint == first
    assert load(loading(copied, name='arm')).describe().fingerprint == first.replace('act', 'arm')
    seen = {first}
    change_tensors(copied / POST_STATISTICS, lambda held: held['action.mean'].add_(1))
    seen.add(load(loading(copied)).describe().fingerprint)
    change_tensors(copied / 'model.safetensors', lambda held: next(iter(held.values())).add_(1))
    seen.add(load(loading(copied)).describe().fingerprint)
    change_json(copied / 'config.json', lambda held: held.update(dropout=0.2))
    seen.add(load(loading(copied)).describe().fingerprint)
    change_json(copied / 'policy_preprocessor.json', lambda held: held.update(name='other'))
    seen.add(load(loading(copied)).describe().fingerprint)
    assert len(seen) == 5


def test_a_loaded_policy_does_not_need_its_files(copied):
    policy = load(loading(copied))
    request = requests_for(policy, 1)[0]
    expected = policy.predict([request])[0].robot
    for name in ('model.safetensors', PRE_STATISTICS, POST_STATISTICS):
        # in place: with a file that is only mapped it would show
        with open(copied / name, 'r+b') as file:
            file.write(b'\xff' * (copied / name).stat().st_size)
    policy.reset(request.session_id)
    np.testing.assert_array_equal(policy.predict([request])[0].robot, expected)


def rename(held):
    held['model.renamed'] = held.pop('model.action_head.bias')


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (rename, 'model.action_head.bias'),
        (rename, 'model.renamed'),
        (lambda held: held.update(extra=torch.zeros(2)), 'extra'),
        (lambda held: held.pop('model.action_head.bias'), 'model.action_head.bias'),
        (
            lambda held: held.update({'model.action_head.bias': torch.zeros(7)}),
            'size mismatch for model.action_head.bias',
        ),
        (
            lambda held: held.update({'normalize_inputs.mean': torch.zeros(2)}),
            'migrate_policy_normalization.py',
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(copied, change, said):
    change_tensors(copied / 'model.safetensors', change)
    text = refused(copied)
    assert 'model.safetensors does not fit the act policy' in text
    assert said in text


@pytest.mark.parametrize('content', [b'', b'version https://git-lfs.github.com', b'\xff' * 64])
def test_a_damaged_file_of_weights_is_refused(copied, content):
    (copied / 'model.safetensors').write_bytes(content)
    assert 'is not a readable safetensors file' in refused(copied)


def test_weights_that_are_not_finite_are_refused(copied):
    def spoil(held):
        held['model.action_head.bias'][0] = float('nan')

    change_tensors(copied / 'model.safetensors', spoil)
    assert 'has values that are not finite' in refused(copied)


class Careless(torch.nn.Module):
    """A network whose own loader may have gone on without the file."""

    def __init__(self):
        super().__init__()
        self.config = None
        self.model = torch.nn.ModuleDict(
            {'one': torch.nn.Linear(2, 2), 'tied': torch.nn.Linear(2, 2, bias=False)}
        )
        self.model['tied'].weight = self.model['one'].weight


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda held: None, None),
        (lambda held: held.update(nothing=torch.zeros(1)), 'unknown are model.nothing'),
        (lambda held: held.pop('one.bias'), 'missing are model.one.bias'),
        (lambda held: held['one.bias'].add_(1), 'not loaded are model.one.bias'),
        (lambda held: held.update({'one.bias': torch.zeros(3)}), 'not loaded are model.one.bias'),
    ],
)
def test_a_loader_that_goes_on_without_the_file_is_found_out(copied, change, said):
    careless = Careless()
    # as another project writes it: without the prefix, and a tied weight only once
    held = {
        name.removeprefix('model.'): tensor.clone()
        for name, tensor in careless.state_dict().items()
        if 'tied' not in name
    }
    change(held)
    save_file(held, copied / 'model.safetensors')
    folder = loader.read_folder(str(copied))
    if said is None:
        network.check_weights(folder, careless)
        return
    with pytest.raises(PolicyError, match=said):
        network.check_weights(folder, careless)


def test_every_loader_that_is_not_lerobots_common_one_is_checked(copied):
    class Careless(LEROBOT.get_policy_class('act')):
        config_class, name = LEROBOT.get_policy_class('act').config_class, 'careless'

        @classmethod
        def from_pretrained(cls, path, *, config, strict):
            return cls(config)

    config = LEROBOT.config_class.from_pretrained(str(copied))
    folder = loader.read_folder(str(copied))
    with pytest.raises(PolicyError, match='not loaded are model'):
        network.load_network(folder, Careless, config)


def test_an_unknown_field_is_named(copied):
    change_json(copied / 'config.json', lambda held: held.update(a_new_field=3))
    text = refused(copied)
    assert 'config.json cannot be read by LeRobot' in text
    assert 'a_new_field' in text


def test_an_unknown_type_is_named(copied):
    change_json(copied / 'config.json', lambda held: held.update(type='somebodys'))
    text = refused(copied)
    assert "of the type 'somebodys', which LeRobot" in text
    assert 'served are act, ' in text


def test_an_unknown_step_is_named(copied):
    change_json(
        copied / 'policy_preprocessor.json',
        lambda held: held['steps'].append({'registry_name': 'somebodys_step'}),
    )
    text = refused(copied)
    assert 'the processors failed with ImportError' in text
    assert 'somebodys_step' in text


def test_the_device_is_ours_not_the_files(copied, caplog):
    change_json(copied / 'config.json', lambda held: held.update(device='cuda:1'))
    change_json(
        copied / 'policy_preprocessor.json',
        lambda held: held['steps'][2]['config'].update(device='cuda'),
    )
    change_json(
        copied / 'policy_postprocessor.json',
        lambda held: held['steps'][1]['config'].update(device='cuda'),
    )
    policy = load(loading(copied))
    assert policy.describe().device == policy.network.config.device == 'cpu'
    assert not caplog.records  # LeRobot would say that it takes another


def test_lerobot_does_not_choose_the_device(copied):
    folder, kind = loader.read_folder(str(copied)), kind_of('act')
    assert loader._config(folder, torch.device('cuda:3'), kind).device == 'cuda:3'


@pytest.mark.parametrize('device', ['cuda:63', 'tpu', ''])
def test_a_device_that_is_not_there_is_refused(copied, device):
    assert repr(device) in refused(copied, device=device)


def test_no_room_is_refused_before_the_weights_are_read(copied, monkeypatch):
    monkeypatch.setattr(loader, 'load_network', lambda *_: pytest.fail('read'))
    text = refused(copied, memory_margin_bytes=1 << 60)
    assert 'memory' in text


def test_an_asset_of_the_hub_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    monkeypatch.setattr('transformers.utils.hub._is_offline_mode', True)
    folder = Path(shutil.copytree(folder_of('smolvla'), tmp_path / 'smolvla'))
    change_json(
        folder / 'config.json', lambda held: held.update(vlm_model_name='nobody/no-such-model')
    )
    text = refused(folder)
    assert 'needs nobody/no-such-model' in text
    assert 'hf download nobody/no-such-model' in text


def test_loading_is_quiet(capsys):
    for kind in KINDS:
        loaded(kind)
    assert capsys.readouterr() == ('', '')


def test_lerobot_that_is_not_installed_is_said(copied, monkeypatch):
    compat.lerobot.cache_clear()
    monkeypatch.setattr(compat, '_imported', lambda: __import__('lerobot_of_nowhere'))
    try:
        text = refused(copied)
    finally:
        compat.lerobot.cache_clear()
    assert 'this policy needs LeRobot' in text
    assert 'python3 -m pip install lerobot' in text


def test_the_loader_does_not_import_lerobot():
    code = (
        'import sys; import lerobot_serve.policies.lerobot.loader; '
        'assert "lerobot" not in sys.modules and "torchvision" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


def test_a_fresh_process_finds_the_steps_of_a_policy_type():
    said = loading(folder_of('smolvla'))
    code = (
        'from lerobot_serve.policies.base import Loading\n'
        'from lerobot_serve.policies.lerobot.loader import load\n'
        f'print(load({said!r}).describe().fingerprint)'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout.strip() == loaded('smolvla').describe().fingerprint


def test_the_steps_of_a_type_are_registered_though_lerobot_does_not_import_them():
    from lerobot.policies.wall_x.configuration_wall_x import WallXConfig
    from lerobot.processor import ProcessorStepRegistry

    compat.import_steps(WallXConfig)
    assert 'wall_x_task_processor' in ProcessorStepRegistry.list()


def test_guidance_that_does_not_work_is_found_when_loading(monkeypatch):
    monkeypatch.setattr(
        'lerobot.policies.rtc.modeling_rtc.RTCProcessor.get_prefix_weights', lambda *_: 1 / 0
    )
    assert 'a first prediction failed with ZeroDivisionError' in refused(folder_of('smolvla'))


def test_notes_say_what_is_not_applied(copied):
    change_json(
        copied / 'config.json',
        lambda held: held.update(temporal_ensemble_coeff=0.01, n_action_steps=1),
    )
    assert any('temporal ensembling' in note for note in load(loading(copied)).describe().notes)


def test_frames_of_another_size_are_scaled_for_those_that_need_it():
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    tall = {name: (np.full((96, 128, 3), 90, np.uint8),) for name in request.images}
    small = {name: (np.full((48, 64, 3), 90, np.uint8),) for name in request.images}
    scaled, exact = (
        policy.predict([replace(request, images=images)])[0] for images in (tall, small)
    )
    np.testing.assert_array_equal(scaled.model, exact.model)


@pytest.fixture
def every_warning():
    """Make torch warn each time, not once a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.filterwarnings('error')
@pytest.mark.usefixtures('every_warning')
def test_frames_that_may_not_be_written_to_are_taken():
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    expected = policy.predict([request])[0].model
    for frames in request.images.values():
        frames[0].flags.writeable = False
    np.testing.assert_array_equal(policy.predict([request])[0].model, expected)


def wrong_state(request):
    return {'state': request.state[:, :3]}


def wrong_history(request):
    return {'state': np.repeat(request.state, 2, axis=0)}


def no_camera(request):
    return {'images': {}}


def grey_camera(request):
    return {'images': {name: (np.zeros((48, 64, 1), np.uint8),) for name in request.images}}


def float_camera(request):
    return {'images': {name: (np.zeros((48, 64, 3), np.float32),) for name in request.images}}


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (wrong_state, r'the state must be 1 x 6 \(steps x values\), got \(1, 3\)'),
        (wrong_history, r'the state must be 1 x 6 \(steps x values\), got \(2, 6\)'),
        (no_camera, 'must come with 1 frames, got 0'),
        (grey_camera, r'must give height x width x 3 of uint8, got \(48, 64, 1\) of uint8'),
        (float_camera, 'must give height x width x 3 of uint8, got .* of float32'),
    ],
)
def test_a_wrong_request_is_refused(wrong, said):
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    with pytest.raises(PolicyError, match=said):
        policy.predict([replace(request, **wrong(request))])
