import pytest
from omegaconf import OmegaConf

from verl_gui.config import ConfigError, GuiConfig

GOOD = {"gui": {"env": {"backend": "miniwob", "num_envs": 2, "options": {"screen": [168, 224]}}}}


def test_defaults_are_arpo_settings():
    config = GuiConfig.from_config(GOOD)
    assert (config.rollout.max_steps, config.rollout.history_images) == (15, 15)
    assert config.reward.format_penalty == -0.5
    assert config.env.options == {"screen": [168, 224]}


def test_omegaconf_is_read_and_resolved():
    tree = OmegaConf.create({**GOOD, "size": 7, "other": 1})
    tree.gui.rollout = {"max_steps": "${size}"}
    assert GuiConfig.from_config(tree).rollout.max_steps == 7


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (None, "no `gui:` node"),
        ({}, "env"),
        ({"env": {"backend": "miniwob"}, "rolout": {}}, r"gui\.rolout: no such key"),
        ({"env": {"backend": "miniwob", "num_env": 3}}, r"gui\.env\.num_env: no such key"),
        (
            {"env": {"backend": "miniwob"}, "rollout": {"max_steps": "many"}},
            r"gui\.rollout\.max_steps='many'",
        ),
        ({"env": {"backend": "miniwob"}, "rollout": {"max_steps": True}}, r"gui\.rollout\.max_steps=True"),
        ({"env": {"backend": "miniwob"}, "rollout": {"max_steps": 0}}, "at least 1"),
        ({"env": {"backend": "miniwob"}, "rollout": {"min_pixels": 9, "max_pixels": 4}}, "above max_pixels"),
        ({"env": {"backend": "miniwob"}, "reward": {"format_penalty": 0.5}}, "0 or less"),
        ({"env": {"backend": "miniwob"}, "reward": {"format_aggregation": "twice"}}, "expected one of"),
    ],
)
def test_bad_configuration_names_the_key(node, message):
    with pytest.raises(ConfigError, match=message):
        GuiConfig.from_config({"gui": node})


def replaying(sampler="SuccessReplaySampler", rollout_is="token", **replay):
    return {
        "gui": {**GOOD["gui"], "replay": {"enable": True, **replay}},
        "trainer": {"v1": {"sampler": {"custom_sampler": {"name": sampler}}}},
        "algorithm": {"rollout_correction": {"rollout_is": rollout_is}},
    }


def test_replay_and_verls_own_keys_agree():
    for tree in (
        replaying(),
        replaying("SuccessReplaySamplerAsync", "sequence"),
        replaying("MySampler", None, old_log_probs="recompute"),
        replaying("GuiSampler", None, enable=False),
    ):
        GuiConfig.from_config(tree)
        GuiConfig.from_config(OmegaConf.create(tree))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (replaying("GuiSampler"), "name=GuiSampler replays nothing"),
        (replaying(None), "name=None replays nothing"),
        (replaying(rollout_is=None), r"old_log_probs=stored.*rollout_is=None.*rollout_is=token"),
        (replaying(old_log_probs="recompute"), r"old_log_probs=recompute.*rollout_is=token.*rollout_is=null"),
    ],
)
def test_a_replay_that_would_do_something_else_is_refused(tree, message):
    for config in (tree, OmegaConf.create(tree)):
        with pytest.raises(ConfigError, match=message):
            GuiConfig.from_config(config)
