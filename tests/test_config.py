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
