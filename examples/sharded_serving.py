"""Export a transformer block for a mesh of eight devices, and serve it over them.

One process, which has one device, exports the block for a mesh of 2 x 4: the batch is split along
`data`, heads and hidden units along `model`. It writes a SavedModel. A second process has eight
devices (of the CPU; on a machine with eight accelerators it is those) and loads it on a mesh: each
device reads its part of each parameter. A small HTTP server collects requests into batches. With
JAX before 0.9 a file with a symbolic batch has no names for the axes of its mesh, and this ends in
an error that says so.

    python examples/sharded_serving.py [FOLDER]
"""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LENGTH, WIDTH, HEADS, HIDDEN = 16, 64, 8, 256
REQUESTS, CLIENTS, LARGEST_BATCH = 24, 6, 8
DEVICES = 8


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        export_and_save(folder)
        subprocess.run([sys.executable, __file__, "--serve", str(folder)], check=True)


# On one device


def export_and_save(folder: Path) -> None:
    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import bridge

    def block(params, x):
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * params["norm"]
        q, k, v = (jnp.einsum("bld,dhk->blhk", h, params[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k) * (HEADS / WIDTH) ** 0.5
        causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
        x = x + jnp.einsum("bhlm,bmhk,hkd->bld", weights, v, params["out"])
        return x + jax.nn.gelu(x @ params["up"]) @ params["down"]

    head = WIDTH // HEADS
    shapes = {
        **dict.fromkeys("qkv", (WIDTH, HEADS, head)),
        "norm": (WIDTH,),
        "out": (HEADS, head, WIDTH),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    specs = {
        **dict.fromkeys("qkv", P(None, "model")),
        "norm": P(),
        "out": P("model"),
        "up": P(None, "model"),
        "down": P("model"),
    }
    random = np.random.default_rng(0)
    params = {k: random.normal(size=s).astype("float32") / 8 for k, s in shapes.items()}

    # A mesh of no devices in particular: nothing here needs eight.
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    of_params = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    of_batch = NamedSharding(mesh, P("data"))
    jitted = jax.jit(block, in_shardings=(of_params, of_batch), out_shardings=of_batch)
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"2*b, {LENGTH}, {WIDTH}"), "float32")
    exported = jax.export.export(jitted, platforms=["cpu", "cuda", "tpu"])(params, x)
    bridge.save(exported, folder / "model", params=params, overwrite=True)

    requests = random.normal(size=(REQUESTS, LENGTH, WIDTH)).astype("float32")
    expected = jax.jit(block)(params, requests)
    np.savez(folder / "requests.npz", x=requests, expected=expected)


# On eight


def serve(folder: Path) -> None:
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", DEVICES)

    import bridge.meshes

    print(bridge.meshes.to_text(folder / "model"))
    (folder / "mesh.svg").write_text(bridge.meshes.to_svg(folder / "model"))
    started = time.perf_counter()
    model = bridge.load(folder / "model", mesh=bridge.meshes.mesh_of(folder / "model"))
    whole = sum(value.nbytes for value in model.params.values())
    parts = [value.addressable_shards[0].data.nbytes for value in model.params.values()]
    print(f"parameters: {whole / 1e3:.0f} KB, {sum(parts) / 1e3:.0f} KB of them on each device")
    data = np.load(folder / "requests.npz")
    model(data["x"][:LARGEST_BATCH])  # compiles
    print(f"loaded and compiled in {time.perf_counter() - started:.1f} s")

    with Server(model) as url, ThreadPoolExecutor(CLIENTS) as clients:
        started = time.perf_counter()
        answers = list(clients.map(lambda x: ask(url, x), data["x"]))
        seconds = time.perf_counter() - started
    difference = np.abs(np.array(answers) - data["expected"]).max()
    print(f"{REQUESTS} requests of {CLIENTS} clients in {seconds:.2f} s")
    print(f"greatest difference from one device: {difference:.1e}")

    # The same file on meshes of other sizes.
    for sizes in ((8, 1), (2, 2), (1, 1)):
        devices = jax.devices()[: sizes[0] * sizes[1]]
        mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), ("data", "model"))
        result = bridge.load(folder / "model", mesh=mesh)(data["x"])
        difference = np.abs(result - data["expected"]).max()
        print(f"on a mesh of {sizes[0]} x {sizes[1]}: {difference:.1e}")


class Server:
    """Answers over HTTP; what waits when a batch is done makes the next one."""

    def __init__(self, model) -> None:
        import numpy as np

        waiting = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = Future()
                waiting.put((np.array(json.loads(body), np.float32), answer))
                reply = json.dumps(answer.result().tolist()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_) -> None:
                pass

        def run() -> None:
            while (first := waiting.get()) is not None:
                batch = [first]
                while len(batch) < LARGEST_BATCH and not waiting.empty():
                    batch.append(waiting.get())
                # One shape, so one compilation, that the mesh divides.
                x = np.zeros((LARGEST_BATCH, LENGTH, WIDTH), np.float32)
                x[: len(batch)] = [request for request, _ in batch]
                results = np.asarray(model(x))
                for (_, answer), result in zip(batch, results, strict=False):
                    answer.set_result(result)

        self._waiting = waiting
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (run, self._http.serve_forever)
        ]

    def __enter__(self) -> str:
        for thread in self._threads:
            thread.start()
        return f"http://127.0.0.1:{self._http.server_port}"

    def __exit__(self, *_) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()


def ask(url: str, x):
    request = urllib.request.Request(url, json.dumps(x.tolist()).encode(), method="POST")
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read())


if __name__ == "__main__":
    main()
