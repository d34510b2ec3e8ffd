"""The page of `inspect --html`: whole in itself, well-formed, and at peace in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from bridge.inspecting.html import to_html
from bridge.inspecting.markup import element, to_markup
from bridge.inspecting.pictures import areas_of, draw_sizes
from tests.jax_versions import ERF

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[31m"
PARAMS = {HOSTILE: np.ones((16, 8), np.float32), "step": np.int32(7)}
# As in test_inspect.py: `erf` is another operation in older versions of JAX.
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def predict(params, x):
    """Newer versions of JAX make the derivative of `erf` of operations that run only later."""
    y = x @ params[HOSTILE]
    return {"y": y * jax.lax.erf(jax.lax.stop_gradient(y)), "n": params["step"] + 1}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    (b,) = jax.export.symbolic_shape("b")
    exported = [
        jax.export.export(jax.jit(predict))(PARAMS, jax.ShapeDtypeStruct((size, 16), jnp.float32))
        for size in (b, 4)
    ]
    folder = tmp_path_factory.mktemp(HOSTILE.replace("/", "")) / "model"
    bridge.save({"serving_default": exported[0], "static": exported[1]}, folder, params=PARAMS)
    assets = folder / "assets"
    assets.mkdir()
    (assets / "<script>alert(3)<script>").write_text("vocabulary")
    return bridge.inspect(folder)


@pytest.fixture(scope="module")
def page(report):
    return to_html(report)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag


def _tags(page):
    parser = _Tags()
    parser.feed(page)
    return parser.found


def test_the_page_is_well_formed(page):
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert [child.tag for child in root] == ["head", "body"]


def test_names_from_the_file_are_text(page):
    tags = _tags(page)
    assert not {"script", "img", "iframe", "object", "embed", "link", "base", "form", "a"} & {
        tag for tag, _ in tags
    }
    attributes = {name for _, attributes in tags for name in attributes}
    assert not [name for name in attributes if name.startswith("on")]
    assert "alert(1)" in page
    assert "alert(3)" in page
    assert "\x1b" not in page


def test_nothing_is_fetched(page):
    attributes = [pair for _, found in _tags(page) for pair in found.items()]
    assert not {name for name, _ in attributes} & {"src", "href", "srcset", "data", "xlink:href"}
    values = " ".join(value or "" for name, value in attributes if name != "xmlns")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert not re.search(r"url\(|@import|//", values.replace("http-equiv", "") + style)
    assert "default-src 'none'" in values


def test_it_shows_what_the_report_has(page):
    text = re.sub(r"<[^>]*>", "", page)
    for part in (
        f"Readable from TensorFlow {ERF} on",
        "Signature serving_default",
        "float32[b,16]",
        "gradient 1",
        "stablehlo.composite at" if ERF == "2.18" else "mhlo.erf",
        f"`retarget` gives it a form for 2.{int(ERF.partition('.')[2]) - 1}",
        "trainable",
    ):
        assert part in text


def test_every_release_is_drawn(page):
    texts = re.findall(r"<title>TensorFlow (\S+): ([^<]*)</title>", page)
    assert [name for name, _ in texts] == [f"2.{minor}" for minor in range(14, 22)]
    reading = [name for name, why in texts if why == "reads the file"]
    assert reading == [f"2.{minor}" for minor in range(int(ERF[2:]), 22)]


def test_the_areas_fill_the_picture(report):
    areas = areas_of(report)
    assert [area.bytes for area in areas] == sorted((a.bytes for a in areas), reverse=True)
    assert _drawn(to_markup(draw_sizes(areas))) == pytest.approx(920 * 300, rel=0.01)


def _drawn(picture):
    sizes = re.findall(r'<rect [^>]*width="([\d.]+)" height="([\d.]+)"', picture)
    return sum(float(width) * float(height) for width, height in sizes)


def test_a_file_without_variables(tmp_path):
    exported = jax.export.export(jax.jit(lambda: jnp.zeros(())))()
    bridge.save(exported, tmp_path / "m", gradient_order=0)
    ElementTree.fromstring(to_html(bridge.inspect(tmp_path / "m")).removeprefix("<!DOCTYPE html>"))


def test_elements_escape_what_is_text():
    made = element("p", "<b>", element("b", "&"), "after", title='"')
    assert to_markup(made) == '<p title="&quot;">&lt;b&gt;<b>&amp;</b>after</p>'
    assert element("p", "\x00\ud800").text == r"\x00\ud800"


def test_the_command_writes_the_page(report, page, tmp_path):
    assert main(["inspect", report.path, "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
@pytest.mark.parametrize("errs", [False, True])
def test_a_browser_opens_it_without_an_error(page, tmp_path, errs):
    if errs:  # what the test must see
        page = page.replace("</main>", "<script>throw 1</script></main>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    console, document = _open(tmp_path / "page.html", tmp_path)
    assert ("Content Security Policy" in console) == errs
    assert bool(console) == errs
    assert f"Readable from TensorFlow {ERF} on" in document
    assert document.count("<svg") == page.count("<svg")


def _open(file, folder):
    """Return what a browser writes to its console, and the document as it then has it."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line), done.stdout
