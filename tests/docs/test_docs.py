"""The documentation builds strictly, and what it names exists."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
)
PAGES += sorted((REPOSITORY / "recipes").glob("*/README.md"))
NAMED = re.compile(r"`((?:recipes|examples|benchmarks|verl_gui|docs|tests|patches)/[\w./-]*\w)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_builds_without_a_warning(tmp_path):
    config = load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    build(config)
    built = (tmp_path / "site/quickstart/index.html").read_text()
    assert "make train" in built


def test_a_broken_link_is_an_error(tmp_path):
    from mkdocs.exceptions import Abort

    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[gone](nowhere.md)\n")
    config = load_config(
        str(REPOSITORY / "mkdocs.yml"),
        docs_dir=str(docs),
        site_dir=str(tmp_path / "site"),
        nav=None,
        strict=True,
    )
    with pytest.raises(Abort):
        build(config)


def exists(name):
    """Whether it is a file or a folder, or the beginning of the name of one (`patches/verl/0007`)."""
    path = REPOSITORY / name
    return path.exists() or any(path.parent.glob(f"{path.name}-*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    missing = [name for name in NAMED.findall(text) if not exists(name)]
    outside = [link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]
    missing += [link for link in outside if not (page.parent / link).exists()]
    assert missing == []


def test_the_map_from_arpo_names_what_exists():
    """Modules and functions of ours in the map can be found."""
    text = (REPOSITORY / "docs/from-arpo.md").read_text()
    for name in set(re.findall(r"`verl_gui\.([\w.]+)`", text)):
        parts = name.split(".")
        path = REPOSITORY / "verl_gui" / "/".join(parts)
        package = REPOSITORY / "verl_gui" / "/".join(parts[:-1])
        owner = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
        is_module = path.is_dir() or path.with_suffix(".py").is_file()
        assert is_module or re.search(rf"\b{parts[-1]}\b", owner.read_text()), name
