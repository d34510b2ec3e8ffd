"""What is lifted has the name stacks and the lines of what was exported."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.extend import source_info_util

import bridge


@jax.jit
def _norm(x):
    return x / jnp.sqrt((x * x).sum() + 1)


def _cell(c, row):
    with jax.named_scope("cell"):
        return jnp.tanh(c + row), _norm(c)


def _network(x, w):
    with jax.named_scope("net"):
        with jax.named_scope("hidden"):
            h = jax.nn.relu(x @ w)
        with jax.named_scope("a/b"):
            c, rows = lax.scan(_cell, h[0], h)
        with jax.named_scope("heads"):
            rows = jax.vmap(lambda row: jnp.exp(row * c) / 2)(rows)
        with jax.named_scope("choice"):
            rows = lax.cond(rows.sum() > 0, lambda rows: jnp.cos(rows) * 2, _norm, rows)
    return _norm(rows).sum()


def _loop(x, w):
    with jax.named_scope("loop"):
        return lax.while_loop(
            lambda x: jnp.exp(x).sum() < 30, lambda x: sum(_cell(x, x)) + 1, x @ w
        )


_ARGUMENTS = (jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), jnp.linspace(-1.0, 1.0, 15).reshape(3, 5))
_FUNCTIONS = {
    "forwards": _network,
    "backwards": jax.grad(_network, argnums=1),
    "loop": _loop,
    "mapped": lambda x, w: jax.vmap(_network, (0, None))(jnp.stack([x, x]), w),
}
# What lifting makes no other operations of.
_COMPARED = {"cos", "div", "dot_general", "exp", "sqrt", "tanh"}


def _places(program, stack=""):
    """Yield each operation's name, its stack with the names of calls around it, and its line."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        name, source = eqn.primitive.name, eqn.source_info
        inside = "/".join(filter(None, (stack, str(source.name_stack))))
        if name in _COMPARED:
            line = re.search(r":(\d+)", source_info_util.summarize(source))
            yield name, inside, line and line[1]
        if name == "jit" and inside:
            inside += f"/jit({eqn.params['name']})"
        for value in eqn.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from _places(part, inside)


def _lifted(function, *arguments):
    return bridge.to_jax(export.export(jax.jit(function))(*arguments))


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_stacks_and_lines_are_those_of_the_original(name):
    function = _FUNCTIONS[name]
    once = _lifted(function, *_ARGUMENTS)
    compared = 2 if name == "loop" else 3  # JAX 0.9 lowers a body at the line of its `while_loop`
    expected = {place[:compared] for place in _places(jax.make_jaxpr(function)(*_ARGUMENTS))}
    for lifted in (once, _lifted(once, *_ARGUMENTS)):
        places = _places(jax.make_jaxpr(lifted)(*_ARGUMENTS))
        assert {place[:compared] for place in places} == expected


def test_a_derivative_of_what_was_lifted_has_the_stacks_of_the_original():
    stacks = [
        {place[1] for place in _places(jax.make_jaxpr(jax.grad(function))(*_ARGUMENTS))}
        for function in (_lifted(_network, *_ARGUMENTS), jax.jit(_network))
    ]
    assert stacks[0] == stacks[1]
    assert "transpose(jvp())/jit(_network)/net/a/b/cell/jit(_norm)" in stacks[0]


def test_what_is_exported_again_has_the_names():
    lifted = _lifted(_network, *_ARGUMENTS)
    models = [bridge.to_onnx(function, args=_ARGUMENTS) for function in (lifted, _network)]
    names = [{node.name for node in model.graph.node if node.op_type == "Tanh"} for model in models]
    assert names[0] == names[1] != {""}
