"""What the sources of the project import."""

import ast
from collections.abc import Iterator
from pathlib import Path

BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, whether it runs when the module is imported) of all imports of a module of `path`.

    `from lmtool import data` is an import of lmtool.data. What only a type checker sees does not run.
    """
    package = path.with_suffix("").parts[:-1]

    def visit(node: ast.AST, at_import: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, at_import
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "lmtool":
                for alias in node.names:
                    is_room = not alias.name.startswith("__")
                    yield node.lineno, f"lmtool.{alias.name}" if is_room else "lmtool", at_import
            else:
                yield node.lineno, module, at_import
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        unseen = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, BLOCKS):
                yield from visit(child, at_import and not later and not unseen)

    return visit(tree, True)
