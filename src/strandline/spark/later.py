"""pandas and NumPy only for who uses them: PySpark imports both, half a second of a processor and 60 MB, to know
whether they are there, and whether what it is given is one of their values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

_OF_NUMPY = {"NumpyScalarConverter": "generic", "NumpyArrayConverter": "ndarray"}


@contextmanager
def pandas_later() -> Iterator[None]:
    """Within it PySpark finds these instead: importing its client, where pandas takes more than half of the time, and
    making a map over Arrow, which asks for its version. Whoever imports pandas afterwards gets the real one."""
    stands = {name: _Later(name) for name in ("pandas", "pandas.api", "pandas.api.types")}
    with suppress(PackageNotFoundError):  # PySpark says so better
        vars(stands["pandas"])["__version__"] = version("pandas")
        names = ("is_datetime64_dtype", "is_timedelta64_dtype")
        vars(stands["pandas.api.types"]).update({name: partial(_asked, name) for name in names})
        if "pandas" not in sys.modules:
            sys.modules |= stands
    try:
        yield
    finally:
        for name, module in stands.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def numpy_only_where_it_is() -> None:
    """PySpark looks for NumPy's values in whatever is handed to Java, and to know whether there is a NumPy it imports
    its tools for tests, and with them pandas. Who has such a value has imported NumPy."""
    import_module("pyspark.sql")  # it adds them
    converters = import_module("py4j.protocol").INPUT_CONVERTER
    converters[:] = [
        _OfNumpy(each, _OF_NUMPY[type(each).__name__]) if type(each).__name__ in _OF_NUMPY else each
        for each in converters
    ]


class _Later(ModuleType):
    """Stands for a module of pandas until something of it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "DataFrame" and sys.modules.get("pandas") is self:
            return Any  # in the notation of types, read with the client
        for there in [key for key, module in sys.modules.items() if isinstance(module, _Later)]:
            del sys.modules[there]
        return getattr(import_module(self.__name__), name)


def _asked(name: str, about: object) -> bool:
    return bool(getattr(import_module("pandas.api.types"), name)(about))


class _OfNumpy:
    def __init__(self, converter: Any, kind: str) -> None:
        self._converter = converter
        self._kind = kind

    def can_convert(self, value: object) -> bool:
        kind = getattr(sys.modules.get("numpy"), self._kind, ())
        return isinstance(value, kind) and bool(self._converter.can_convert(value))

    def convert(self, value: object, client: object) -> object:
        return self._converter.convert(value, client)
