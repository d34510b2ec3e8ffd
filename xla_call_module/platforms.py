"""Platform names: JAX's and those of the op's `platforms` attribute."""

from __future__ import annotations

from collections.abc import Iterable

from xla_call_module.errors import PlatformError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# What a function is lowered for when nobody says otherwise: what TensorFlow's wheels and TPU hosts
# run on, with the one first that a check-free call takes elsewhere.
DEFAULT_PLATFORMS = ("cpu", "cuda", "tpu")

# `gpu` means both kinds, as in jax.default_backend() and jax.lax.platform_dependent.
_ALIASES = {"gpu": ("cuda", "rocm")}


def parse_platforms(names: Iterable[str]) -> tuple[str, ...]:
    """Return lowering platforms for `jax.export.export`: aliases expanded, without repeats.

    Example:
        >>> parse_platforms(["cpu", "gpu"])
        ('cpu', 'cuda', 'rocm')
    """
    if isinstance(names, str):
        names = (names,)
    expanded: dict[str, None] = {}
    for name in names:
        if not isinstance(name, str):
            raise PlatformError(
                f"{name!r} is not a platform; expected some of {', '.join(PLATFORMS)}."
            )
        for platform in _ALIASES.get(name.lower(), (name.lower(),)):
            expanded[_known(platform, name)] = None
    if not expanded:
        raise PlatformError(f"No platform is named; expected some of {', '.join(PLATFORMS)}.")
    return tuple(expanded)


def platform_to_tensorflow(platform: str) -> str:
    """Return the name in the op's `platforms` attribute, where XLA compares upper-case names."""
    return _known(platform, platform).upper()


def platform_from_tensorflow(name: str) -> str:
    """Return JAX's name for an entry of the op's `platforms` attribute."""
    if name != name.upper():
        raise PlatformError(
            f"The platform {name!r} of an XlaCallModule node is not in upper case, "
            "so TensorFlow would never match it. To do: write the file again."
        )
    return _known(name.lower(), name)


def _known(platform: str, given: str) -> str:
    if platform not in PLATFORMS:
        raise PlatformError(
            f"The platform {given!r} is unknown; expected some of {', '.join(PLATFORMS)}, "
            "or 'gpu' for cuda and rocm."
        )
    return platform


def platform_hint(platforms: Iterable[str]) -> str:
    """Return a suffix for the name of a node that may be run on another platform.

    TensorFlow's error, which nothing of ours sees, names the node; so the name has the cures.

    Example:
        >>> platform_hint(["tpu"])
        '_is_for_tpu_only__export_it_again_with_platforms_or_set_disabled_checks_platform'
    """
    listed = "_".join(platforms)
    return f"_is_for_{listed}_only__export_it_again_with_platforms_or_set_disabled_checks_platform"
