"""The artifacts that TensorFlow reads as JAX wrote them, told without parsing them.

TensorFlow since 2.20 looks at the version of each operation, and not at that of the artifact. So
one whose operations are all old needs no older form, and making one takes longer than all else that
is done to a small module. What is not listed here is not known, and takes that way.
"""

from __future__ import annotations

from typing import Final

from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.stablehlo.bytecode import mentions, operation_versions
from xla_call_module.versions import Release

# Newer ones may have new types, whose names are no text in an artifact. From 1.16 to 1.18 only
# collectives and custom calls change, says the version log of openxla/stablehlo,
# stablehlo/dialect/VhloDialect.td.
_LAST_STABLEHLO = (1, 18)
# What comes out the same at StableHLO 1.12.1, which TensorFlow 2.20 reads: found by serializing
# programs at both versions. Without custom calls and composites, of which the target tells.
_OLD: Final = frozenset(
    map(
        bytes.decode,
        b"""
    abs_v1 add_v1 and_v1 atan2_v1 bitcast_convert_v1 broadcast_in_dim_v1 call_v1 case_v1 cbrt_v2
    ceil_v1 cholesky_v1 clamp_v1 compare_v1 complex_v1 concatenate_v1 constant_v1 convert_v1
    convolution_v1 cosine_v2 count_leading_zeros_v1 divide_v1 dot_general_v2
    dynamic_broadcast_in_dim_v1 dynamic_gather_v2 dynamic_iota_v1 dynamic_reshape_v1
    dynamic_slice_v1 dynamic_update_slice_v1 exponential_minus_one_v2 exponential_v2 fft_v1 floor_v1
    func_v1 gather_v2 get_dimension_size_v1 imag_v1 iota_v1 is_finite_v1 log_plus_one_v2 log_v2
    maximum_v1 minimum_v1 multiply_v1 negate_v1 not_v1 optimization_barrier_v1 or_v1 pad_v1
    popcnt_v1 power_v1 real_v1 reduce_precision_v1 reduce_v1 reduce_window_v1 remainder_v1
    reshape_v1 return_v1 reverse_v1 round_nearest_afz_v1 round_nearest_even_v1 rsqrt_v2 scatter_v2
    select_and_scatter_v1 select_v1 shift_left_v1 shift_right_arithmetic_v1 shift_right_logical_v1
    sign_v1 sine_v2 slice_v1 sort_v1 sqrt_v2 subtract_v1 tan_v2 tanh_v2 transpose_v1
    triangular_solve_v1 while_v1 xor_v1
    """.split(),
    )
)


def is_plain(artifact: bytes) -> bool:
    """Return whether an artifact has none but the listed operations.

    None of them calls anything outside of the module, or needs another device or the host.
    """
    return read_artifact_version(artifact)[:2] <= _LAST_STABLEHLO and _OLD.issuperset(
        map("".join, operation_versions(artifact))
    )


def is_read_as_written(call: CallModule, release: Release) -> bool:
    """Return whether a release of TensorFlow is known to run a call's artifact as it is."""
    return (
        release.reads_newer
        and not call.uses_shardy
        and not mentions(call.module, [b"sdy"])
        and is_plain(call.module)
    )
