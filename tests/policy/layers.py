"""The order of the rooms: which folder, or module at a package's root, may import which."""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Mapping

from tests.policy.imports import imports_of
from tests.policy.source import PACKAGES, Module

# From the lowest to the highest, package by package: each line has the rooms of one layer, which
# import only rooms of the layers before it, here or in a package above.
LAYERS: Mapping[str, tuple[str, ...]] = {
    "xla_call_module": (
        "_autograph errors lazy_names",
        "_jax size_polynomials",
        "allowance checks dimensions dtypes platforms shardings versions",
        "flags pytrees symbolic_shapes",
        "tracebacks",
        "descriptions",
        "_tf call exported_fields",
        "node stablehlo",
        "linalg shape_checks",
        "analyses",
        "exported",
        "mlir_files",
        "passes",
        "runtime",
    ),
    "savedmodel": (
        "protos",
        "files gradient_orders tensorflow_graph",
        "model variables",
        "encode",
        "decode manifest write",
        "read",
        "rewrite",
    ),
    "bridge": (
        "core graphs",
        "blocks core_ops lifting.derivatives",
        "lifting",
        "core_ops.decompositions litert.emitting",
        "calling_tf litert.lowering litert.worker loading onnx.graph",
        "exporting tf_operations",
        "chains inspecting",
        "call_tf converting load onnx.rules retarget saving sources",
        "verifying",
        "formats",
        "litert",
        "batching convert diff layers meshes to_jax update verify",
        "jax2tf keras save tf_keras",
        "checking_gradients onnx serving",
        "benchmarking inspect local_server",
        "beam cli testing",
        "__main__",
    ),
}


def layer_order(layers: Mapping[str, Collection[str]] = LAYERS) -> tuple[frozenset[str], ...]:
    """Return the layers of all packages with the full names of their rooms."""
    return tuple(
        frozenset(f"{package}.{room}" for room in line.split())
        for package, lines in layers.items()
        for line in lines
    )


def room_of(name: str, modules: Mapping[str, Module]) -> str:
    """Return the room of a module: its folder, or itself at the root of a package."""
    if name in PACKAGES or modules[name].is_package:
        return name
    folder = name.rpartition(".")[0]
    return name if folder in PACKAGES else folder


def rooms(modules: Collection[Module]) -> set[str]:
    """Return every room of a tree; the roots themselves only say where public names are."""
    by_name = {module.name: module for module in modules}
    return {room_of(name, by_name) for name in by_name} - set(PACKAGES)


def room_imports(modules: Collection[Module]) -> dict[tuple[str, str], str]:
    """Return where each room first imports each other room, lazily and for types included."""
    by_name = {module.name: module for module in modules}
    found: dict[tuple[str, str], str] = {}
    for module in modules:
        if module.name in PACKAGES:
            continue
        room = room_of(module.name, by_name)
        for imported in imports_of(module):
            name = imported.name if imported.name in by_name else imported.name.rpartition(".")[0]
            if name not in by_name or name in PACKAGES:
                continue
            target = room_of(name, by_name)
            if target != room:
                found.setdefault((room, target), imported.where)
    return found


def file_circle(modules: Collection[Module]) -> list[str]:
    """Return modules of which each imports the next, and the last the first; none where none do."""
    by_name = {module.name: module for module in modules if module.name not in PACKAGES}
    graph = {}
    for name, module in by_name.items():
        imported = (
            i.name if i.name in by_name else i.name.rpartition(".")[0] for i in imports_of(module)
        )
        graph[name] = {target for target in imported if target in by_name and target != name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def upward_imports(modules: Collection[Module], layers: Collection[Collection[str]]) -> list[str]:
    """Return the imports that do not go from a higher layer to a lower one."""
    height = {room: index for index, layer in enumerate(layers) for room in layer}
    return [
        f"{where}: {room} imports {target}, which is not below it"
        for (room, target), where in room_imports(modules).items()
        if height.get(target, len(height)) >= height.get(room, -1)
    ]
