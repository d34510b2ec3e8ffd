"""The dimension numbers of gathers, scatters and convolutions, read from their attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xla_call_module.stablehlo.attributes import Attributes


@dataclass(frozen=True, slots=True)
class SlicePlaces:
    """The dimension numbers by which vectors of start indices say where slices lie in an array.

    StableHLO has one form for gathers, which read the slices, and for scatters, which write them.

    Attributes:
        mapped: for each component of a vector the dimension of the array that it is along.
        batching: the dimensions of the array in which a slice has the place of its vector.
        index_batching: the dimensions of the indices that say that place.
        dropped: the dimensions of the array, of size 1 in a slice, that slices are without.
        window: the places of the other dimensions of a slice in the array of all slices.
        vector_axis: the dimension of the indices along which a vector lies; their rank for scalars.
    """

    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    dropped: tuple[int, ...]
    window: tuple[int, ...]
    vector_axis: int

    @classmethod
    def of_gather(cls, op: Attributes) -> SlicePlaces:
        """Return the places that the attribute of a gather says."""
        numbers = op.dimension_numbers()
        return cls(
            mapped=tuple(numbers.start_index_map),
            batching=tuple(numbers.operand_batching_dims),
            index_batching=tuple(numbers.start_indices_batching_dims),
            dropped=tuple(numbers.collapsed_slice_dims),
            window=tuple(numbers.offset_dims),
            vector_axis=numbers.index_vector_dim,
        )

    @classmethod
    def of_scatter(cls, op: Attributes) -> SlicePlaces:
        """Return the places that the attribute of a scatter says."""
        numbers = op.dimension_numbers()
        return cls(
            mapped=tuple(numbers.scattered_dims_to_operand_dims),
            batching=tuple(numbers.input_batching_dims),
            index_batching=tuple(numbers.scatter_indices_batching_dims),
            dropped=tuple(numbers.inserted_window_dims),
            window=tuple(numbers.update_window_dims),
            vector_axis=numbers.index_vector_dim,
        )

    def window_axes(self, rank: int) -> list[int]:
        """Return the dimensions of an array of some rank that slices have."""
        return [axis for axis in range(rank) if axis not in (*self.dropped, *self.batching)]

    def other_axes(self, rank: int) -> list[int]:
        """Return the dimensions of the array of all slices, of some rank, that tell them apart."""
        return [axis for axis in range(rank) if axis not in self.window]

    def index_axes(self, rank: int) -> list[int]:
        """Return the dimensions of indices of some rank, without that of the vectors."""
        return [axis for axis in range(rank) if axis != self.vector_axis]

    def positions(self, rank: int, slices_rank: int) -> dict[int, int]:
        """Return the axis of the array of all slices for each axis of the operand."""
        others = self.other_axes(slices_rank)
        leading = [others[number] for number in self.leading]
        places = [(self.window_axes(rank), self.window), (self.batching, leading)]
        return {axis: at for axes, ats in places for axis, at in zip(axes, ats, strict=True)}

    @property
    def leading(self) -> tuple[int, ...]:
        """The dimensions that are `index_batching`, among those that tell slices apart."""
        return tuple(axis - (axis > self.vector_axis) for axis in self.index_batching)


def read_convolution_dimensions(op: Attributes) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the dimensions of a convolution's input, kernel and result, in order.

    The attribute is such as `#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`.
    """
    parts = re.findall(r"\[([^\]]*)\]", op.text("dimension_numbers"))
    inputs, kernels, outputs = ([name.strip() for name in part.split(",")] for part in parts)
    return inputs, kernels, outputs
