"""A sharding as XLA writes it: the text of the module attribute `mhlo.sharding`.

Source: xla/hlo/ir/hlo_sharding.cc, `HloSharding::Print`.
"""

from __future__ import annotations

import re

from xla_call_module.errors import FormatError
from xla_call_module.shardings.array_sharding import (
    MANUAL,
    MAXIMAL,
    REPLICATED,
    TILED,
    TUPLE,
    UNKNOWN,
    UNREDUCED,
    Sharding,
    maximal,
)
from xla_call_module.shardings.device_order import DeviceOrder, iota_order, listed_order

_WORDS = (REPLICATED, MANUAL, UNKNOWN, UNREDUCED)
_NUMBERS = r"\d{1,9}(?:,\d{1,9})*"
_MAXIMAL = re.compile(r"\{maximal device=(\d{1,9})\}")
_TILED = re.compile(
    rf"\{{devices=\[({_NUMBERS})\](?:<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?|({_NUMBERS}))"
    r"(?: last_tile_dims=\{([a-z]+(?:, ?[a-z]+)*)\}|( last_tile_dim_replicate))?\}"
)
_ELEMENT = re.compile(r"(?:/\*index=\d+\*/)?(\{(?:[^{}]|\{[^{}]*\})*\})(?:, ?|$)")
# Where in the program the sharding was set, which says nothing of the array.
_METADATA = re.compile(
    r' metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})*\}'
)
# How XLA marks an array of which each device has something else than a summand.
_NO_SUM = re.compile(r'op_type="sdy::reduction_op" op_name="(?!SUM")')
_INDEXED = 5


def sharding_to_text(sharding: Sharding) -> str:
    """Return the text of a sharding, such as `{devices=[4,1,2]<=[8] last_tile_dim_replicate}`.

    Kinds of memory and names of axes have no place in it.

    Example:
        >>> from xla_call_module.shardings.array_sharding import tiled
        >>> sharding_to_text(tiled([4, 1, 2], subgroups=["replicated"]))
        '{devices=[4,1,2]<=[8] last_tile_dim_replicate}'
    """
    if sharding.kind == TUPLE:
        parts = []
        for index, element in enumerate(sharding.elements):
            mark = f"/*index={index}*/" if index and index % _INDEXED == 0 else ""
            parts.append(mark + sharding_to_text(element))
        return "{" + ", ".join(parts) + "}"
    if sharding.order is None:
        return f"{{{sharding.kind}}}"
    if sharding.kind == MAXIMAL:
        return f"{{maximal device={sharding.order.devices()[0]}}}"
    tail = ""
    if sharding.subgroups == (REPLICATED,):
        tail = " last_tile_dim_replicate"
    elif sharding.subgroups:
        tail = f" last_tile_dims={{{', '.join(sharding.subgroups)}}}"
    return f"{{devices=[{_join(sharding.tiles)}]{_order_to_text(sharding.order)}{tail}}}"


def sharding_from_text(text: str) -> Sharding:
    """Return the sharding that a text says.

    Example:
        >>> sharding_from_text("{devices=[2,2]<=[2,2]T(1,0)}").order.devices()
        (0, 2, 1, 3)
    """
    plain = text if _NO_SUM.search(text) else _METADATA.sub("", text)
    if plain.startswith("{{") or plain == "{}":
        return Sharding(TUPLE, elements=tuple(map(sharding_from_text, _elements(plain))))
    if plain[1:-1] in _WORDS and plain == f"{{{plain[1:-1]}}}":
        return Sharding(plain[1:-1])
    if (match := _MAXIMAL.fullmatch(plain)) is not None:
        return maximal(int(match[1]))
    if (match := _TILED.fullmatch(plain)) is None:
        raise FormatError(
            f"The sharding {text[:200]} has another form than XLA's tiles of devices. To do: "
            "export the function again."
        )
    if match[4]:
        order = listed_order(_numbers(match[4]))
    else:
        order = iota_order(_numbers(match[2]), _numbers(match[3] or ""))
    subgroups = tuple(re.split(", ?", match[5])) if match[5] else ()
    return Sharding(TILED, _numbers(match[1]), order, (REPLICATED,) if match[6] else subgroups)


def _elements(text: str) -> list[str]:
    elements, position = [], 1
    while position < len(text) - 1:
        element = _ELEMENT.match(text, position, len(text) - 1)
        if element is None or element[1].startswith("{{"):
            raise FormatError(f"The sharding {text[:200]} is not a tuple of shardings.")
        elements.append(element[1])
        position = element.end()
    return elements


def _order_to_text(order: DeviceOrder) -> str:
    if not order.is_iota:
        return _join(order.listed)
    transposed = order.transpose != tuple(range(len(order.transpose)))
    return f"<=[{_join(order.reshape)}]" + (f"T({_join(order.transpose)})" if transposed else "")


def _join(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
