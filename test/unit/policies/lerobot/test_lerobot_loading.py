# SPDX-License-Identifier: Apache-2.0
"""Loading LeRobot directories: what they are described as, and why they are refused."""

import contextlib
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import (  # noqa: E402
    change_json,
    change_tensors,
    copy_of,
    folder_of,
    KINDS,
    loaded,
    loading,
    NAMES,
    refused,
    requests_for,
    set_json,
)
from support.threads import in_thread  # noqa: E402

from lerobot_serve import requirements  # noqa: E402
from lerobot_serve.contract.schema import StateClass  # noqa: E402
from lerobot_serve.policies.base import PolicyCamera, PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import compat, loader, network  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from lerobot_serve.policies.lerobot.description import policy_fingerprint  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402
from lerobot_serve.policies.lerobot.policy_types import policy_type_spec  # noqa: E402
from lerobot_serve.policies.runtime.loading_beside import beside_served_policy  # noqa: E402

OWN = compat.lerobot()
CUDA = {'device': 'cuda'}
PRE_STATISTICS = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
POST_STATISTICS = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


@pytest.fixture
def copied(tmp_path):
    """A directory of an ACT policy that a test may damage."""
    return copy_of('act', tmp_path)


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
        PolicyCamera('observation.images.front', 48, 64),
        PolicyCamera('observation.images.wrist', 48, 64),
    )


def test_the_fingerprint_follows_every_file(copied):
    def fingerprint(**said):
        return policy_fingerprint(read_checkpoint(str(copied)), loading(copied, **said))

    first = load(loading(copied)).describe().fingerprint
    assert fingerprint() == first
    assert fingerprint(name='arm') == first.replace('act', 'arm')
    seen = {first}
    for change, file, how in (
        (change_tensors, POST_STATISTICS, lambda held: held['action.mean'].add_(1)),
        (change_tensors, 'model.safetensors', lambda held: next(iter(held.values())).add_(1)),
        (change_json, 'config.json', lambda held: held.update(dropout=0.2)),
        (change_json, 'policy_preprocessor.json', lambda held: held.update(name='other')),
    ):
        change(copied / file, how)
        seen.add(fingerprint())
    assert len(seen) == 5
    assert load(loading(copied)).describe().fingerprint == fingerprint()


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


UNKNOWN = {
    'field': (
        'config.json',
        lambda held: held.update(a_new_field=3),
        "config.json: 'a_new_field' is not a setting that an act policy may have",
        "config.json: 'a_new_field' is not a setting that an act policy may have",
    ),
    'type': (
        'config.json',
        lambda held: held.update(type='somebodys'),
        "of the type 'somebodys' is not supported.*supported are act, ",
        "of the type 'somebodys', which neither LeRobot",
    ),
    'step': (
        'policy_preprocessor.json',
        lambda held: held['steps'].append({'registry_name': 'somebodys_step'}),
        "the processor step 'somebodys_step' is refused",
        "'somebodys_step' is neither known nor of json",
    ),
}


@pytest.mark.parametrize(('file', 'change', 'text', 'trusting'), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_unknown_is_named(copied, file, change, text, trusting):
    change_json(copied / file, change)
    assert re.search(text, refused(copied))
    assert re.search(trusting, refused(copied, trusted_packages=('json',)))


def test_the_device_is_ours_not_the_files(copied, caplog):
    set_json(copied / 'config.json', device='cuda:1')
    for name, step in (('policy_preprocessor.json', 2), ('policy_postprocessor.json', 1)):
        change_json(copied / name, lambda held, at=step: held['steps'][at]['config'].update(CUDA))
    policy = load(loading(copied))
    assert policy.describe().device == policy.network.config.device == 'cpu'
    assert not caplog.records  # LeRobot would say that it takes another


def test_lerobot_does_not_choose_the_device(copied):
    folder, kind = loader.read_checkpoint(str(copied)), policy_type_spec('act')
    assert loader._load_config(folder, torch.device('cuda:3'), kind, '').device == 'cuda:3'


@pytest.mark.parametrize('device', ['cuda:63', 'tpu', ''])
def test_a_device_that_is_not_there_is_refused(copied, device):
    assert repr(device) in refused(copied, device=device)


def test_no_room_is_refused_before_the_weights_are_read(copied, monkeypatch):
    monkeypatch.setattr(loader, 'load_network', lambda *_: pytest.fail('read'))
    assert 'memory' in refused(copied, memory_margin_bytes=1 << 60)


def test_an_asset_of_the_hub_is_named(tmp_path):
    folder = copy_of('smolvla', tmp_path)
    set_json(folder / 'config.json', vlm_model_name='nobody/no-such-model')
    text = refused(folder)
    assert "needs 'nobody/no-such-model', which is not on this machine" in text
    assert 'hf download nobody/no-such-model' in text


def test_loading_is_quiet(capsys):
    for kind in KINDS:
        loaded(kind)
    assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize('python', [(3, 11), (3, 12)])
def test_lerobot_that_is_not_installed_is_said(copied, monkeypatch, python):
    pins = requirements.requirements_for(python)
    monkeypatch.setattr(requirements, 'REQUIREMENTS', pins)
    compat.lerobot.cache_clear()
    monkeypatch.setattr(compat, '_import_parts', lambda: __import__('lerobot_of_nowhere'))
    try:
        text = refused(copied)
    finally:
        compat.lerobot.cache_clear()
    assert 'this policy needs LeRobot' in text
    assert text.endswith(f'; install it: python3 -m pip install {pins["lerobot"]}')


@pytest.mark.parametrize('python', [(3, 11), (3, 12)])
def test_what_the_network_of_a_type_lacks_is_named_with_its_pin(copied, monkeypatch, python):
    pins = requirements.requirements_for(python)
    monkeypatch.setattr(requirements, 'REQUIREMENTS', pins)

    def refused_without(module: str) -> str:
        def get_policy_class(name: str) -> type:
            raise ModuleNotFoundError(f'No module named {module!r}', name=module)

        monkeypatch.setattr(
            loader, 'lerobot', lambda: replace(OWN, get_policy_class=get_policy_class)
        )
        return refused(copied)

    assert refused_without('transformers.models').endswith(
        f"(No module named 'transformers.models'); install it: "
        f'python3 -m pip install {pins["transformers"]}'
    )
    assert refused_without('num2words').endswith(
        f"install it: python3 -m pip install 'lerobot[act]=={OWN.version}'"
    )


def test_the_loader_does_not_import_lerobot():
    code = (
        'import sys; import lerobot_serve.policies.lerobot.loader; '
        'assert "lerobot" not in sys.modules and "torchvision" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


@pytest.mark.slow
def test_torchvision_is_imported_though_its_operators_do_not_load():
    # without the start file of a development environment, which declares them too
    code = (
        'import sys; sys.meta_path[:] = [each for each in sys.meta_path '
        "if type(each).__name__ != 'DeclareOperators']; "
        'from lerobot_serve.policies.lerobot import compat; compat.import_torchvision(); '
        'import torchvision.transforms.v2'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


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
    set_json(copied / 'config.json', temporal_ensemble_coeff=0.01, n_action_steps=1)
    assert any('temporal ensembling' in note for note in load(loading(copied)).describe().notes)


@pytest.mark.parametrize('mode', ['reduce-overhead', 'max-autotune'])
def test_cuda_graphs_of_another_thread_are_refused_in_a_swap(copied, mode, monkeypatch):
    folder, cuda = read_checkpoint(str(copied)), torch.device('cuda:0')
    compiled = SimpleNamespace(compile_model=True, compile_mode=mode)
    # at a start the thread that predicts loads
    loader.check_may_change_thread(folder, compiled, cuda)
    with beside_served_policy():
        with pytest.raises(PolicyError, match=f"'{mode}', which captures CUDA graphs"):
            loader.check_may_change_thread(folder, compiled, cuda)
        for config, device in (
            (SimpleNamespace(compile_model=False, compile_mode=mode), cuda),
            (SimpleNamespace(compile_model=True, compile_mode='default'), cuda),
            (SimpleNamespace(), cuda),
            (compiled, torch.device('cpu')),
        ):
            loader.check_may_change_thread(folder, config, device)
    # and a load asks
    asked = []
    monkeypatch.setattr(loader, 'check_may_change_thread', lambda *given: asked.append(given))
    load(loading(copied))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ('is_beside', 'is_compiled', 'count'), [(True, False, 1), (True, True, 3), (False, False, 3)]
)
def test_beside_a_served_policy_only_a_compiled_network_is_run_with_all_threads(
    monkeypatch, is_beside, is_compiled, count
):
    def noted(*given: object) -> object:
        counts.append(torch.get_num_threads())
        return run_first_prediction(*given)

    def work() -> object:
        with beside_served_policy() if is_beside else contextlib.nullcontext():
            return load(loading(folder_of('act'), cpu_threads=3))

    counts, run_first_prediction = [], loader.run_first_prediction
    monkeypatch.setattr(loader, 'run_first_prediction', noted)
    monkeypatch.setattr(loader, '_is_compiled', lambda config: is_compiled)
    before = torch.get_num_threads()
    try:
        # of its own, whose number of CPU threads ends with it
        in_thread(work)[0].join(60)
        assert counts == [count]
    finally:
        torch.set_num_threads(before)


def test_a_network_is_built_and_filled_with_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(network, 'give_way', lambda: pauses.append(None))
    load(loading(folder_of('act')))
    assert len(pauses) > 100
