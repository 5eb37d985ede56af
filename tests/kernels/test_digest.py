"""What a computation depends on changes its digest, and nothing else does: also in another process."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

from chunkflow.errors import ArgumentError
from chunkflow.kernels.digest import changed, digest, outline


def programs(text: str) -> dict[str, str]:
    """The modules of a text, by the comments above them."""
    parts = re.split(r"^# (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# Modules whose function `fn` gives other values once each 2 in them is a 3.
USES = programs("""\
# a constant
def fn(b):
    return b * 2
# a default
def fn(b, k=2):
    return b * k
# a keyword's default
def fn(b, *, k=2):
    return b * k
# a global
K = 2
def fn(b):
    return b * K
# a helper
def g(b):
    return b * 2
def fn(b):
    return g(b)
# an inner function's global
K = 2
def fn(b):
    return [b * K for _ in range(3)]
# a closure
def made(k):
    def fn(b):
        return b * k
    return fn
fn = made(2)
# its own attribute
def fn(b):
    return b * fn.gain
fn.gain = 2
# a partial
from functools import partial
def g(b, k):
    return b * k
fn = partial(g, k=2)
# a cached helper
from functools import cache
@cache
def g():
    return 2
def fn(b):
    return b * g()
# a vectorized helper
import numpy as np
@np.vectorize
def fn(b):
    return b * 2
# a class's attribute
class C:
    gain = 2
def fn(b):
    return b * C.gain
# a base's attribute
class B:
    gain = 2
class C(B):
    pass
def fn(b):
    return b * C.gain
# a nested class
class C:
    class D:
        gain = 2
def fn(b):
    return b * C.D.gain
# a metaclass
class M(type):
    gain = 2
class C(metaclass=M):
    pass
def fn(b):
    return b * C.gain
# a static method
class C:
    @staticmethod
    def g(b):
        return b * 2
def fn(b):
    return C.g(b)
# a class method
class C:
    @classmethod
    def g(cls, b):
        return b * 2
fn = C.g
# a property
class C:
    @property
    def k(self):
        return 2
c = C()
def fn(b):
    return b * c.k
# a cached property
from functools import cached_property
class C:
    @cached_property
    def k(self):
        return 2
c = C()
def fn(b):
    return b * c.k
# a class as default
class C:
    k = 2
def fn(b, c=C):
    return b * c.k
# a bound method's class
class C:
    k = 2
    def g(self, b):
        return b * self.k
fn = C().g
# a callable object
class C:
    k = 2
    def __call__(self, b):
        return b * self.k
fn = C()
# an object's slot
class C:
    __slots__ = ('k',)
    def __init__(self):
        self.k = 2
    def __call__(self, b):
        return b * self.k
fn = C()
# a method of a dict
class C(dict):
    def k(self):
        return 2
c = C()
def fn(b):
    return b * c.k()
# a float with a method
class C(float):
    def k(self):
        return 2
c = C(1)
def fn(b):
    return b * c.k()
# a named tuple
from collections import namedtuple
c = namedtuple('C', 'k')(2)
def fn(b):
    return b * c.k
# a counter
from collections import Counter
c = Counter(a=2)
def fn(b):
    return b * c['a']
# a dataclass
from dataclasses import dataclass
@dataclass
class C:
    k: int = 2
    def __call__(self, b):
        return b * self.k
fn = C()
# a member of an enum
from enum import Enum
class E(Enum):
    A = 2
def fn(b):
    return b * E.A.value
# an enum's method
from enum import Enum
class E(Enum):
    A = 1
    def k(self):
        return 2
e = E.A
def fn(b):
    return b * e.k()
# a bound method of a list
fn = [1, 2].count
# an array
import numpy as np
k = np.full(3, 2)
def fn(b):
    return b * k
# a mask
import numpy as np
k = np.ma.masked_equal([1, 2, 3], 2)
def fn(b):
    return b * k
# an array of objects
import numpy as np
k = np.array([2], object)
def fn(b):
    return b * k
# a random generator
import numpy as np
rng = np.random.default_rng(2)
def fn(b):
    return b * rng.random()
# a pattern
import re
p = re.compile('2')
def fn(b):
    return p.match(str(b))
# a date
from datetime import date
d = date(2, 1, 1)
def fn(b):
    return b * d.year
# a property of an enum
from enum import Enum
class E(Enum):
    A = 1
    @property
    def k(self):
        return 2
def fn(b):
    return b * E.A.k
# a class method of an enum
from enum import Enum
class E(Enum):
    A = 1
    @classmethod
    def k(cls):
        return 2
def fn(b):
    return b * E.k()
# what a dataclass makes after its fields
from dataclasses import dataclass
@dataclass
class C:
    n: int = 1
    def __post_init__(self):
        self.table = [self.n, 2]
c = C()
def fn(b):
    return b * c.table[1]
# a subclass of a dataclass
from dataclasses import dataclass
@dataclass
class C:
    n: int = 1
class D(C):
    pass
c = D()
c.k = 2
def fn(b):
    return b * c.k
# a function with a library's name
from functools import wraps
from statistics import mean
K = 2
@wraps(mean)
def fn(b):
    return b * K
# a dispatched helper
from functools import singledispatch
@singledispatch
def g(b):
    return b
@g.register
def _(b: int):
    return b * 2
def fn(b):
    return g(1) * b
# an errstate as decorator
import numpy as np
@np.errstate(all="ignore")
def fn(b):
    return b * 2
# a polynomial
import numpy as np
p = np.poly1d([2, 1])
def fn(b):
    return p(b)
# a constant that is labelled
import numpy as np, xarray as xr
x = xr.DataArray(np.ones(3), dims="x", coords={"x": [1, 2, 4]})
def fn(b):
    return b * x.sel(x=1).item()
# a frozen distribution
from scipy import stats
d = stats.norm(0, 2)
def fn(b):
    return d.pdf(b)
# a module's attribute function
def __getattr__(name):
    return 2
import sys
me = sys.modules[__name__]
def fn(b):
    return b * me.K
# fields of a structure
import numpy as np
t = np.ones(3, [("a2", "f4"), ("b3", "f4")])
def fn(b):
    return b * t["a2"]
""")

# Modules whose function `fn` gives other values once a module that it uses is another one.
MODULES = programs("""\
# an attribute
import helper
def fn(b):
    return b * helper.K
# a function
import helper
def fn(b):
    return helper.f(b)
# an attribute of its class
import helper
def fn(b):
    return b * helper.C.k
# under another name
import helper as h
def fn(b):
    return b * h.K
# from it
from helper import f
def fn(b):
    return f(b)
# a module in it
import wrapping
def fn(b):
    return b * wrapping.helper.K
# by a word
import helper
def fn(b):
    return b * getattr(helper, 'K')
# passed on
import helper
def k(of):
    return of.K
def fn(b):
    return b * k(helper)
# in an object
import helper
from types import SimpleNamespace
s = SimpleNamespace(h=helper)
def fn(b):
    return b * s.h.K
# imported when it runs
def fn(b):
    import helper
    return b * helper.K
# a part imported when it runs
def fn(b):
    from helper import f as g
    return g(b)
""")

HELPER = "K = 2\nunused = 5\ndef f(b):\n    return b * K\nclass C:\n    k = 2\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that a program can import. They are forgotten after."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "wrapping.py").write_text("import helper\n")
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("program", "helper", "wrapping"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def digest_of(folder: Path, program: str, helper: str = HELPER) -> str:
    """The digest of the function of a program in the present process, as if it were a new one."""
    (folder / "program.py").write_text(program)
    (folder / "helper.py").write_text(helper)
    forget()
    return digest(importlib.import_module("program").fn)


@pytest.mark.parametrize("what", USES)
def test_what_a_function_uses_counts(what: str, modules: Path) -> None:
    was = digest_of(modules, USES[what])
    assert digest_of(modules, USES[what]) == was
    assert digest_of(modules, USES[what].replace("2", "3")) != was


# Pairs of modules whose functions `fn` differ, in order: the first and the second, the third and the fourth ...
PAIRS = programs("""\
# low and high
def fn(b, lo, hi):
    return b * lo + hi
# high and low
def fn(b, hi, lo):
    return b * hi + lo
# first a
STEPS = {"a": 1, "b": 2}
def fn(b):
    return list(STEPS)
# first b
STEPS = {"b": 2, "a": 1}
def fn(b):
    return list(STEPS)
# with a handler
def fn(b):
    try:
        b()
    except ValueError:
        return 1
# with another
def fn(b):
    try:
        b()
    except KeyError:
        return 1
""")


@pytest.mark.parametrize("first", range(0, len(PAIRS), 2))
def test_order_and_names_count(first: int, modules: Path) -> None:
    one, other = list(PAIRS.values())[first : first + 2]
    assert digest_of(modules, one) != digest_of(modules, other)


ENVIRONMENT = {
    "by a word": "import os\ndef fn(b):\n    return b * float(os.environ.get('GAIN', 1))",
    "by a global": "import os\nNAME = 'GAIN'\ndef fn(b):\n    return b * float(os.environ[NAME])",
    "by a default": "import os\ndef fn(b, name='GAIN'):\n    return b * float(os.getenv(name))",
    "by one of several": "import os\ndef fn(b):\n    return b * sum(float(os.environ[n]) for n in ('GAIN',))",
    "by another name of the environment": "from os import environ as e\ndef fn(b):\n    return b * float(e['GAIN'])",
    "by another name of the function": "from os import getenv as e\ndef fn(b):\n    return b * float(e('GAIN'))",
    "in bytes": "import os\ndef fn(b):\n    return b * float(os.environb[b'GAIN'])",
    "whether it is there": "import os\ndef fn(b):\n    return b + 1 if 'GAIN' in os.environ else f'{b}'",
}


@pytest.mark.parametrize("program", ENVIRONMENT.values(), ids=list(ENVIRONMENT))
def test_variables_of_the_environment_count(program: str, modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAIN", "2")
    was = digest_of(modules, program)
    monkeypatch.setenv("OTHER", "3")
    assert digest_of(modules, program) == was
    monkeypatch.setenv("GAIN", "3")
    assert digest_of(modules, program) != was


@pytest.mark.parametrize("name", ["os.environ['GA' + b]", "os.getenv(f'GA{b}')", "os.environ.get('%s' % b, 1)"])
def test_variables_whose_names_are_made_are_refused(name: str, modules: Path) -> None:
    with pytest.raises(ArgumentError, match="by a name that it makes: give name="):
        digest_of(modules, f"import os\ndef fn(b):\n    return {name}")


ASKED_FOR = {
    "in a set": "import helper\nK = {helper}\ndef fn(b):\n    m, = K\n    return b * m.k",
    "by a getter": "import helper, operator\nK = operator.attrgetter('k')\ndef fn(b):\n    return b * K(helper)",
    "by another name of getattr": "import helper\nf = getattr\ndef fn(b):\n    return b * f(helper, 'k')",
}


@pytest.mark.parametrize("program", ASKED_FOR.values(), ids=list(ASKED_FOR))
def test_attributes_of_modules_count_however_they_are_asked_for(program: str, modules: Path) -> None:
    was = digest_of(modules, program, "k = 1")
    assert digest_of(modules, program, "k = 1\nimport json") == was
    assert digest_of(modules, program, "k = 2") != was


def test_an_attribute_is_no_global(modules: Path) -> None:
    program = "T = 2\ndef fn(b):\n    return b.T"
    assert digest_of(modules, program) == digest_of(modules, program.replace("2", "3"))


def test_what_is_kept_of_a_computed_property_does_not_count(modules: Path) -> None:
    program = (
        "from functools import cached_property\nclass C:\n    @cached_property\n    def k(self):\n        return 2\n"
    )
    was = digest_of(modules, program + "c = C()\ndef fn(b):\n    return b * c.k")
    fn = sys.modules["program"].fn
    assert fn(1) == 2
    assert digest(fn) == was


def test_a_digest_is_the_same_twice(modules: Path) -> None:
    digest_of(modules, USES["an object's slot"])
    fn = sys.modules["program"].fn
    assert digest(fn) == digest(fn)


@pytest.mark.parametrize("what", MODULES)
def test_what_a_function_uses_of_other_modules_counts(what: str, modules: Path) -> None:
    was = digest_of(modules, MODULES[what])
    assert digest_of(modules, MODULES[what]) == was
    assert digest_of(modules, MODULES[what], HELPER.replace("2", "3")) != was
    if "word" not in what:
        assert digest_of(modules, MODULES[what], HELPER.replace("5", "6")) == was, "nothing uses it"


def test_a_package_by_a_relative_import_counts(modules: Path) -> None:
    def found(value: int) -> str:
        package = modules / "package"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "program.py").write_text("def fn(b):\n    from . import helper\n    return b * helper.K")
        (package / "helper.py").write_text(f"K = {value}")
        for name in ("package", "package.program", "package.helper"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return digest(importlib.import_module("package.program").fn)

    assert found(2) == found(2)
    assert found(2) != found(3)


def test_it_is_the_same_in_another_process(modules: Path) -> None:
    code = """
import sys; from pathlib import Path; from kernels.test_digest import MODULES, USES, digest_of
for program in [*USES.values(), *MODULES.values()]: print(digest_of(Path(sys.argv[1]), program))
"""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, [modules, tests, tests.parent]))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", code, modules], env=env, capture_output=True, text=True, check=True)
    for there, (what, program) in zip(run.stdout.split(), [*USES.items(), *MODULES.items()], strict=True):
        assert digest_of(modules, program) == there, what


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), np.frompyfunc(lambda b: b * 2, 1, 1), (b for b in "ab"), zarr.create_array({}, data=np.ones(3))],
    ids=["a lock", "a ufunc of a function", "a generator", "an array of zarr's"],
)
def test_what_may_be_another_in_each_process_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="name="):
        digest(lambda b: b * value)


@pytest.mark.parametrize(
    "call",
    [
        "eval('b * K')",
        "globals()['K']",
        "importlib.import_module('helper').K",
        "fn.__globals__['K']",
        "sys.modules['helper'].K",
    ],
)
def test_what_may_use_anything_is_refused(call: str, modules: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be told, as it uses"):
        digest_of(modules, f"import importlib, sys\nK = 2\ndef fn(b):\n    return {call}")


def test_it_may_not_be_used_by_another_name(modules: Path) -> None:
    with pytest.raises(ArgumentError, match="whether <built-in function eval> is the same"):
        digest_of(modules, "other = eval\ndef fn(b):\n    return other('b')")


def test_members_of_flags_count_that_have_no_names(modules: Path) -> None:
    program = "import enum\nclass F(enum.IntFlag):\n    A = 1\nK = F(8)\ndef fn(b):\n    return b * K"
    assert digest_of(modules, program) != digest_of(modules, program.replace("8", "16"))


def test_attributes_count_that_are_set_on_members_and_arrays(modules: Path) -> None:
    for program in (
        "import enum\nclass E(enum.Enum):\n    A = 1\nE.A.k = 2\ndef fn(b):\n    return b * E.A.k",
        "import numpy\nclass S(numpy.ndarray):\n    pass\nK = numpy.ones(3).view(S)\nK.k = 2\ndef fn(b):\n    return K",
    ):
        assert digest_of(modules, program) != digest_of(modules, program.replace("2", "3"))
        assert digest_of(modules, program) == digest_of(modules, program)


def test_what_is_not_implemented_is_known(modules: Path) -> None:
    program = "def fn(b, k=NotImplemented):\n    return b if k is NotImplemented else k"
    assert digest_of(modules, program) == digest_of(modules, program)


def test_an_object_that_cannot_be_shown_is_refused_in_words(modules: Path) -> None:
    program = "class C(list):\n    def __repr__(self):\n        raise RuntimeError\n    __reduce_ex__ = None\n"
    with pytest.raises(ArgumentError, match="an object of C"):
        digest_of(modules, program + "c = C()\ndef fn(b):\n    return c")


def test_installed_libraries_are_known_by_their_versions() -> None:
    log = logging.getLogger("a user's")

    def fn(b: Any) -> Any:
        log.info("a block")
        return np.mean(np.sqrt(b)) + np.add.reduce(b)

    assert len(digest(fn)) == 64


def test_a_compiled_module_of_the_users_is_known_by_its_file(modules: Path) -> None:
    file = modules / f"helper{EXTENSION_SUFFIXES[0]}"
    module = ModuleType("helper")
    module.__file__, module.f = str(file), len  # type: ignore[attr-defined]
    sys.modules["helper"] = module

    def found(content: bytes) -> str:
        file.write_bytes(content)
        return digest(lambda b: module.f(b))  # type: ignore[attr-defined]

    assert found(b"2") == found(b"2")
    assert found(b"2") != found(b"3")


def test_what_a_compiler_made_is_known_by_its_source_and_options() -> None:
    def made(options: dict[str, bool], k: int) -> Any:
        return SimpleNamespace(py_func=eval(f"lambda b: b * {k}"), targetoptions=options, number=object())

    assert digest(made({"fastmath": True}, 2)) == digest(made({"fastmath": True}, 2))
    assert digest(made({"fastmath": True}, 2)) != digest(made({"fastmath": False}, 2))
    assert digest(made({"fastmath": True}, 2)) != digest(made({"fastmath": True}, 3))


LEVEL = 2
PLACES = {"low": 1}


def _shifted(x: Any, by: float = 0.5) -> Any:
    return x + by


def _uses(x: Any, sigma: float = 1.0, *, order: int = 3) -> Any:
    return _shifted(x) * LEVEL + PLACES["low"] * sigma * order


class _Gain:
    factor = 3

    def __init__(self) -> None:
        self.offset = 1

    def __call__(self, x: Any) -> Any:
        return x * self.factor + self.offset


def _closing(factor: float) -> Any:
    return lambda x: x * factor


GAIN = _Gain()


@pytest.mark.parametrize(
    ("fn", "where", "name", "value", "said"),
    [
        (lambda: _uses, sys.modules[__name__], "LEVEL", 4, ["LEVEL in _uses: 2 then, 4 now"]),
        (lambda: _uses, sys.modules[__name__], "PLACES", {"low": 2}, ["PLACES in _uses"]),
        (lambda: _uses, _uses, "__defaults__", (2.0,), ["sigma= of _uses: 1.0 then, 2.0 now"]),
        (lambda: _uses, _uses, "__kwdefaults__", {"order": 1}, ["order= of _uses: 3 then, 1 now"]),
        (lambda: _uses, _shifted, "__defaults__", (0.25,), ["by= of _shifted: 0.5 then, 0.25 now"]),
        (lambda: _uses, _shifted, "__code__", (lambda x, by: x - by).__code__, ["the code of _shifted"]),
        (lambda: GAIN, _Gain, "factor", 4, ["_Gain.factor: 3 then, 4 now"]),
        (lambda: GAIN, GAIN, "offset", 4, ["offset of _Gain: 1 then, 4 now"]),
        (
            lambda: partial(_uses, sigma=LEVEL),
            sys.modules[__name__],
            "LEVEL",
            4,
            ["LEVEL in _uses: 2 then, 4 now", "sigma=: 2 then, 4 now"],
        ),
        (lambda: _closing("secret"), _shifted, "__defaults__", (1,), []),
        (lambda: _closing((LEVEL, "secret")), sys.modules[__name__], "LEVEL", 4, ["factor in <lambda>"]),
        (lambda: _closing((LEVEL,) * 9), sys.modules[__name__], "LEVEL", 4, ["factor in <lambda>"]),
        (lambda: _closing(LEVEL), sys.modules[__name__], "LEVEL", 4, ["factor in <lambda>: 2 then, 4 now"]),
    ],
)
def test_an_outline_says_what_is_another(
    fn: Any, where: Any, name: str, value: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    then = outline(fn())
    assert changed(then, outline(fn())) == []
    monkeypatch.setattr(where, name, value)
    assert changed(then, outline(fn())) == said
