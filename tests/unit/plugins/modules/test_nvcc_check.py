# SPDX-License-Identifier: GPL-3.0-or-later
"""nvcc_check against compilers of the test."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import nvcc_check

# The program that it "compiles" is a shell script.
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.4, V12.4.131"; exit 0; fi
echo "$*" > {root}/arguments
{fault}
while [ "$1" != -o ]; do shift; done
grep -q __global__ "$3" || exit 9
printf '%s\\n' '#!/bin/sh' '{program}' > "$2"; chmod 755 "$2"
"""


@pytest.fixture
def nvcc(tmp_path):
    def make(name="nvcc", fault="", program="echo right"):
        path = tmp_path / name
        path.write_text(NVCC.format(root=tmp_path, fault=fault, program=program))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def run(capsys):
    def call(**arguments):
        with patch_module_args(arguments), pytest.raises(SystemExit):
            nvcc_check.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


def test_a_good_compiler(nvcc, run, tmp_path):
    compiler = nvcc()
    result = run(compilers=[compiler], capabilities=["8.0", "9.0"])
    assert not result["changed"]
    assert result["toolkits"] == [
        {"compiler": compiler, "version": "12.4.131", "compiled": True, "ran": False, "error": None}
    ]
    arguments = (tmp_path / "arguments").read_text()
    assert "arch=compute_80,code=sm_80" in arguments
    assert "arch=compute_90,code=sm_90" in arguments


def test_a_user_who_logs_in_gets_the_default_compiler(nvcc, run, tmp_path, monkeypatch):
    compiler = nvcc()
    shell = tmp_path / "shell"
    monkeypatch.setattr(nvcc_check, "SHELLS", (str(shell),))
    for version, right in (("12.4.131", True), ("11.8.89", False)):
        shell.write_text(f"#!/bin/sh\necho motd\necho /opt/old/bin/nvcc\necho 'cuda_11, V{version}'\n")
        shell.chmod(0o755)
        result = run(compilers=[compiler], login=compiler)
        assert result.get("failed", False) is not right
    assert "gets /opt/old/bin/nvcc (11.8.89) and not" in result["msg"]
    assert "(12.4.131); see what else sets PATH" in result["msg"]
    shell.write_text("#!/bin/sh\nexit 127\n")
    assert "gets none (of no version)" in run(compilers=[compiler], login=compiler)["msg"]


def test_the_program_is_run_when_asked(nvcc, run):
    assert run(compilers=[nvcc()], run=True)["toolkits"][0]["ran"] is True
    result = run(compilers=[nvcc(program='echo "cudaMalloc: no device" >&2; exit 1')], run=True)
    assert "cudaMalloc: no device" in result["msg"]
    assert result["toolkits"][0]["compiled"] is True
    assert result["toolkits"][0]["ran"] is False


def test_every_compiler_is_tried_and_all_faults_are_named(nvcc, run, tmp_path):
    bad = nvcc("bad", fault="echo 'unsupported GNU version' >&2; exit 1")
    result = run(compilers=[bad, str(tmp_path / "missing"), nvcc("good")])
    assert result["failed"]
    assert "unsupported GNU version" in result["msg"]
    assert f"{tmp_path}/missing is not there" in result["msg"]
    assert [toolkit["compiled"] for toolkit in result["toolkits"]] == [False, False, True]


def test_a_compiler_that_hangs(nvcc, run):
    result = run(compilers=[nvcc(fault="exec sleep 30")], timeout=1)
    assert "did not end within 1 s" in result["msg"]
