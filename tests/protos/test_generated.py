"""The generated code is what the protos say."""

import subprocess
import sys
from pathlib import Path

import pytest

import protos

FOLDER = Path(protos.__file__).parent
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def contents(folder):
    return {path.name: path.read_bytes() for pattern in GENERATED for path in folder.glob(pattern)}


def test_the_committed_code_is_generated_from_the_protos(tmp_path):
    """Byte for byte, with no file too many; `make protos` writes it."""
    pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    sources = sorted(path.relative_to(FOLDER.parent) for path in FOLDER.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *map(str, sources)]

    subprocess.run(command, cwd=FOLDER.parent, check=True)

    committed, generated = contents(FOLDER), contents(tmp_path / "protos")
    assert sorted(committed) == sorted(generated)
    assert [name for name in committed if committed[name] != generated[name]] == []
