"""The layout keeps its promises: rooms, sizes, private APIs, documented public names."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fxforms

ROOT = Path(__file__).parent.parent
MAX_FILE = 300
MAX_BODY = 60

# Lowest first. A module belongs to the room with the longest matching name.
ROOMS = (
    ("fxforms._substrate", "fxforms._torch_version", "fxforms.errors", "fxforms._tree"),
    ("fxforms.interpreters",),
    ("fxforms.functions",),
    ("fxforms.transforms",),
    ("fxforms.control",),
    ("fxforms.staging",),
    ("fxforms.distributed",),
    ("fxforms",),
)

# Who may use which of torch's private modules.
PRIVATE = {
    "fxforms/_substrate.py": ("torch",),
    "fxforms/staging/backends.py": ("torch._functorch", "torch._inductor", "torch._guards"),
    "fxforms/staging/fake.py": (
        "torch._subclasses",
        "torch._guards",
        "torch._dispatch",
        "torch.utils._python_dispatch",
        "torch.fx._lazy_graph_module",
        "torch._C.DisableTorchFunction",
    ),
    "fxforms/staging/guards.py": ("torch._C._dynamo.guards",),
    "fxforms/interpreters/negation.py": ("torch._neg_view", "torch._C"),
    "fxforms/_tree.py": ("torch.utils._pytree", "torch.utils._cxx_pytree"),
    "fxforms/staging/backward/engine.py": ("torch",),
    "fxforms/distributed/batched_cotangents.py": (
        "torch._C",
        "torch._add_batch_dim",
        "torch._remove_batch_dim",
    ),
    "fxforms/distributed/partial_backward.py": ("torch.autograd.Variable._execution_engine",),
    "fxforms/staging/onednn.py": ("torch._inductor", "torch.ops.mkldnn"),
    "opinfo_db/torch_ops.py": ("torch.testing._internal",),
}

# Imports of optional extras, where they are used.
OPTIONAL = {"fxforms/demo.py": {"sklearn", "tqdm"}}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PACKAGES = sources("fxforms", "opinfo_db")
EVERYTHING = sources("fxforms", "opinfo_db", "benchmarks", "tests")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=relative)


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement with the full name of what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write the full name, not a relative one"
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute chain, empty for any other expression."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private_torch_names(tree: ast.AST) -> set[str]:
    """The names under torch with a private part that the code imports or reads."""
    read = [dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = [*read, *(name for _, name in imports(tree))]
    return {name for name in names if name.startswith("torch.") and _has_private_part(name)}


def _has_private_part(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def room(module: str) -> int:
    """The height of the room that ``module`` is in."""
    found = [
        (len(name), height)
        for height, names in enumerate(ROOMS)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    ]
    return max(found)[1]


def module_name(path: Path) -> str:
    return relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code of a function, its docstring apart."""
    code = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - code[0].lineno + 1 if code else 0


def imports_in_functions(tree: ast.AST) -> set[str]:
    """The top packages that are imported inside functions."""
    return {name.split(".")[0] for f in functions(tree) for _, name in imports(f)}


@each(sources("fxforms"))
def test_a_room_imports_only_rooms_below(path: Path) -> None:
    own = room(module_name(path))
    for node, name in imports(ast.parse(path.read_text())):
        assert not name.startswith("opinfo_db"), f"line {node.lineno} imports {name}"
        if name.startswith("fxforms"):
            assert room(name) <= own, f"line {node.lineno} imports {name}, from a higher room"


@each(sources("fxforms", "opinfo_db", "benchmarks"))
def test_private_torch_is_used_in_one_place(path: Path) -> None:
    allowed = tuple(f"{name}." for name in PRIVATE.get(relative(path), ()))
    used = private_torch_names(ast.parse(path.read_text()))
    assert {name for name in used if not f"{name}.".startswith(allowed)} == set()


@each(PACKAGES)
def test_no_import_inside_a_function(path: Path) -> None:
    inside = imports_in_functions(ast.parse(path.read_text()))
    assert inside <= OPTIONAL.get(relative(path), set())


@each(EVERYTHING)
def test_a_file_is_neither_empty_nor_long(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert 0 < lines <= MAX_FILE


@each(EVERYTHING)
def test_a_function_is_short(path: Path) -> None:
    long = {
        f.name: n
        for f in functions(ast.parse(path.read_text()))
        if (n := body_length(f)) > MAX_BODY
    }
    assert long == {}


def own(name: str) -> bool:
    """False for a name that is torch's, handed on as it is, with torch's documentation."""
    return getattr(fxforms, name).__module__.startswith("fxforms")


PUBLIC = [name for name in fxforms.__all__ if not inspect.ismodule(getattr(fxforms, name))]


@pytest.mark.parametrize("name", [name for name in PUBLIC if own(name)])
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(fxforms, name)) or "")


def test_little_is_handed_on_from_torch() -> None:
    foreign = {name for name in PUBLIC if not own(name)}
    assert foreign == {"functional_call", "once_differentiable", "stack_module_state"}


@pytest.mark.parametrize("name", fxforms.__all__)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text().splitlines()
    kinds = ("autofunction", "autoclass", "automodule", "autodecorator")
    assert any(f".. {kind}:: fxforms.{name}" in reference for kind in kinds)


@pytest.mark.parametrize("page", ["errors.md", "reference.md"])
def test_every_error_class_is_documented(page: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / page).read_text()))
    values = vars(fxforms.errors).values()
    classes = [v for v in values if isinstance(v, type) and v.__module__ == "fxforms.errors"]
    assert {cls.__name__ for cls in classes} <= words


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch._C", {"torch._C"}),
        ("from torch import _VF", {"torch._VF"}),
        (
            "x = torch._C._functorch.level",
            {"torch._C", "torch._C._functorch", "torch._C._functorch.level"},
        ),
        ("torch.nn.Linear; torch.__version__; self._x", set()),
    ],
)
def test_private_names_are_found(code: str, found: set[str]) -> None:
    assert private_torch_names(ast.parse(code)) == found


def test_hidden_imports_are_found() -> None:
    assert imports_in_functions(ast.parse("import a\ndef f():\n    from b.c import d")) == {"b"}


def test_the_docstring_is_not_counted() -> None:
    (f,) = functions(
        ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x')
    )
    assert body_length(f) == 2


@pytest.mark.parametrize(
    ("module", "height"),
    [("fxforms._tree.leaves", 0), ("fxforms.functions.call", 2), ("fxforms.demo", 7)],
)
def test_a_module_is_in_its_room(module: str, height: int) -> None:
    assert room(module) == height
