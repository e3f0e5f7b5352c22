"""What the installed SDK offers, by reflection, and which of it each case calls.

Both are written to DROWSE_CONFORMANCE_RESULTS, a file, as lines of JSON;
test/conformance/report makes the table of them.
"""

import contextlib
import contextvars
import enum
import functools
import importlib.metadata
import inspect
import json
import os
import typing

import e2b
import e2b_code_interpreter

PACKAGES = ("e2b", "e2b_code_interpreter")

# The methods that the case which runs has called, or None between cases.
_calls = None

# Set where an SDK method calls another one for itself.
_inside = contextvars.ContextVar("inside", default=False)


def offer():
    """Writes down the SDK's versions and methods."""
    _report(
        packages={name: importlib.metadata.version(name) for name in ("e2b", "e2b-code-interpreter")},
        methods=sorted({_label(cls, name) for cls in _classes() for name in _methods(cls)}),
    )


@contextlib.contextmanager
def record(area, name):
    """Writes down how a case went and what it called."""
    global _calls
    _calls, ok = set(), False
    try:
        yield
        ok = True
    finally:
        calls, _calls = _calls, None
        _report(area=area, case=name, ok=ok, calls=sorted(calls))


def watch():
    """Has every call of the SDK's methods noted down for the case that makes it."""
    for cls in _classes():
        for name, owner in _methods(cls).items():
            method = vars(owner)[name]
            if not isinstance(method, _Noting):
                setattr(owner, name, _Noting(method, name))


class _Noting:
    """A method, whatever its kind, that notes down its calls."""

    def __init__(self, method, name):
        self.method, self.name = method, name

    def __get__(self, instance, owner):
        bound = self.method.__get__(instance, owner)

        def call(*args, **kwargs):
            if _calls is None or _inside.get():
                return bound(*args, **kwargs)
            _calls.add(_label(owner, self.name))
            with _within():
                result = bound(*args, **kwargs)
            return _await(result) if inspect.iscoroutine(result) else result

        return call


async def _await(coroutine):
    with _within():
        return await coroutine


@contextlib.contextmanager
def _within():
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


@functools.cache
def _classes():
    """The classes that the packages export, and those of their properties."""
    found, new = set(), [v for module in (e2b, e2b_code_interpreter) for v in vars(module).values()]
    while new:
        cls = new.pop()
        if not _ours(cls) or cls in found:
            continue
        found.add(cls)
        for value in vars(cls).values():
            if isinstance(value, property):
                new.append(typing.get_type_hints(value.fget).get("return"))
    return found


def _ours(cls):
    return (
        inspect.isclass(cls)
        and cls.__module__.split(".")[0] in PACKAGES
        and not issubclass(cls, (BaseException, enum.Enum))
    )


@functools.cache
def _methods(cls):
    """The public methods of a class, each with the class that defines it."""
    return {
        name: owner
        for owner in reversed(cls.__mro__)
        if _ours(owner)
        for name in vars(owner)
        if not name.startswith("_") and callable(getattr(cls, name))
    }


@functools.cache
def _label(cls, name):
    """A method's name, in which the asynchronous classes have those of the others."""
    owner = _methods(cls).get(name, cls)
    plain = cls.__name__.removeprefix("Async").removesuffix("Base")
    if plain == "Sandbox" and owner.__module__.startswith("e2b_code_interpreter"):
        plain = "CodeInterpreter"
    prefix = "async " if "async" in f"{cls.__module__} {cls.__name__}".lower() else ""
    return f"{prefix}{plain}.{name}"


def _report(**line):
    path = os.environ.get("DROWSE_CONFORMANCE_RESULTS")
    if path:
        with open(path, "a") as out:
            print(json.dumps(line), file=out)
