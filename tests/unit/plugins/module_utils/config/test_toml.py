# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader against Python's own, and edits against what the text says afterwards."""

from __future__ import annotations

import datetime
import tomllib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge, toml

# Debian's own /etc/containerd/config.toml, abridged, and the shape of the toolkit's config.toml; both hand-made.
CONTAINERD = """\
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd"
"""
TOOLKIT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""
EVERYTHING = '''\
# Every kind of value and of table that TOML 1.0 has
title = "a \\"quoted\\" \\u00e9 \\t text"   # with a comment
'literal key' = 'C:\\nowhere'
"" = "an empty key"
multi = """
first \\
   joined
"quoted" ""two"" """
raw = \'\'\'
no \\escapes\'\'\'
int = [ +1_000, -2, 0, 0xdead_beef, 0o17, 0b1_0 ]
float = [1.5, -0.1e-3, 1e6, inf, -inf]
flags = [
  true, # yes
  false,
]
odt = 1979-05-27T07:32:00Z
ldt = 1979-05-27T07:32:00.5
day = 1979-05-27
hour = 07:32:00
point = { x = 1, y.z = 2, deep = { a = [{ b = 1 }] } }
site."google.com".ok = true
site.other = 1

[servers]
[servers.alpha]
ip = "10.0.0.1"
physical.color = "orange"
physical.shape = "round"

  [a.b.c]
  deep = 1

[a]
top = 2

[[products]]
name = "Hammer"
[products.details]
weight = 1
[[products]]
[[products.parts]]
id = 7
[[products.parts]]
id = 8
'''
TEXTS = [CONTAINERD, TOOLKIT, EVERYTHING, "", "a = 1", "# only a comment", "a = 1\r\n[b]\r\nc = 'x'\r\n"]


def plain(value):
    """What tomllib says, with dates and times as the text that we keep; None for what cannot be compared."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value


def ours(value):
    """What we say, with dates and times written as Python writes them."""
    if isinstance(value, dict):
        return {key: ours(item) for key, item in value.items()}
    if isinstance(value, list):
        return [ours(item) for item in value]
    if isinstance(value, toml.Moment):
        return plain(tomllib.loads(f"x = {value}")["x"])
    return value


def outcome(read, convert, text):
    try:
        return merge.json.dumps(convert(read(text)), sort_keys=True)
    except (tomllib.TOMLDecodeError, merge.Malformed):
        return "malformed"


@pytest.mark.parametrize("text", TEXTS)
def test_reads_what_python_reads(text):
    assert merge.same(ours(toml.parse(text)), plain(tomllib.loads(text)))


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_agrees_with_python_on_damaged_texts(data):
    """A character more or less somewhere: both take it, for the same data, or neither does."""
    text = data.draw(st.sampled_from([text for text in TEXTS if text]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(
            st.sampled_from(["", "", *"[]{}=.,#'\"\\\n_-+01ae \t\r\x00é", '"""', "'''", "[a]\n", "\nb = 1\n"])
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 2)) :]
        assume(text)
    # Python checks calendars (30 February) only; the text of a date that nobody changes is not ours to judge.
    assume("day is out of range" not in reason(text))
    assume("Surrogate" not in reason(text))
    assert outcome(toml.parse, ours, text) == outcome(tomllib.loads, plain, text), text


def reason(text):
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = 1\nb = \n", 2, 5),
        ("a = 1\na = 2\n", 2, 1),
        ('a = "x\n', 1, 5),
        ("[t]\n[t]\n", 2, 1),
        ("a = [1, 2\n", 1, 5),
        ("a = 1 2\n", 1, 7),
        ("a = {b = 1}\n[a.c]\n", 2, 1),
        ('a = "\\q"\n', 1, 6),
        ("= 1\n", 1, 1),
    ],
)
def test_says_where_a_text_is_broken(text, line, column):
    with pytest.raises(merge.Malformed) as caught:
        toml.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value.reason
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)


def test_comments_order_and_layout_stay():
    after = merge.merge(
        toml.parse(TOOLKIT),
        {
            "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
            "disable-require": True,
            "nvidia-container-cli": {"no-cgroups": False},
            "nvidia-container-runtime": {"modes": {"legacy": {"cuda-compat-mode": "ldconfig"}}},
        },
    )
    text = toml.edit(TOOLKIT, after)
    expected = TOOLKIT.replace("disable-require = false", "disable-require = true")
    expected = expected.replace(
        'video"\n', 'video"\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n'
    ).replace("load-kmods = true\n", "load-kmods = true\nno-cgroups = false\n")
    expected += '\n[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "ldconfig"\n'
    assert text == expected


def test_a_table_of_its_own_takes_the_new_key():
    name = "io.containerd.grpc.v1.cri"
    text = toml.edit(CONTAINERD, merge.merge(toml.parse(CONTAINERD), {"plugins": {name: {"enable_cdi": True}}}))
    assert text == CONTAINERD.replace(f'  [plugins."{name}"]\n', f'  [plugins."{name}"]\nenable_cdi = true\n')


def test_removal_takes_the_line_and_the_header_of_an_emptied_table():
    after = merge.remove(toml.parse("a = 1\n[b]\n# kept\nc = 2\n[d]\ne = 3\n"), ("b", "c"))
    assert toml.edit("a = 1\n[b]\n# kept\nc = 2\n[d]\ne = 3\n", after) == "a = 1\n# kept\n[d]\ne = 3\n"


def test_what_stands_inside_an_inline_table_or_behind_dots():
    text = "p = { x = 1 } # here\nq.r.s = 1\n[t]\nu.v = 1\n"
    after = merge.merge(toml.parse(text), {"p": {"y": [1]}, "q": {"r": {"w": True}}, "t": {"u": {"z": "é"}}})
    assert toml.edit(text, after) == (
        'p = { x = 1, y = [1] } # here\nq.r.s = 1\nq.r.w = true\n[t]\nu.v = 1\nu.z = "é"\n'
    )


def test_an_array_of_tables_is_not_changed():
    data = toml.parse(EVERYTHING)
    with pytest.raises(toml.Unsupported, match="products is an array of tables"):
        toml.edit(EVERYTHING, merge.merge(data, {"products": []}))
    assert tomllib.loads(toml.edit(EVERYTHING, merge.merge(data, {"title": "x"})))["products"][0]["name"] == "Hammer"


@pytest.mark.parametrize("value", [None, [None], {"a": None}, "\ud800"])
def test_what_toml_cannot_hold_is_refused(value):
    with pytest.raises(toml.Unsupported):
        toml.edit("a = 1\n", {"a": 1, "b": value})


keys = st.sampled_from(
    ["a", "b", "c", "deep", "top", "site", "servers", "alpha", "physical", "point", "x y", "é", "p.q"]
)
scalars = st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=4)
values = scalars | st.lists(scalars, max_size=3)
documents = st.dictionaries(
    keys, st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8), max_size=4
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TEXTS), documents)
def test_an_edited_text_says_what_was_wanted(text, wanted):
    assume("\\ud" not in ascii(wanted))
    data = toml.parse(text)
    try:
        after = merge.merge(data, wanted)
    except merge.Conflict:
        return
    edited = toml.edit(text, after)
    assert merge.same(plain(tomllib.loads(edited)), ours(after))
    assert [line for line in edited.splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]
    assert toml.edit(edited, after) == edited


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([CONTAINERD, TOOLKIT, EVERYTHING]), st.data())
def test_an_edited_text_lacks_what_was_removed(text, data):
    before = toml.parse(text)
    paths = [path for path in merge.leaves(before) if path[0] != "products"]
    after = before
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=4)):
        after = merge.remove(after, path[: data.draw(st.integers(1, len(path)))])
    edited = toml.edit(text, after)
    assert merge.same(plain(tomllib.loads(edited)), ours(after))


@settings(max_examples=200, deadline=None)
@given(documents, documents)
def test_written_from_nothing_and_changed(one, other):
    assume("\\ud" not in ascii([one, other]))
    first = toml.edit("", one)
    assert merge.same(tomllib.loads(first), one)
    assert merge.same(tomllib.loads(toml.edit(first, other)), other)


def test_a_byte_order_mark_is_passed_over_as_the_programs_do_and_stays():
    text = "\ufeff# of Notepad\na = 1\n[b]\nc = 2\n"
    assert toml.parse(text) == {"a": 1, "b": {"c": 2}}
    assert toml.edit(text, toml.parse(text)) == text
    assert toml.edit(text, {"a": 3, "b": {"c": 2, "d": 4}}) == "\ufeff# of Notepad\na = 3\n[b]\nc = 2\nd = 4\n"
    assert toml.edit("\ufeff", {"a": 1}) == "\ufeffa = 1\n"
