"""Static checks of a user's model file, without importing it: the submit side has no torch."""

import ast
from pathlib import Path

from hpcprof.common.errors import UsageError

FUNCTIONS = {
    "get_model": ("rank", "cap_size"),
    "get_dataloader": ("rank", "batchsize"),
    "forward_pass": ("model", "inputs"),
    "backward_pass": ("output",),
}
"""The functions that a model file must define, with their parameters."""


def check_model_file(path: Path) -> None:
    """Check that a model file is valid Python and defines all functions with the right parameters."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid Python: {error}.") from None
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(alias.name == "*" for node in imports for alias in node.names):
        return
    assigned = _assigned(tree)
    for name, parameters in FUNCTIONS.items():
        if name in defined:
            _check_parameters(path, defined[name], parameters)
        elif name not in assigned:
            functions = [f"{key} in line {node.lineno}" for key, node in defined.items() if key in FUNCTIONS]
            raise UsageError(
                f"{path} does not define {name}({', '.join(parameters)}); it defines "
                f"{', '.join(functions) or 'none of ' + ', '.join(FUNCTIONS)}."
            )


def _check_parameters(path: Path, function: ast.FunctionDef, parameters: tuple[str, ...]) -> None:
    signature = function.args
    positional = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
    required = len(positional) - len(signature.defaults)
    keywords = [
        a.arg for a, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True) if not default
    ]
    enough = signature.vararg is not None or len(positional) >= len(parameters)
    if required > len(parameters) or keywords or not enough:
        raise UsageError(
            f"{path}, line {function.lineno}: {function.name} takes ({', '.join(positional + keywords)}), "
            f"but is called with ({', '.join(parameters)})."
        )


def _assigned(tree: ast.Module) -> set[str]:
    """Return the names that the file binds in other ways: by imports, assignments, or in branches."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.If | ast.Try):
            names |= {child.name for child in ast.walk(node) if isinstance(child, ast.FunctionDef)}
    return names
