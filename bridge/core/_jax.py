"""Private names of JAX, and names that versions have otherwise, each behind a named gate."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import importlib.util
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np
from jax import export, lax, tree_util
from jax.extend import core, source_info_util
from jax.interpreters import ad
from jax.sharding import NamedSharding

from xla_call_module._jax import has_hlo_shardings
from xla_call_module.errors import private_name

# For each argument or result its sharding; None where it has none.
Shardings = tuple[NamedSharding | None, ...]


@contextmanager
def unfiltered_tracebacks() -> Iterator[None]:
    """Return a context in which the errors of JAX have the frames inside of it.

    `jax_traceback_filtering` is a setting of the process, which JAX has no context for. What other
    threads raise meanwhile has these frames, too. The gate can go when there is one.
    """
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def outside_meshes() -> AbstractContextManager[Any]:
    """Return a context in which no mesh is set."""
    context: AbstractContextManager[Any] = jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((), ())
    )
    return context


def replace_vjp(
    exported: export.Exported,
    vjp: Callable[[], export.Exported],
    *,
    program: core.ClosedJaxpr | None = None,
) -> export.Exported:
    """Return the same `Exported` with another VJP, which is made each time that it is asked for.

    `Exported.vjp` calls the field `_get_vjp` with the object itself (jax/_src/export/_export.py);
    there is no public way to say what a changed `Exported` is differentiated by. The gate can go
    when there is one.
    """
    with private_name("an Exported with another gradient", "jax"):
        return dataclasses.replace(exported, _get_vjp=_Vjp(vjp, program))


@dataclasses.dataclass(frozen=True, slots=True)
class _Vjp:
    make: Callable[[], export.Exported]
    program: core.ClosedJaxpr | None

    def __call__(self, exported: export.Exported) -> export.Exported:
        del exported
        return self.make()


def traced_program(exported: export.Exported) -> core.ClosedJaxpr | None:
    """Return the trace of flat arguments that this process has exported; None where it has none.

    `Exported.vjp` differentiates it, and only the closure that it calls holds it
    (jax/_src/export/_export.py, `_get_exported_vjp`). Without the gate there is none, and what is
    made of the trace is made of the artifact. It can go when an `Exported` tells.
    """
    make_vjp: Any = getattr(exported, "_get_vjp", None)
    if isinstance(make_vjp, _Vjp):
        return make_vjp.program
    if not inspect.isfunction(make_vjp):
        return None
    program = inspect.getclosurevars(make_vjp).nonlocals.get("jaxpr")
    return program if isinstance(program, core.ClosedJaxpr) else None


def without_results(exported: export.Exported, count: int) -> export.Exported:
    """Return the description of a function that lacks the first of some flat results.

    JAX has private fields for the shardings of the results (jax/_src/export/_export.py). The gate
    can go when there is a public way to change an `Exported`.
    """
    fields: dict[str, Any] = {
        field.name: getattr(exported, field.name)[count:]
        for field in dataclasses.fields(exported)
        if field.name in ("out_avals", "out_shardings_hlo", "_out_named_shardings")
    }
    tree = tree_util.tree_structure(tuple(fields["out_avals"]))
    with private_name("residuals=True", "jax"):
        return dataclasses.replace(exported, out_tree=tree, mlir_module_serialized=b"", **fields)


def map_orders(
    exported: export.Exported, change: Callable[[export.Exported], export.Exported]
) -> export.Exported:
    """Return what a function makes of an `Exported`, and, when asked for, of its VJPs."""
    changed = change(exported)
    if not exported.has_vjp():
        return changed
    return replace_vjp(changed, lambda: map_orders(exported.vjp(), change))


def cut_vjp(exported: export.Exported, order: int) -> export.Exported:
    """Return the same `Exported` with VJPs up to an order only.

    The gate is that of `replace_vjp`.
    """
    if not exported.has_vjp():
        return exported
    if order > 0:
        return replace_vjp(exported, lambda: cut_vjp(exported.vjp(), order - 1))
    with private_name("an Exported with another gradient", "jax"):
        return dataclasses.replace(exported, _get_vjp=None)


def shardings_of_trace(
    traced: jax.stages.Traced,
) -> tuple[tuple[jax.sharding.Sharding | None, ...], tuple[jax.sharding.Sharding | None, ...]]:
    """Return the shardings of the flat arguments and results of a trace; None on one device.

    What `jax.jit` was told is in `_params`, and what the arguments themselves say in
    `_meta_tys_flat` (jax/_src/stages.py, `Traced`); `args_info` says neither. Without the gate a
    traced function would lose its shardings, and is refused. It can go when `args_info` has them.
    """
    stage: Any = traced
    with private_name("exporting a traced function", "jax"):
        told, kinds = stage._params, stage._meta_tys_flat
    own = [getattr(kind, "sharding", None) for kind in kinds or ()]
    given = told.get("in_shardings") or (None,) * len(own)
    own = own if len(own) == len(given) else [None] * len(given)
    arguments = tuple(
        _on_several_devices(sharding) or _on_several_devices(other)
        for sharding, other in zip(given, own, strict=True)
    )
    return arguments, tuple(map(_on_several_devices, told.get("out_shardings") or ()))


def _on_several_devices(sharding: Any) -> jax.sharding.Sharding | None:
    """Return the sharding if it is for several devices; JAX's mark of an unknown one is none."""
    known = isinstance(sharding, jax.sharding.Sharding) and sharding.num_devices > 1
    return sharding if known else None


def static_parameters(fun: jax.stages.Wrapped) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions and names of the static arguments of a `jax.jit`-ed function.

    Exporting such an argument with the spec of an array hands the spec to the function, which may
    even run. `jax.stages.Wrapped` does not tell which ones they are
    (https://docs.jax.dev/en/latest/jax.stages.html); what `jax.jit` was told is in `_jit_info`
    (jax/_src/pjit.py, `PjitInfo`). Without the gate none are known, and the export is refused
    afterwards, because the structure of its arguments is another. It can go when JAX tells.
    """
    info = getattr(fun, "_jit_info", None)
    return (
        tuple(getattr(info, "static_argnums", None) or ()),
        tuple(getattr(info, "static_argnames", None) or ()),
    )


def replace_shardings(
    exported: export.Exported, arguments: Shardings, results: Shardings
) -> export.Exported:
    """Return the same `Exported` with other shardings of its arguments and results.

    JAX keeps them in private fields (jax/_src/export/_export.py). The gate can go when it has a
    public way to say what a changed `Exported` has.
    """
    changed: dict[str, Any] = {
        "_in_named_shardings": arguments,
        "_out_named_shardings": results,
    }
    if has_hlo_shardings():
        changed["in_shardings_hlo"] = (None,) * len(arguments)
        changed["out_shardings_hlo"] = (None,) * len(results)
    # That they are named was for a while a field of its own, and goes without saying since.
    if hasattr(exported, "_has_named_shardings"):
        changed["_has_named_shardings"] = True
    with private_name("an Exported with other shardings", "jax"):
        return dataclasses.replace(exported, **changed)


def coordination_client() -> Any:
    """Return the key-value store by which `jax.distributed` connects processes, or None.

    It has no public name. What `jax.experimental.multihost_utils` offers instead are collectives on
    the devices: they need a backend that has some between hosts (on the CPU an option, and off),
    wait without a limit for a process that has failed, and cannot say why it has
    (https://docs.jax.dev/en/latest/jax.experimental.multihost_utils.html). JAX's own checkpoints
    (jax/experimental/array_serialization/serialization.py) and Orbax use this client, too. The gate
    can go when JAX names it.
    """
    with private_name("saving from several processes", "jax"):
        from jax._src import distributed

        return distributed.global_state.client


def settings_query() -> Callable[[], Hashable]:
    """Return a function that returns JAX's configuration, as far as traces depend on it.

    What `jax.jit` keeps its traces by has no public name (jax/_src/config.py, `trace_context`).
    Without the gate only the settings that change dtypes and precision are told. It can go when
    JAX has one.
    """
    config: Any = jax.config  # its values are attributes that JAX adds when it is imported
    try:
        from jax._src.config import trace_context
    except ImportError:
        return lambda: (config.jax_enable_x64, config.jax_default_matmul_precision)
    return trace_context  # type: ignore[no-any-return]


def dlpack_exporter() -> Callable[[jax.Array], Any]:
    """Return a function that makes a DLPack capsule of a computed array on the CPU.

    `jax.Array.__dlpack__` asks for device and stream before, at a tenth of an eager call; what it
    calls then is in jaxlib (jax/_src/dlpack.py). Without the gate it is `__dlpack__` itself. It can
    go when that is as quick.
    """
    try:
        from jax._src.lib import xla_client

        jaxlib: Any = xla_client
        return jaxlib._xla.buffer_to_dlpack_managed_tensor  # type: ignore[no-any-return]
    except (ImportError, AttributeError):
        return lambda array: array.__dlpack__()


def transformation_query() -> Callable[[], bool]:
    """Return a function that returns whether no JAX transformation is tracing here.

    It was `jax.core.trace_state_clean` until JAX took that away (jax/_src/core.py). Without the
    gate the answer is always yes, and JAX refuses the tracers that arrive. It can go when there is
    a public one again.
    """
    try:
        from jax._src.core import trace_state_clean
    except ImportError:
        return lambda: True
    return trace_state_clean


def polymorphic_shape_class() -> type[tuple[Any, ...]]:
    """Return the class of polymorphic shapes that are no text, which JAX has deprecated.

    Its only public name is in what this package replaces (jax/_src/export/shape_poly.py). Without
    the gate it is a class that JAX refuses as a shape. It can go with the class.
    """
    try:
        from jax._src.export.shape_poly import PolyShape
    except ImportError:
        return type("PolyShape", (tuple,), {})
    return PolyShape


def allow_registration_of(types: Iterable[type]) -> None:
    """Let JAX's own converter be imported after these types have become pytrees.

    It makes pytrees of the containers of TensorFlow when it is imported, and JAX knows no way to
    ask whether a type is one, nor to take it back: the import would fail
    (jax/experimental/jax2tf/jax2tf.py, `_register_checkpoint_pytrees`). While it is imported,
    registering these types again does nothing. The gate can go with that converter.

    Nothing can unwrap the containers at the boundary of a call instead: a `tf.Module` puts them in
    place when an attribute is set, outside of any call, and code of the user that flattens such an
    attribute, as JAX's converter lets it, meets them there.
    """
    if _CONVERTER not in sys.modules:
        sys.meta_path.insert(0, _Finder(frozenset(types)))


_CONVERTER = "jax.experimental.jax2tf.jax2tf"


class _Finder(MetaPathFinder):
    """Finds the one module once, and has it run without registering some types."""

    def __init__(self, types: frozenset[type]) -> None:
        self._types = types

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != _CONVERTER or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = functools.partial(_without_registering, self._types, loader.exec_module)
            loader.exec_module = run
        return spec


def _without_registering(
    types: frozenset[type], run: Callable[[ModuleType], None], module: ModuleType
) -> None:
    """Run a module while registering some types as pytrees does nothing."""
    register = tree_util.register_pytree_node

    def register_others(nodetype: Any, *args: Any, **kwargs: Any) -> None:
        if nodetype not in types:
            register(nodetype, *args, **kwargs)

    tree_util.register_pytree_node = register_others
    try:
        run(module)
    finally:
        tree_util.register_pytree_node = register


def is_staging() -> bool:
    """Return whether JAX is tracing a program, which runs later.

    Arguments do not tell where there are none that are traced. JAX says so in `jax.extend.core`
    since version 0.10; before, a constant is traced like everything else. The gate can go with
    JAX 0.9.
    """
    query = getattr(core, "unsafe_am_i_under_a_jit_DO_NOT_USE", None)
    if query is None:
        return isinstance(jax.numpy.zeros(()), jax.core.Tracer)
    return bool(query())


def callback_frames(jaxpr: Any) -> list[tuple[str, int]] | None:
    """Return files and lines of the first callback to Python, from it outwards; None without one.

    Where an equation comes from is told by `source_info`, which `jax.extend.core` has without its
    form (jax/_src/source_info_util.py). Without the gate messages have no place. It can go when JAX
    tells the frames of an equation.
    """
    for equation in getattr(jaxpr, "eqns", ()):
        inner: list[tuple[str, int]] | None = None
        name = equation.primitive.name
        is_callback = "callback" in name or name == "debug_print"
        for value in () if is_callback else equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if inner is None:
                    inner = callback_frames(getattr(part, "jaxpr", part))
        if is_callback or inner is not None:
            traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
            frames = getattr(traceback, "frames", ())
            return [*(inner or ()), *((frame.file_name, frame.line_num) for frame in frames)]
    return None


def missing_rule(error: Exception) -> tuple[str, list[str]] | None:
    """Return the primitive that an error says has no lowering rule, and the platforms it names.

    JAX raises a plain NotImplementedError (jax/_src/interpreters/mlir.py), told by its text alone.
    Without the gate the error is JAX's own. It can go when that has a class.
    """
    text = str(error)
    primitive = re.search(r"MLIR translation rule for primitive '(\w+)' not found", text)
    platforms = re.search(r"not found for platforms? \[?([^\]]*)", text)
    if primitive is None:
        return None
    return primitive[1], re.findall(r"\w+", platforms[1]) if platforms else []


def operation_frames(error: Exception) -> list[tuple[str, int]]:
    """Return the lines that called the operation which JAX was lowering; none for other errors.

    JAX puts their traceback behind an error as its cause, of a private class
    (jax/_src/source_info_util.py, `JaxStackTraceBeforeTransformation`). Without the gate errors of
    lowering name no line. It can go when that is public.
    """
    cause = error.__cause__
    if type(cause).__name__ != "JaxStackTraceBeforeTransformation":
        return []
    walked = traceback.walk_tb(getattr(cause, "__traceback__", None))
    return [(frame.f_code.co_filename, line) for frame, line in walked]


def unstable_calls(error: Exception) -> list[tuple[str, str]]:
    """Return the custom calls whose meaning JAX does not guarantee: their targets and locations.

    They are in the text of a plain ValueError alone (jax/_src/export/_export.py), a line each:
    `%0 = stablehlo.custom_call @made_up(%arg0) {…} : … at loc("jit(f)/ffi_call"(… "f.py":4:11 …))`.
    Without the gate, exports of linear algebra that JAX has no portable form of end in JAX's own
    error. It can go when the error has its calls as an attribute.
    """
    call = r"custom_call @([^\s(]+)\((?:[^\n]* at loc\(([^\n]*)\))?"
    return re.findall(call, str(error))


def lacks_forward_mode(error: Exception) -> bool:
    """Return whether an error says that a `jax.custom_vjp` has no derivative in forward mode.

    It is a plain TypeError (jax/_src/custom_derivatives.py), told by its text alone. Without the
    gate the error is JAX's own. It can go when it has a class.
    """
    return type(error) is TypeError and "(jvp) to a custom_vjp" in str(error)


def tracing_error_kind(error: Exception) -> str:
    """Return which kind of thing a trace did not have; empty for another error.

    It is the value of a traced array: for NumPy (`numpy`), for a branch of Python (`branch`), for a
    Python number (`number`), for a shape (`shape`) or to select by a mask (`mask`); or a symbolic
    dimension as a number (`size`), an order of the keys of a dict (`keys`), one scope of all
    symbolic dimensions (`scope`), or results that are arrays (`result`). Not all have classes; a
    plain TypeError or ValueError is told by its text alone (jax/_src/core.py, `canonicalize_shape`;
    CPython, of `_DimExpr`; jaxlib's pytrees; jax/_src/export/shape_poly.py;
    jax/_src/interpreters/partial_eval.py). Without the gate the error is JAX's own. It can go when
    each has a class.
    """
    name, text = type(error).__name__, str(error)
    if "Shapes must be 1D sequences of concrete values" in text:
        return "shape"
    if name in _VALUE_ERRORS:
        return _VALUE_ERRORS[name]
    if "returned a value of type" in text and "not a valid JAX type" in text:
        return "result"
    if name == _INCONCLUSIVE or "'_DimExpr' object cannot be interpreted as an integer" in text:
        return "size"
    unsortable = "Comparator raised exception while sorting pytree dictionary keys"
    if "Invalid mixing of symbolic scopes" in text:
        return "scope"
    return "keys" if unsortable in text else ""


_VALUE_ERRORS = {
    "ConcretizationTypeError": "number",
    "NonConcreteBooleanIndexError": "mask",
    "TracerArrayConversionError": "numpy",
    "TracerBoolConversionError": "branch",
    "TracerIntegerConversionError": "number",
}
_INCONCLUSIVE = "InconclusiveDimensionOperation"


def broken_size_constraint(error: BaseException) -> str:
    """Return the sentence of an error that names a constraint on sizes; empty for other errors.

    `Exported.call` raises a plain ValueError (jax/_src/export/shape_poly.py), told by its text
    alone. Without the gate the error is JAX's own. It can go when that has a class.
    """
    constraint = re.search(r"(Input shapes do not match .*?\.) ", str(error), re.DOTALL)
    return constraint[1] if constraint else ""


def depends_on_first(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether results of a function may depend on leaves of its first argument.

    An operation is taken to use all that it is given. `jax.extend.core` has equations without their
    form, and `jax.make_jaxpr` gives them (jax/_src/core.py, `Jaxpr`). The gate can go when the
    form is documented.
    """
    jaxpr: Any = jax.make_jaxpr(function)(*args).jaxpr
    reached = set(jaxpr.invars[: len(tree_util.tree_leaves(args[0]))])
    # Literals have no hash.
    for equation in jaxpr.eqns:
        if any(isinstance(v, core.Var) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return any(isinstance(v, core.Var) and v in reached for v in jaxpr.outvars)


def devices_of_lowering(context: Any) -> int | None:
    """Return the number of devices that a lowering rule lowers for; None where it is unknown.

    `Exported.call` asks the same and raises a plain ValueError (jax/_src/export/_export.py,
    `_call_exported_lowering`). The gate can go when JAX says it in `jax.interpreters.mlir`.
    """
    axes: Any = context.module_context.axis_context
    mesh = getattr(axes, "mesh", None)  # in jax.shard_map
    count = getattr(axes, "num_devices", None) if mesh is None else mesh.size
    return count if isinstance(count, int) else None


def is_for_export(context: Any) -> bool:
    """Return whether a lowering rule lowers for `jax.export`, and not to run here.

    JAX keeps it with the other parameters (jax/_src/interpreters/mlir.py, `LoweringParameters`).
    Without the gate everything is lowered as what is exported. It can go when JAX says it in
    `jax.interpreters.mlir`.
    """
    parameters = getattr(context.module_context, "lowering_parameters", None)
    return bool(getattr(parameters, "for_export", True))


def dimension_bounds(dimension: Any, *, most: int) -> tuple[int, int]:
    """Return the least and the greatest number that a symbolic dimension may be, from 1 to `most`.

    JAX says it in `jax.export.symbolic_dim_bounds` since version 0.12. Before, it is found by
    bisection. The gate can go with JAX 0.11.
    """
    tell: Any = getattr(export, "symbolic_dim_bounds", None)
    if tell is None:
        sizes = range(1, most)
        least, greatest = (
            bisect.bisect_left(sizes, True, key=key) + 1
            for key in (
                lambda size: not is_certain(lambda: dimension >= size + 1),
                lambda size: is_certain(lambda: dimension <= size),
            )
        )
        return least, greatest
    try:
        low, high = tell(dimension)
    except Exception as error:
        if type(error).__name__ != _INCONCLUSIVE:
            raise
        return 1, most
    return int(min(max(low, 1), most)), int(min(max(high, 1), most))


def is_certain(comparison: Callable[[], bool]) -> bool:
    """Return whether a comparison of symbolic dimensions holds for all sizes that they may have.

    JAX raises where that depends on the sizes; the error is in `jax.errors` in newer versions, and
    in `jax.core` before. The gate can go with JAX 0.9.
    """
    try:
        return comparison()
    except Exception as error:
        if type(error).__name__ != _INCONCLUSIVE:
            raise
        return False


_CHANGING_RULES = threading.RLock()
_Traced = TypeVar("_Traced")


def trace_with_symbolic_solves(trace: Callable[[], _Traced]) -> _Traced:
    """Return what a trace returns, which may differentiate triangular solves of any number.

    JAX's rule for the triangle compares the number of right-hand sides with the order of the
    matrix, to multiply in the cheaper order, and raises where it is symbolic
    (jax/_src/lax/linalg.py, `_triangular_solve_jvp_rule_a`). Then it is traced again with a rule
    that compares nothing. Without the gate such a function has no gradient. It can go when JAX asks
    whether the comparison is certain.
    """
    try:
        return trace()
    except Exception as error:
        if tracing_error_kind(error) != "size":
            raise
    primitive = _triangular_solve_primitive()
    with _CHANGING_RULES:
        rule = ad.primitive_jvps[primitive]
        ad.primitive_jvps[primitive] = functools.partial(_derivative_of_solve, primitive)
        try:
            return trace()
        finally:
            ad.primitive_jvps[primitive] = rule


@functools.cache
def _triangular_solve_primitive() -> Any:
    """Return a primitive that `jax.lax.linalg` does not list in every version."""
    one = np.ones((1, 1), np.float32)
    jaxpr: Any = jax.make_jaxpr(lax.linalg.triangular_solve)(one, one)
    (equation,) = jaxpr.eqns
    return equation.primitive


def _derivative_of_solve(
    primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], **options: Any
) -> tuple[Any, Any]:
    """Return the solution of `op(T) X = B` and its tangent, that of `op(T) X' = B' - op(T') X`."""
    triangle, right = primals
    changes, right_changes = tangents
    solution = primitive.bind(triangle, right, **options)
    known = ad.instantiate_zeros(right_changes)
    if type(changes) is not ad.Zero:
        keep = jax.numpy.tril if options["lower"] else jax.numpy.triu
        strict = (-1 if options["lower"] else 1) if options["unit_diagonal"] else 0
        changes = keep(changes, k=strict)
        changes = changes.mT if options["transpose_a"] else changes
        changes = changes.conj() if options["conjugate_a"] else changes
        pair = (changes, solution) if options["left_side"] else (solution, changes)
        known = known - jax.numpy.matmul(*pair, precision=lax.Precision.HIGHEST)
    return solution, primitive.bind(triangle, known, **options)


def bind_equation(equation: Any, operands: Iterable[Any]) -> Sequence[Any]:
    """Return the results of one equation of a jaxpr, for other operands than it was traced with.

    What its primitive is bound with is a pair in JAX 0.9.0, of functions and parameters, and only
    parameters later (docs.jax.dev/en/latest/notebooks/Writing_custom_interpreters_in_Jax.html).
    The gate can go with JAX 0.9.
    """
    bound = equation.primitive.get_bind_params(equation.params)
    functions, parameters = bound if isinstance(bound, tuple) else ((), bound)
    source, around = equation.source_info, source_info_util.current_name_stack()
    stack = around + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=stack), equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **parameters)
    return results if equation.primitive.multiple_results else (results,)


def traceback_at(file: str, line: int, function: str) -> Any:
    """Return what JAX keeps of where an equation comes from, for a line of the user's program.

    JAX makes it of the frames that run (jaxlib's `Traceback`), so a frame of that name and line
    runs here. Without the gate the lines of lifted equations are those of this package. It can go
    when JAX takes a line.
    """
    current: Any = source_info_util.current().traceback
    if current is None:  # where tracebacks are switched off
        return None
    record = type(current).get_traceback
    code = _RECORD.replace(
        co_filename=file, co_firstlineno=line, co_name=function, co_qualname=function
    )
    return eval(code, {"record": record})


_RECORD = compile("record()", "", "eval")


@functools.cache
def has_symbolic_composites() -> bool:
    """Return whether JAX lowers composites where an argument of the program has a symbolic size.

    JAX 0.12 does. In 0.10 no composite gets the sizes that its decomposition takes, be its own
    shape symbolic or not (jax/_src/lax/lax.py, `_composite_lowering`).
    The gate can go when JAX 0.10 is no longer supported.
    """
    composite = lax.composite(lambda value: value + value, "jax_tf_bridge.probe")
    try:
        export.export(jax.jit(composite))(
            jax.ShapeDtypeStruct(export.symbolic_shape("b"), np.float32)
        )
    except ValueError:
        return False
    return True


def vary_together(values: Sequence[Any], like: Sequence[Any] = ()) -> list[Any]:
    """Return the values, each marked as varying over all mesh axes over which any does.

    In `jax.shard_map` JAX keeps account of what differs between devices, and derivatives add up
    over the others. What `Exported.call` and callbacks return is not marked, nor are their
    arguments made alike, so a gradient would be a multiple of what it is. The gate can go when
    `Exported.call` does this.
    """
    known = [_varying(value) for value in values]
    axes = frozenset[Any]().union(*known, *map(_varying, like))
    if not axes:
        return list(values)
    return [_vary(value, axes - own) for value, own in zip(values, known, strict=True)]


def _varying(value: Any) -> frozenset[Any]:
    aval: Any = jax.typeof(value)
    if hasattr(aval, "manual_axis_type"):  # newer versions
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))


def _vary(value: Any, axes: frozenset[Any]) -> Any:
    if not axes:
        return value
    return lax.pcast(value, tuple(sorted(axes)), to="varying")
