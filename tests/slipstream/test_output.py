"""A file that cannot be written in the end is refused at the beginning."""

import pytest
import typer

from slipstream.output import new_file, writable


def test_no_file_is_none():
    assert writable(None) is None


def test_a_new_file_may_lie_in_directories_that_are_not_there_yet(tmp_path):
    path = tmp_path / "a" / "b.json"
    assert writable(path) == path
    assert not path.parent.exists()
    new_file(path).write_text("new")


def test_a_file_that_is_there_may_be_written_over(tmp_path):
    path = tmp_path / "b.json"
    path.write_text("old")
    assert writable(path) == path
    assert path.read_text() == "old"


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match=f"{tmp_path} is a directory"):
        writable(tmp_path)


def test_a_file_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(typer.BadParameter, match=f"nothing can be made in {tmp_path}/file"):
        writable(tmp_path / "file" / "b.json")
