"""What is compiled for every chip: one module a file of kernels, each with its `SPECS`."""

from importlib import import_module
from pkgutil import iter_modules

from tests.kernels.gpu.proofs.compile_spec import CompileSpec


def all_specs() -> list[CompileSpec]:
    """Return the specs of all kernels."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return [spec for module in modules for spec in module.SPECS]
