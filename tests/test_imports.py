"""What importing costs, and what is visible afterwards."""

import ast
import inspect
import subprocess
import sys

import pytest

import classwise as cw

# Names are loaded when they are asked for, so all are asked for; but the shells load torchmetrics.
EVERYTHING = """
import classwise
for name in set(classwise.__all__) - {"ClassAccuracy", "ClassBins", "ClassFloors"}:
    getattr(classwise, name)
"""

PROBE = """
import sys
import torch, numpy
before = set(sys.modules)
{extra}
{everything}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(new - set(sys.stdlib_module_names) - {{"classwise", "torch", "numpy"}}))
"""


def new_packages(extra: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(extra=extra, everything=EVERYTHING)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_importing_loads_torch_numpy_and_the_standard_library_only():
    assert new_packages() == "[]"


def test_the_import_test_can_fail():
    assert "torchmetrics" in new_packages("import torchmetrics")


def test_importing_does_not_load_the_compiler_of_torch():
    code = "import torch, sys; a = 'torch._dynamo' in sys.modules\n" + EVERYTHING
    code += "print(a or 'torch._dynamo' not in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_importing_adds_little_to_importing_torch():
    # Processor time: other processes on the machine say nothing about the package.
    code = "import torch, time; t = time.process_time()\n" + EVERYTHING
    code += "print(time.process_time() - t)"

    def seconds() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    assert any(seconds() <= 0.2 for _ in range(3))


def test_importing_alone_loads_nothing():
    code = "import classwise, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_all_names_are_there_and_nothing_else_is_public():
    assert {*cw._HOME_OF, *cw._MODULES} == set(cw.__all__)
    assert dir(cw) == sorted(cw.__all__) == cw.__all__
    for name in cw.__all__:
        assert getattr(cw, name) is not None
    visible = {
        name
        for name, value in vars(cw).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert visible - {"annotations", "Any", "TYPE_CHECKING"} <= set(cw.__all__)


def test_names_are_imported_for_type_checkers_from_where_they_live():
    tree = ast.parse(inspect.getsource(cw))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    found = {
        alias.name: (node.module or "").removeprefix("classwise").removeprefix(".")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {n: h for n, h in found.items() if n not in cw._MODULES} == cw._HOME_OF
    assert {n for n in found if n in cw._MODULES} == set(cw._MODULES)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ClassBin'"):
        cw.ClassBin  # noqa: B018


@pytest.mark.parametrize("name", [n for n in cw.__all__ if n not in ("terms", "theory")])
def test_every_public_name_has_a_docstring(name: str):
    assert inspect.getdoc(getattr(cw, name))


def test_errors_are_classwise_errors_and_builtin_ones():
    for error in (cw.ArgumentError, cw.UnknownNameError, cw.RecipeError, cw.DataError):
        assert issubclass(error, (cw.ClasswiseError,))
        assert issubclass(error, ValueError)
    for error in (cw.StateError, cw.CheckpointError):
        assert issubclass(error, cw.ClasswiseError)
        assert issubclass(error, RuntimeError)
