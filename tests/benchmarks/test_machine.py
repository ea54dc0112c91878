"""A machine is described without naming places or people."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

from benchmarks.machine import describe, in_a_line


def test_a_description_names_what_computes():
    found = describe(None)
    assert found["cores"] >= 1
    assert found["versions"]["torch"]
    assert found["target"] is None


def test_it_names_no_path_no_user_and_no_host():
    told = json.dumps(describe(None)) + in_a_line(describe(None))
    for private in (str(Path.home()), str(Path.cwd()), platform.node()):
        assert private not in told
    assert f'"{getpass.getuser()}"' not in told
