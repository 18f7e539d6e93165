from pathlib import Path

from verl_gui.config_reference import reference


def test_the_page_is_what_the_code_says():
    page = Path(__file__).parents[1] / "docs/configuration.md"
    assert page.read_text() == reference(), "run: python -m verl_gui.config_reference > docs/configuration.md"


def test_every_node_is_there():
    text = reference()
    for key in (
        "## `gui.env`",
        "| `num_envs` |",
        "## `gui.rollout`",
        "| `history_images` |",
        "| `format_penalty` |",
    ):
        assert key in text
