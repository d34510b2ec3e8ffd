"""`publish` and `rollback`: versions of a model in the folder that TensorFlow Serving watches."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, cast

from jax import export

from bridge.batching.batch_sizes import parse_sizes
from bridge.core.operations_option import PLAIN, XLA, parse_operations, refuse_for_converters
from bridge.diff import diff
from bridge.inspecting.wording import printable
from bridge.inspecting.written_file import WrittenFile, facts_of
from bridge.retarget import retarget
from bridge.save import SaveOptions, save
from bridge.saving.processes import is_multi_process
from bridge.serving.base_path import MAX_VERSION, BasePath, open_base_path
from bridge.serving.configuration import (
    BATCHING_FILE,
    MODELS_FILE,
    MONITORING_FILE,
    Batching,
    ConfigFiles,
    ModelConfig,
    check_batching,
    models_text,
    monitoring_text,
    parse_batching,
    pinned_versions,
)
from bridge.serving.first_requests import FirstRequests, find_first_requests
from bridge.serving.keywords import check_keywords
from bridge.serving.programs import PROGRAM_FILES, have_same_program
from bridge.serving.server_commands import ServerCommand, compiles, server_commands
from bridge.serving.signatures import ServedSignature, read_signatures
from bridge.serving.warmup import warmup_sizes, write_warmup
from bridge.update import changes_text, write_updated
from savedmodel.files.assets import (
    FIRST_REQUESTS_FILE,
    OWN_BATCHING_FILE,
    PUBLICATION_FILE,
    WARMUP_FILE,
)
from savedmodel.files.folder import write_text
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.records import record_sizes
from savedmodel.files.remote import is_remote
from savedmodel.manifest import (
    MANIFEST_FILE,
    compare_manifest,
    read_manifest,
    renew_manifest,
)
from savedmodel.read import read_proto
from savedmodel.rewrite import add_labels, copy_files
from xla_call_module.errors import (
    FormatError,
    InteropError,
    ShardingError,
    StructureError,
    shown_as_base,
)
from xla_call_module.tracebacks import api_boundary


class PublishOptions(SaveOptions, total=False):
    """The options of `bridge.save` and of `bridge.serving.compose` that `publish` takes."""

    defaults: Mapping[str, Any] | None
    preprocess: Any
    postprocess: Any
    request: Mapping[str, Any] | None
    examples: bool | Mapping[str, Any]
    method: Literal["predict", "classify", "regress"]
    classes: Sequence[str] | None


# The options that put TensorFlow functions around the call.
_COMPOSED = ("preprocess", "postprocess", "request", "examples", "method", "classes")


_UNCHANGED = (
    "unchanged: the newest version has this program, these weights and files for the server, so "
    "none is added (force=True, or --force, makes one)"
)
# They are made anew with every version.
_OF_A_VERSION = frozenset({FIRST_REQUESTS_FILE, MANIFEST_FILE, PUBLICATION_FILE})
# Each means that another publisher has finished.
_ATTEMPTS = 20
_FLAG = "The server then needs --xla_cpu_compilation_enabled=true."
_WITHOUT_FLAGS = 'for servers without this option, publish it with operations="tensorflow"'
_Made: TypeAlias = "tuple[dict[str, Any], Batching | None, tuple[str, ...]]"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Published(WrittenFile):
    """A version that a server can load; `os.fspath` gives its folder.

    Attributes:
        path: the folder or address of the version.
        version: the number of the version.
        warmup: the number of its warmup records.
        removed: the older versions that were removed.
        configs: the files that a server is started with; None where none were written.
        servers: for each platform that TensorFlow Serving has an image for what starts it; none
            after `rollback`.
        first_requests: what XLA compiles at the first request of each size, and how long that takes
            where it was measured; empty after `rollback`.
        copy_of: the version that it is a copy of; None for a new one.
        unchanged: whether it is one that was there already, because the model is the same.
        differences: after `rollback`, the differences of the version that is served now from the
            one that was served before; empty where there are none.
        updated: the names of the variables that have new values in it, where weights were put into
            a file.
        kept: the names of the other ones.
    """

    version: int
    warmup: int = 0
    removed: tuple[int, ...] = ()
    configs: ConfigFiles | None = None
    servers: tuple[ServerCommand, ...] = ()
    first_requests: FirstRequests = field(default_factory=FirstRequests)
    copy_of: int | None = None
    unchanged: bool = False
    differences: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a line for each fact, what starts a server, and each signature."""
        lines = [
            f"version {self.version}: {printable(self.path)}",
            _UNCHANGED if self.unchanged else "",
            *self._rollback_lines(),
            f"{self.warmup} warmup records" if self.warmup else "",
            changes_text(self.updated, self.kept) if self.updated else "",
            f"removed: {', '.join(map(str, self.removed))}" if self.removed else "",
            *(printable(text) for each in self.servers for text in (str(each), each.container)),
            _WITHOUT_FLAGS if any(map(compiles, self.servers)) else "",
            *map(printable, self.first_requests.lines()),
            ", ".join(self._facts()),
            *self._signature_lines(),
        ]
        return "\n".join(line for line in lines if line)

    def _rollback_lines(self) -> list[str]:
        if self.copy_of is None:
            return []
        differences = map(printable, self.differences or ("nothing differs from it",))
        before = "differences from the version that was served before:"
        return [f"a copy of version {self.copy_of}", before, *(f"  {line}" for line in differences)]


@shown_as_base
class _SupersededError(StructureError):
    """Another version has come, which is newer than the one that a version was made of."""


@api_boundary
def publish(
    model: export.Exported | Mapping[str, Any] | str | os.PathLike[str] | Any,
    base_path: str | os.PathLike[str],
    *,
    weights: Any = None,
    version: int | None = None,
    warmup: Any = None,
    batching: Batching | Mapping[str, Any] | Sequence[int] | bool | None = None,
    keep: int | None = None,
    name: str | None = None,
    seed: int = 0,
    measure: float | None = None,
    force: bool = False,
    labels: Mapping[str, Sequence[str]] | None = None,
    **options: Unpack[PublishOptions],
) -> Published:
    """Write a model as the next version below a folder that TensorFlow Serving watches.

    By default the version runs TensorFlow's own operations, on every server and in every batch
    size. With `operations="xla"` it calls the module, which XLA compiles for each size if the
    server is started with the option that is returned and printed.

    Where the newest version has the same program, weights and files for the server already, there
    is no new one: what is returned is that version, and says that it is `unchanged`.

    The version appears whole, warmup records included, or not at all: it is put together under a
    name that Serving does not look at, and renamed. What a killed publisher has left is removed by
    the next one. Several may publish at once, and each gets a number of its own. At an address
    such as `gs://bucket/model`, where there is no renaming, saved_model.pb comes last, and only one
    may publish at a time.

    Args:
        model: what `bridge.save` takes, or the folder of a SavedModel of any writer, which is
            copied, as it is but for `operations`, if it is what its manifest says. With `weights`
            None stands for the newest version.
        base_path: the folder above the versions.
        weights: new values for variables of the model, which is a SavedModel then; as
            `bridge.update` takes them for `params`. Its program stays byte for byte, its warmup
            records and its configuration come along, and on a disk what does not change is linked.
            If another publisher is quicker, its version is the newest, to which they are applied
            again.
        version: its number; by default the next after the highest that is there. Serving serves the
            highest one, so a lower one is for servers that are told which.
        warmup: batch sizes, as `(1, 8, 32)`, or example inputs, as `bridge.serving.add_warmup`
            takes them; None for no warmup. A signature that assigns variables gets no requests
            unless a mapping names its key.
        batching: allowed batch sizes, a `Batching` or its fields as a mapping, or True for the
            sizes of `warmup`, or of its examples, or `batch_buckets`, which fields without any
            sizes stand for, too. They are checked against the signatures, and written to
            `batching_parameters.txt` beside
            the versions and `batching_params.pbtxt` in this one; `models.config` and
            `monitoring.config` are written, too, unless they are there. An example of `warmup` is
            repeated to each allowed size.
        keep: how many versions stay, this one included; by default all. Never removed are the
            highest, this one, and those that the `models.config` there names.
        name: of the model, in its configuration; by default the folder's.
        seed: of the random inputs that warm it up.
        measure: for how many seconds TensorFlow may run, in a process of its own that is ended
            then, to measure the first request of each size before the version appears; by default
            nothing is run. The sizes are those of `warmup`, `batching` and `batch_buckets`, or 1.
            The seconds are of this machine's CPU, and are written to
            `assets.extra/jax_tf_bridge_first_requests.json`.
        force: whether there is a new version although nothing has changed. With `version` there
            always is.
        labels: for names of outputs a text for each index: the signature then returns, too, for
            `score` an output `score_label`. For an output of integers it has the text at each
            index, for one of floats the text of the greatest along the last dimension. JAX and
            `bridge.load` have no such output.
        options: `operations`, `"tensorflow"` by default; `params`, `gradient_order` and whatever
            else `bridge.save` takes; with TensorFlow also `preprocess`, `postprocess`, `request`,
            `examples`, `method` and `classes` of `bridge.serving.compose`, for a SavedModel in a
            folder, too.

    Raises:
        StructureError: a batch size does not fit the module or its constraints; `version` is
            there; what `bridge.save` and `bridge.serving.add_warmup` refuse.
        ShardingError: the parameters are spread over several processes.
        MissingDependencyError: `measure` needs TensorFlow.
        InteropError, OSError: as `bridge.save`. Then no version has appeared.

    Example:
        >>> import bridge.serving, jax
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(x)
        >>> bridge.serving.publish(exported, "models/sine", warmup=(1, 8), batching=True).version
        1
        >>> bridge.serving.publish(exported, "models/sine", warmup=(1, 8), batching=True).unchanged
        True
        >>> published = bridge.serving.publish(exported, "models/sine", keep=1)
        >>> published.version, published.removed
        (2, (1,))
        >>> predict = lambda params, x: params["w"] * x
        >>> first = bridge.serving.publish(
        ...     predict, "models/scale", params={"w": 1.0}, args="f32[b]", warmup=(1, 8)
        ... )
        >>> second = bridge.serving.publish(None, "models/scale", weights={"w": 2.0})
        >>> second.version, second.warmup
        (2, 2)
    """
    refuse_for_converters(options, "bridge.serving.publish")
    check_keywords(publish, options, PublishOptions)
    base = open_base_path(base_path)
    _check_numbers(version, keep)
    _check_limit(measure)
    _check_labels(labels, weights)
    if version is not None and version in base.taken():
        raise _taken(base, version)
    own_name = name if name is not None else base.path.rpartition("/")[2]
    make = partial(
        _make, model, base, base_path, weights, warmup, batching, options, labels,
        version=version, name=own_name, seed=seed, measure=measure, force=force,
    )  # fmt: skip
    facts, wanted, platforms = _until_placed(make)
    configs = None if wanted is None else _configure(base, own_name, wanted, platforms)
    removed = () if keep is None else _remove_old(base, keep, facts["version"])
    named = (f"--model_name={own_name}", f"--model_base_path={base.path}")
    files = named if configs is None else dataclasses.replace(configs, platforms=()).options
    servers = server_commands(base.path, files, platforms, facts["tensorflow"])
    return Published(removed=removed, configs=configs, servers=servers, **facts)


def _until_placed(make: Callable[[], _Made]) -> _Made:
    """Make a version, again as long as others are quicker whose version it would have to follow."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(_SupersededError):
            return make()
    return make()


def _make(
    model: Any,
    base: BasePath,
    base_path: str | os.PathLike[str],
    weights: Any,
    warmup: Any,
    batching: Any,
    options: PublishOptions,
    labels: Mapping[str, Sequence[str]] | None,
    *,
    version: int | None,
    name: str,
    seed: int,
    measure: float | None,
    force: bool,
) -> _Made:
    """Make a version and let it appear; return its facts, the batching, and the platforms."""
    with base.new_version() as folder:
        changes: dict[str, Any] = {}
        newest = None
        if weights is None:
            _fill(model, folder, base_path, options)
        else:
            _refuse_multi_process(weights, "bridge.update")
            changes, newest = _fill_with_weights(model, folder, base, weights, options)
        if labels:
            add_labels(folder, labels)
        sizes = parse_sizes(warmup)
        if sizes is None and batching is not None:
            sizes = _bucket_sizes(folder) or _example_sizes(folder, warmup)
        wanted = parse_batching(batching, sizes=sizes or ())
        if warmup is not None or wanted is not None:
            _prepare(folder, warmup, wanted, name=name, seed=seed)
        signatures = _signatures(folder)
        allowed = () if wanted is None else wanted.allowed_batch_sizes
        first = find_first_requests(folder, signatures, allowed, limit=measure, seed=seed)
        if any(option is not None for option in (warmup, wanted, measure)):
            _renew_manifest(folder)
        facts = {"warmup": _count_records(folder), "first_requests": first, **facts_of(folder)}
        facts |= changes
        platforms = tuple({name: None for each in signatures for name in each.platforms})
        is_new = force or version is not None
        there = None if is_new else _equal_version(base, folder)
        if there is not None:
            facts["unchanged"] = True
        path, number = there or _place(base, folder, version, newest=newest)
    return {"path": path, "version": number, **facts}, wanted, platforms


def _equal_version(base: BasePath, folder: Path) -> tuple[str, int] | None:
    """Return the path and number of the newest version if it has the program and files of a folder.

    Another place in the source, which is in the modules for messages, is no other program.
    """
    versions = base.versions()
    newest = max(versions, default=0)
    without = _OF_A_VERSION | PROGRAM_FILES
    if not versions or not base.has_files(versions[newest], folder, without=without):
        return None
    if not base.has_files(versions[newest], folder, without=_OF_A_VERSION):
        there = folder.with_name("newest")
        base.copy(versions[newest], there)
        if not have_same_program(there, folder):
            return None
    return f"{base.path}/{versions[newest]}", newest


def _fill_with_weights(
    model: Any, folder: Path, base: BasePath, weights: Any, options: PublishOptions
) -> tuple[dict[str, Any], int | None]:
    """Write a SavedModel with new values to a folder that does not exist yet.

    Return the names of the variables, and the version that it was made of; None for a model of the
    user.
    """
    if model is not None:
        if not isinstance(model, str | os.PathLike):
            raise StructureError(
                f"weights= go into a SavedModel, and model is a {type(model).__name__}. To do: "
                "pass the folder of one, or None for the newest version; or the weights as params=."
            )
        source = folder.with_name("source")
        _refuse_options(_without_operations(options), "weights= are put into a SavedModel")
        _fill(model, source, base.path, options)
        written = write_updated(source, folder, weights, where=os.fspath(model))
        return {"updated": written.updated, "kept": written.kept}, None
    _refuse_options(options, "weights= are put into the newest version")
    versions = base.versions()
    if not versions:
        raise StructureError(
            f"{base.path} has no version to put new weights into. To do: publish a model first, or "
            "pass the folder of one."
        )
    newest = max(versions)
    source = folder.with_name("source")
    base.copy(versions[newest], source)
    where = f"version {newest} of {base.path}"
    written = write_updated(source, folder, weights, where=where)
    return {"updated": written.updated, "kept": written.kept}, newest


@api_boundary
def rollback(
    base_path: str | os.PathLike[str],
    *,
    to: int | None = None,
    keep: int | None = None,
) -> Published:
    """Serve an older version again: it is published once more, under the next number.

    A server takes it as it takes every new version, and lets go of the bad one when it is loaded;
    nothing is removed. On a disk the files are not copied but get one more name. A server whose
    configuration names versions or labels is told by that instead (`bridge.serving.write_configs`).

    Args:
        base_path: the folder above the versions.
        to: the version to go back to; by default the one before the newest. A version that is
            itself such a copy counts as the one that it is a copy of, so that two rollbacks go back
            by two versions.
        keep: as for `publish`.

    Raises:
        StructureError: there is no such version.
        OSError: a file cannot be read or written.

    Example:
        >>> import bridge.serving, jax
        >>> for function in (jax.numpy.sin, jax.numpy.cos):
        ...     exported = jax.export.export(jax.jit(function))(1.0)
        ...     published = bridge.serving.publish(exported, "models/wave")
        >>> back = bridge.serving.rollback("models/wave")
        >>> back.version, back.copy_of, back.differences[0]
        (3, 1, '...')
    """
    base = open_base_path(base_path)
    _check_numbers(None, keep)
    versions = base.versions()
    source = _source(base, versions, to)
    origin = _origin(base, versions[source], source)
    with base.new_version() as folder:
        base.copy(versions[source], folder)
        (folder / PUBLICATION_FILE).parent.mkdir(exist_ok=True)
        # The old one has another name in the older version.
        (folder / PUBLICATION_FILE).unlink(missing_ok=True)
        write_text(folder / PUBLICATION_FILE, json.dumps({"copy_of": origin}))
        records = _count_records(folder)
        facts = facts_of(folder)
        facts["differences"] = _differences(base, versions[max(versions)], folder)
        path, number = _place(base, folder, None)
    removed = () if keep is None else _remove_old(base, keep, number)
    return Published(
        path=path, version=number, warmup=records, removed=removed, copy_of=origin, **facts
    )


def _differences(base: BasePath, served: str, folder: Path) -> tuple[str, ...]:
    """Return the differences of a new version from the one that is served, a text for each."""
    if base.has_files(served, folder, without=_OF_A_VERSION):
        return ()
    before = folder.with_name("before")
    base.copy(served, before)
    try:
        report = diff(before, folder)
        found = tuple(map(str, (*report.differences, *report.weights)))
        if found or not base.has_files(served, folder, without=_OF_A_VERSION | PROGRAM_FILES):
            return found or ("other files beside the model, such as warmup records",)
        if have_same_program(before, folder):
            return ("the places in the source that messages name",)
        return ("TensorFlow's operations around the calls, or their names",)
    except FormatError:  # a file of another program, which nothing here reads
        return ("other files, which bridge.diff does not read",)


def _signatures(folder: Path) -> tuple[ServedSignature, ...]:
    """Return the signatures of a version; none where it has none that a server could call."""
    with suppress(FormatError):
        return read_signatures(folder)
    return ()


def _bucket_sizes(folder: Path) -> tuple[int, ...]:
    """Return the sizes that any of the signatures pads batches to."""
    buckets = [signature.buckets for signature in read_signatures(folder)]
    return tuple(sorted({size for sizes in buckets for size in sizes}))


def _example_sizes(folder: Path, warmup: Any) -> tuple[int, ...]:
    """Return the batch sizes that example inputs have; none where they are no examples."""
    if warmup is None or warmup is True:
        return ()
    return warmup_sizes(read_signatures(folder), warmup)


def _source(base: BasePath, versions: Mapping[int, str], to: int | None) -> int:
    there = f"{base.path} has the versions {sorted(versions) or 'none'}"
    if to is not None:
        if to not in versions:
            raise StructureError(f"{there}, and not {to!r}. To do: go back to one of them.")
        return to
    newest = max(versions, default=0)
    limit = _origin(base, versions[newest], newest) if versions else 0
    older = [number for number in versions if number < limit]
    if not older:
        raise StructureError(
            f"{there}, and none before {limit or 'them'} to go back to. To do: publish another, or "
            "say which one by to=."
        )
    return max(older)


def _origin(base: BasePath, name: str, number: int) -> int:
    """Return the version that one is a copy of; itself for a new one."""
    text = base.read_text(f"{name}/{PUBLICATION_FILE}")
    if text is None:
        return number
    try:
        origin = json.loads(text)["copy_of"]
        if type(origin) is not int or not 1 <= origin <= MAX_VERSION:
            raise ValueError(f"copy_of is {origin!r:.40}")
        return origin
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(
            f"{PUBLICATION_FILE} of version {number} is damaged: {error!r}. To do: remove it, or "
            "say which version to go back to by to=."
        ) from error


def _check_numbers(version: int | None, keep: int | None) -> None:
    for what, value in (("version", version), ("keep", keep)):
        given: Any = value  # users may pass anything
        whole = isinstance(given, int) and not isinstance(given, bool)
        if given is not None and not (whole and 1 <= given <= MAX_VERSION):
            raise StructureError(f"{what}={given!r}; expected a whole number of at least 1.")


def _check_limit(measure: Any) -> None:
    is_number = isinstance(measure, int | float) and not isinstance(measure, bool)
    if measure is not None and not (is_number and 0 < measure <= threading.TIMEOUT_MAX):
        raise StructureError(f"measure={measure!r}; expected a number of seconds, such as 60.")


def _check_labels(labels: Any, weights: Any) -> None:
    if labels is None:
        return
    if weights is not None:
        raise StructureError(
            "weights= go into a program that has its labels already, so labels= has no effect. To "
            "do: leave it out, or publish the model again with params= and labels=."
        )
    is_mapping = isinstance(labels, Mapping) and all(isinstance(name, str) for name in labels)
    for texts in labels.values() if is_mapping else [None]:
        is_list = isinstance(texts, Sequence) and not isinstance(texts, str | bytes)
        if not is_list or not texts or not all(map(_is_text, texts)):
            raise StructureError(
                f"labels={labels!r:.80}; expected for names of outputs a list of texts, such as "
                '{"score": ["cat", "dog"]}.'
            )


def _is_text(value: Any) -> bool:
    """Return whether a value is a string that UTF-8 can encode."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _fill(
    model: Any, folder: Path, base_path: str | os.PathLike[str], options: PublishOptions
) -> None:
    """Write or copy the SavedModel to a folder that does not exist yet."""
    options = {"operations": PLAIN, **options}
    if isinstance(model, str | os.PathLike):
        _fill_with_file(model, folder, base_path, options)
        return
    _refuse_multi_process(options.get("params"), "bridge.save")
    try:
        _write(model, folder, options)
    except InteropError as error:
        if not _is_plain(options):
            raise
        compiled: PublishOptions = {**options, "operations": XLA}
        try:
            with warnings.catch_warnings(action="ignore"):
                _write(model, folder.with_name("compiled"), compiled)
        except Exception:  # noqa: BLE001 - whatever it is, the other way is none
            raise error from error.__cause__
        raise _with_other_way(error) from error


def _fill_with_file(
    model: str | os.PathLike[str],
    folder: Path,
    base_path: str | os.PathLike[str],
    options: PublishOptions,
) -> None:
    """Copy a SavedModel, with TensorFlow's own operations for what it calls unless XLA is asked."""
    composed: Any = {name: value for name, value in options.items() if name in _COMPOSED}
    others: Any = {name: value for name, value in options.items() if name not in _COMPOSED}
    _refuse_options(_without_operations(others), f"{os.fspath(model)} is a SavedModel already")
    if is_remote(model):
        raise StructureError(f"{model} is an address. To do: copy the SavedModel to a folder.")
    _refuse_inside(model, base_path)
    source = Path(os.path.abspath(model))
    place = folder.with_name("copied") if composed else folder
    read_one_version(source, lambda opened: _copy_model(opened, place))
    if _is_plain(options) and any(signature.platforms for signature in _signatures(place)):
        modules = place.rename(place.with_name("modules"))
        try:
            retarget(modules, to=place, operations=PLAIN)
        except InteropError as error:
            raise _with_other_way(error) from error
    if composed:
        from bridge.serving.compose import compose

        compose(place, folder, **composed)


def _without_operations(options: PublishOptions) -> PublishOptions:
    others = {name: value for name, value in options.items() if name != "operations"}
    return cast("PublishOptions", others)


def _is_plain(options: PublishOptions) -> bool:
    return parse_operations(options.get("operations", PLAIN))


def _write(model: Any, folder: Path, options: PublishOptions) -> None:
    plain: Any = options  # those of `compose` are no options of `save`
    if any(name in options for name in _COMPOSED):
        from bridge.serving.compose import compose

        compose(model, folder, **plain)
    else:
        save(model, folder, **plain)


def _with_other_way(error: InteropError) -> InteropError:
    """Return the error of what TensorFlow's own operations do not compute, and XLA does."""
    text = str(error)
    other = "" if 'operations="xla"' in text else ' Or pass operations="xla".'
    return type(error)(f"{text}{other} {_FLAG}")


def _refuse_multi_process(params: Any, verb: str) -> None:
    if is_multi_process(params):
        raise ShardingError(
            "The parameters are spread over several processes, and each would choose a version "
            f"number. To do: call {verb} in all of them, and publish the folder in one."
        )


def _refuse_options(options: PublishOptions, why: str) -> None:
    if options:
        raise StructureError(
            f"{why}, so {sorted(options)[0]}= has no effect. To do: leave it out, or pass the "
            "exported function."
        )


def _refuse_inside(model: str | os.PathLike[str], base_path: str | os.PathLike[str]) -> None:
    source = Path(os.path.abspath(model))
    if source in Path(os.path.abspath(base_path)).parents:
        raise StructureError(
            f"{os.fspath(base_path)} is inside of {source}, which is to be copied. To do: take "
            "another base_path."
        )


def _copy_model(source: ModelFolder, folder: Path) -> None:
    read_proto(source)
    _check_manifest(source)
    # An earlier attempt, in which the source was replaced, may have left a part.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    copy_files(source, folder, without=(PUBLICATION_FILE,), linked=False)


def _check_manifest(folder: ModelFolder) -> None:
    if read_manifest(folder) is not None and (differences := compare_manifest(folder)):
        raise FormatError(
            f"{folder.path} is not what its manifest says: {'; '.join(differences[:3])}. To do: "
            f"copy it again, write it again, or remove {MANIFEST_FILE}."
        )


def _prepare(folder: Path, warmup: Any, batching: Batching | None, *, name: str, seed: int) -> None:
    """Write the files that Serving reads in a version besides the model."""
    signatures = read_signatures(folder)
    allowed: tuple[int, ...] = ()
    if batching is not None:
        check_batching(signatures, batching)
        allowed = batching.allowed_batch_sizes
        own = folder / OWN_BATCHING_FILE
        own.unlink(missing_ok=True)
        write_text(own, batching.to_text())
    if warmup is not None:
        write_warmup(folder, signatures, warmup, name=name, seed=seed, allowed=allowed)


def _renew_manifest(folder: Path) -> None:
    if (manifest := read_manifest(folder)) is not None:
        renew_manifest(folder, manifest)


def _count_records(folder: Path) -> int:
    file = folder / WARMUP_FILE
    return sum(1 for _ in record_sizes(file)) if file.exists() else 0


def _place(
    base: BasePath, folder: Path, version: int | None, *, newest: int | None = None
) -> tuple[str, int]:
    """Move the folder to its number, or to the next free one; return its path and number."""
    while True:
        with base.numbering():
            if newest is not None and max(base.versions(), default=0) != newest:
                raise _SupersededError(
                    f"Another version was published to {base.path} while new weights were put into "
                    f"version {newest}. To do: try again once other publishers pause."
                )
            number = version if version is not None else max([0, *base.taken()]) + 1
            if number > MAX_VERSION:
                raise StructureError(
                    f"{base.path} has the version {MAX_VERSION}, the highest possible. To "
                    "do: pass version=, or take another base_path."
                )
            try:
                return base.place(folder, number), number
            except FileExistsError as error:
                if version is not None:
                    raise _taken(base, version) from error
                # A publisher on another machine was quicker.


def _taken(base: BasePath, version: int) -> StructureError:
    return StructureError(
        f"{base.path} has a version {version} already, and a version never changes. To "
        "do: leave version out for the next free number, or take another."
    )


def _configure(
    base: BasePath, name: str, batching: Batching, platforms: tuple[str, ...]
) -> ConfigFiles:
    """Write the files beside the versions, without those that exist and may have been edited."""
    paths = {BATCHING_FILE: base.write_text(BATCHING_FILE, batching.to_text())}
    texts = {
        MODELS_FILE: models_text([ModelConfig(name, base.path)], platforms),
        MONITORING_FILE: monitoring_text(),
    }
    for file, text in texts.items():
        there = base.read_text(file) is not None
        paths[file] = f"{base.path}/{file}" if there else base.write_text(file, text)
    return ConfigFiles(paths[MODELS_FILE], paths[MONITORING_FILE], paths[BATCHING_FILE], platforms)


def _remove_old(base: BasePath, keep: int, published: int) -> tuple[int, ...]:
    """Remove old versions that no configuration names, and return their numbers."""
    text = base.read_text(MODELS_FILE)
    where = f"{base.path}/{MODELS_FILE}"
    needed = {published} if text is None else {published, *pinned_versions(text, where=where)}
    versions = base.versions()
    old = [number for number in sorted(versions)[:-keep] if number not in needed]
    for number in old:
        base.remove(versions[number])
    return tuple(old)
