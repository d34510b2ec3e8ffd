"""Modules that ask for more than there is: converted or refused, with little time and memory."""

from __future__ import annotations

import time

import numpy as np
import pytest

import bridge
from tests.bridge.onnx.checking import evaluate, run

_LIMIT = 10.0  # seconds of the processor
_BYTES = 1 << 27
_F32 = "tensor<f32>"


def _main(lines):
    """A function of a number `%a`, which returns `%r`."""
    return f"func.func public @main(%a: {_F32}) -> {_F32} {{ {lines}\n return %r : {_F32} }}"


def _element(name, kind):
    """`%r`, which is the number and the first element of a tensor."""
    rank = kind.count("x")
    ones = "1x" * rank + "f32"
    return f"""
        %s = stablehlo.slice %{name} [{", ".join(["0:1"] * rank)}] : ({kind}) -> tensor<{ones}>
        %q = stablehlo.reshape %s : (tensor<{ones}>) -> {_F32}
        %r = stablehlo.add %a, %q : {_F32}"""


def _repeated(name, kind):
    return f"%{name} = stablehlo.broadcast_in_dim %a, dims = [] : ({_F32}) -> {kind}"


def _doubled(times):
    lines, size = ["%c0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>"], 2
    for n in range(times):
        kinds = f"(tensor<{size}xf32>, tensor<{size}xf32>) -> tensor<{2 * size}xf32>"
        lines.append(f"%c{n + 1} = stablehlo.concatenate %c{n}, %c{n}, dim = 0 : {kinds}")
        size *= 2
    return _main("\n".join(lines) + _element(f"c{times}", f"tensor<{size}xf32>"))


def _counted(size):
    kind = f"tensor<{size}xf32>"
    return _main(f"%i = stablehlo.iota dim = 0 : {kind}{_element('i', kind)}")


def _table(size):
    """Sums of each number with each other one."""
    kind, line = f"tensor<{size}x{size}xf32>", f"tensor<{size}xf32>"
    return _main(f"""%i = stablehlo.iota dim = 0 : {line}
        %j = stablehlo.broadcast_in_dim %i, dims = [0] : ({line}) -> {kind}
        %k = stablehlo.broadcast_in_dim %i, dims = [1] : ({line}) -> {kind}
        %t = stablehlo.add %j, %k : {kind}{_element("t", kind)}""")


def _windows(size):
    line, kind = f"tensor<{2 * size}xf32>", "tensor<2xf32>"
    return _main(f"""{_repeated("i", line)}
        %z = stablehlo.constant dense<1.0> : {_F32}
        %p = "stablehlo.reduce_window"(%i, %z) <{{window_dimensions = array<i64: {size}>,
          window_strides = array<i64: {size}>}}> ({{ ^bb0(%x: {_F32}, %y: {_F32}):
          %m = stablehlo.add %x, %y : {_F32}
          stablehlo.return %m : {_F32} }}) : ({line}, {_F32}) -> {kind}{_element("p", kind)}""")


def _convolved(size):
    kinds = [f"tensor<1x1x{n}x1x1x1xf32>" for n in (2 * size, size, size + 1)]
    numbers = "[b, f, 0, 1, 2, 3]x[o, i, 0, 1, 2, 3]->[b, f, 0, 1, 2, 3]"
    return _main(f"""{_repeated("i", kinds[0])} {_repeated("w", kinds[1])}
        %p = stablehlo.convolution(%i, %w) dim_numbers = {numbers}, window = {{}}
          {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
          : ({kinds[0]}, {kinds[1]}) -> {kinds[2]}{_element("p", kinds[2])}""")


def _loop(condition, carried="%x"):
    return _main(f"""%zero = stablehlo.constant dense<0.0> : {_F32}
        %r = stablehlo.while(%x = %a) : {_F32} cond {{
          %t = stablehlo.{condition}
          stablehlo.return %t : tensor<i1>
        }} do {{ %y = stablehlo.add %x, %x : {_F32}
          stablehlo.return {carried} : {_F32} }}""")


def _nested(depth):
    text = f"%v{depth} = stablehlo.add %a, %a : {_F32}\n"
    for n in reversed(range(depth)):
        text = f"""%c{n} = stablehlo.constant dense<true> : tensor<i1>
            %v{n} = "stablehlo.if"(%c{n}) ({{ {text} stablehlo.return %v{n + 1} : {_F32} }},
              {{ stablehlo.return %a : {_F32} }}) : (tensor<i1>) -> {_F32}\n"""
    return _main(f"{text} %r = stablehlo.add %v0, %v0 : {_F32}")


_ALWAYS, _NEVER = (f"constant dense<{truth}> : tensor<i1>" for truth in ("true", "false"))
_BELOW = f"compare LT, %x, %zero : ({_F32}, {_F32}) -> tensor<i1>"


def _convert(folder, text):
    path = folder / "module.mlir"
    path.write_text(text)
    begin = time.process_time()
    try:
        return bridge.to_onnx(path)
    finally:
        assert time.process_time() - begin < _LIMIT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_convolved(10**8), "its kernel has 100,000,000 places"),
        (_loop(_ALWAYS), "always true, so it never ends"),
        (_loop(_ALWAYS, "%y"), "always true, so it never ends"),
        (_nested(400), "regions in regions"),
    ],
    ids=["kernel", "always", "always with work", "nested"],
)
def test_refused(tmp_path, text, message):
    with pytest.raises(bridge.InteropError, match=message):
        _convert(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [_doubled(34), _counted(10**12), _table(10**6), _windows(10**9)],
    ids=["doubled", "counted", "table", "windows"],
)
def test_converted(tmp_path, text):
    assert _convert(tmp_path, text).ByteSize() < _BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_doubled(24), 4.0), (_counted(3 << 20), 3.0), (_table(3000), 3.0),
        (_windows(3000), 9004.0), (_loop(_NEVER), 3.0), (_loop(_BELOW), 3.0),
    ],
    ids=["doubled", "counted", "table", "windows", "never", "unchanged"],
)  # fmt: skip
def test_computed(tmp_path, text, expected):
    """The same forms with as much as there is."""
    model, arrays = _convert(tmp_path, text), [np.array(3, np.float32)]
    assert [float(x) for x in (*run(model, arrays), *evaluate(model, arrays))] == [expected] * 2
