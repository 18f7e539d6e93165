"""verl registers its FSDP engines for cuda and npu only; they run on cpu as they are."""

from types import ModuleType

from verl_gui.compat._guard import VERL, Bridge, verl_runs_on_cpu


def _register_for_cpu(fsdp: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    for model_type, engine in (
        ("language_model", fsdp.FSDPEngineWithLMHead),
        ("value_model", fsdp.FSDPEngineWithValueHead),
    ):
        EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device="cpu")(engine)


BRIDGE = Bridge(
    name="fsdp-engine-on-cpu",
    module="verl.workers.engine.fsdp.transformer_impl",
    requires={"verl": VERL},
    twin="patches/verl/0002-fsdp-register-the-engines-for-cpu.patch",
    apply=_register_for_cpu,
    wanted=verl_runs_on_cpu,
)
