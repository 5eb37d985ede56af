"""Arguments of NumPy's functions: taken with NumPy's value, however they are given, or refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.numpy_arguments import MORE, REFUSED_VALUES, arguments_of
from support.numpy_examples import X, rows

import chunkflow as cf
from chunkflow.api.lazy import numpy_dispatch, numpy_signature
from chunkflow.errors import ChunkflowError


@pytest.mark.parametrize("fn", rows(numpy_dispatch.FUNCTIONS, 2), ids=numpy_dispatch.name_of)
def test_each_argument_is_taken_or_refused(fn: Any) -> None:
    found = arguments_of(fn)
    assert not found.problems
    signature = numpy_signature._signature(fn)
    if signature is not None:
        variable = {name for name, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD}
        assert {*found.taken, *found.refused} == {*signature.parameters, *MORE.get(fn, {})} - variable


@pytest.mark.filterwarnings("ignore:The number of bins estimated")  # by NumPy, of a rule
@pytest.mark.parametrize("call", [call for _, _, call in REFUSED_VALUES], ids=[name for name, _, _ in REFUSED_VALUES])
def test_values_that_the_docs_call_refused_are_refused(call: Callable[..., Any]) -> None:
    with np.errstate(all="ignore"):
        call(X)
    with pytest.raises(ChunkflowError):
        call(cf.open(X))
