"""Pages of the examples in headless Chromium, with packages of npm beside them."""

from __future__ import annotations

import http.server
import os
import queue
import shutil
import signal
import subprocess
import threading

import pytest

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
_NPM = shutil.which("npm")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Sends the page back as it is once its program has said something. Chromium's own --dump-dom has a
# virtual clock, which can run out while WebAssembly is compiled.
_WATCH = b"""<script>
new MutationObserver((_, observer) => {
  observer.disconnect();
  fetch("/shown", { method: "POST", body: document.documentElement.outerHTML });
}).observe(document.getElementById("said"), { childList: true, characterData: true });
</script>
<script type="module">"""


def skip_without_chromium():
    """Skip the test where there is no Chromium."""
    if _CHROMIUM is None:
        pytest.skip("it needs Chromium")


def install(folder, package):
    """Install a package of npm below a folder, or skip the test, also without Chromium."""
    skip_without_chromium()
    if _NPM is None:
        pytest.skip("it needs npm")
    command = [_NPM, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    command += ["--prefix", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"npm has no {package} here: {done.stderr[-200:]}")


def page_when_done(folder, profile):
    """The page index.html of a folder as Chromium has it when the text of #said is another."""
    shown = queue.Queue()
    handler = _handler(folder, shown)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        command = [_CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", address]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, start_new_session=True, **quiet) as browser:
            try:
                return shown.get(timeout=120)
            except queue.Empty:
                pytest.fail("the page has said nothing for 120 s")
            finally:
                os.killpg(browser.pid, signal.SIGKILL)  # its renderers, too
                server.shutdown()


def _handler(folder, shown):
    """The class of a server of a folder, whose page is watched."""

    class WatchedPage(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=folder)

        def do_GET(self):
            if self.path != "/":
                super().do_GET()
                return
            page = (folder / "index.html").read_bytes()
            assert page.count(b'<script type="module">') == 1
            self._answer(page.replace(b'<script type="module">', _WATCH))

        def do_POST(self):
            shown.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._answer(b"")

        def _answer(self, body):
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return WatchedPage
