"""Which implementation is taken, and what is said when one cannot be."""

import logging
from collections.abc import Callable

import pytest
import torch

from k3ablate.config import InputError
from k3ablate.kernels import dispatch

CPU_FLOAT = torch.zeros(1)
CPU_DOUBLE = torch.zeros(1, dtype=torch.float64)


def missing_library() -> Callable[[], str]:
    raise ImportError("no such library")


def operation(name: str = "sum") -> dispatch.Operation[Callable[[], str]]:
    """A library that is missing, a kernel for float32, and the plain form."""
    return dispatch.Operation(
        name,
        (
            dispatch.Implementation("library", dispatch.on_cpu_in_float32, missing_library),
            dispatch.Implementation("numba", dispatch.on_cpu_in_float32, lambda: lambda: "numba ran"),
            dispatch.Implementation("torch", dispatch.anywhere, lambda: lambda: "torch ran"),
        ),
    )


@pytest.fixture(autouse=True)
def _unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    dispatch.forget_used()


def test_takes_the_first_that_suits_and_loads():
    assert dispatch.choose(operation(), CPU_FLOAT)() == "numba ran"
    assert dispatch.used() == {"sum": "numba"}


def test_fall_back_is_logged_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert dispatch.choose(operation("logged"), CPU_DOUBLE)() == "torch ran"
    assert [record.getMessage() for record in caplog.records] == [
        "logged: no faster kernel for float64 on cpu, torch runs"
    ]


def test_used_is_forgotten():
    dispatch.choose(operation(), CPU_FLOAT)
    dispatch.forget_used()
    assert dispatch.used() == {}


@pytest.mark.parametrize(
    ("forced", "expected"),
    [
        ("torch", "torch ran"),
        ("auto", "numba ran"),
        ("", "numba ran"),
        ("sum=torch,other=numba", "torch ran"),
        ("other=torch", "numba ran"),
        ("torch, sum = numba", "numba ran"),
    ],
)
def test_variable_forces(monkeypatch: pytest.MonkeyPatch, forced: str, expected: str):
    monkeypatch.setenv(dispatch.VARIABLE, forced)
    assert dispatch.choose(operation(), CPU_FLOAT)() == expected


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        ("cuda", "sum=cuda: no such kernel; write auto or one of library, numba, torch"),
        ("sum=numba", "sum=numba: does not take float64 on cpu; write sum=auto"),
        ("=torch", "found '=torch' in '=torch'; write NAME or OPERATION=NAME"),
        ("sum=", "found 'sum=' in 'sum='; write NAME or OPERATION=NAME"),
    ],
)
def test_bad_variable_is_explained(monkeypatch: pytest.MonkeyPatch, forced: str, message: str):
    monkeypatch.setenv(dispatch.VARIABLE, forced)
    with pytest.raises(InputError, match=message):
        dispatch.choose(operation(), CPU_DOUBLE)


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        ("foo", "sum=foo: no such kernel; write auto or one of library, numba, torch"),
        ("torch,product=foo", "product=foo: no such kernel; write auto or one of library, numba, torch"),
        ("foo=numba", "foo: no such operation; write one of sum, product"),
        ("sum=", "found 'sum=' in 'sum='"),
    ],
)
def test_every_forced_choice_is_checked_before_it_is_needed(monkeypatch: pytest.MonkeyPatch, forced: str, message: str):
    monkeypatch.setenv(dispatch.VARIABLE, forced)
    with pytest.raises(InputError, match=message):
        dispatch.check_forced([operation("sum"), operation("product")])


@pytest.mark.parametrize("forced", ["", "auto", "torch", "numba,product=library", "sum=torch,product=auto"])
def test_choices_that_exist_pass_the_check(monkeypatch: pytest.MonkeyPatch, forced: str):
    monkeypatch.setenv(dispatch.VARIABLE, forced)
    dispatch.check_forced([operation("sum"), operation("product")])
    assert dispatch.used() == {}


def test_forced_library_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(dispatch.VARIABLE, "library")
    with pytest.raises(InputError, match="sum=library: does not load here \\(no such library\\); write sum=auto"):
        dispatch.choose(operation(), CPU_FLOAT)
