"""Settings: where they come from, and that runs heed them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.core.config import Config
from chunkflow.core.settings import SETTINGS, setting, temporary_directory
from chunkflow.errors import ArgumentError

DEFAULTS = [{name: each.default for name, each in SETTINGS.items()}]
CPU = {"device": "cpu"}


def made(env: dict[str, str], *paths: Path) -> Config:
    return Config("chunkflow", defaults=DEFAULTS, paths=[*map(str, paths)], env=env)


def test_the_environment_comes_before_files_and_these_before_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("budget: 1GB\nsync: true\n")
    config = made({"CHUNKFLOW_BUDGET": "2GB"}, tmp_path)
    assert config.sources()["budget"] == ("2GB", "CHUNKFLOW_BUDGET in the environment")
    assert config.sources()["sync"] == (True, str(tmp_path / "mine.yaml"))
    assert config.sources()["device"] == ("auto", "default")
    with config.set(budget="3GB"):
        assert config.sources()["budget"] == ("3GB", "config.set")
    assert config.get("budget") == "2GB"


def test_names_in_files_that_are_none_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("bugdet: 1GB\n")
    assert made({}, tmp_path).unknown() == ["bugdet"]


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        *(("sync", word, True) for word in ("true", "True", "yes", "on", "1")),
        *(("checksum", word, False) for word in ("false", "no", "OFF", "0")),
        *((name, word, None) for name in ("threads", "piece", "checksum") for word in ("none", "None", "null")),
        ("threads", "2", 2),
    ],
)
def test_the_environment_has_the_words_of_files(name: str, said: str, value: Any) -> None:
    config = made({f"CHUNKFLOW_{name.upper()}": said})
    found = SETTINGS[name].checked(config.value(name))
    assert (found, type(found)) == (value, type(value))


def test_dashes_in_files_are_underlines(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("array-limit: 2GB\n")
    config = made({}, tmp_path)
    assert config.unknown() == []
    assert config.sources()["array_limit"] == ("2GB", str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bugdet", "1GB"), ("budget", "4 XB"), ("budget", -1), ("budget", None), ("device", 1.5), ("device", True),
        ("device", "gpu"), ("device", "cuda:one"), ("threads", 0), ("threads", "two"), ("threads", True),
        ("sync", "perhaps"), ("checksum", 2), ("array_limit", "-1"), ("temporary_directory", "/no/such/place"),
        ("progress", "sometimes"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_nothing_is_set(name: str, value: Any) -> None:
    before = cf.config.sources()
    with pytest.raises(ArgumentError, match=name):
        cf.config.set({"sync": True, name: value})
    assert cf.config.sources() == before


def test_a_wrong_variable_is_named_when_it_is_needed() -> None:
    code = "import numpy as np, chunkflow as cf; cf.sum(np.ones(3))"
    env = {**os.environ, "CHUNKFLOW_BUDGET": "much", "CHUNKFLOW_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "budget='much'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("env", "text", "said"),
    [
        ({"CHUNKFLOW_BUDGET": "much"}, "", "budget='much' .CHUNKFLOW_BUDGET in the environment.: cannot read"),
        ({"CHUNKFLOW_TEMPORARY_DIRECTORY": "/no/such"}, "", "there is no such directory"),
        ({}, "threads: -1", "threads=-1 .*mine.yaml.: it must be a whole number"),
        ({}, "budget: [1", "settings cannot be read: .*mine.yaml"),
        ({}, "- budget", "settings cannot be read: .*mine.yaml"),
        ({"CHUNKFLOW_CONFIG": "/no/such"}, "", "CHUNKFLOW_CONFIG names /no/such, which does not exist"),
    ],
)
def test_all_settings_are_checked_when_one_is_needed(tmp_path: Path, env: dict[str, str], text: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    config = made(env, tmp_path)
    assert list(config.sources()) == list(SETTINGS), "what is wrong is shown by `chunkflow info` all the same"
    for _ in range(2):
        with pytest.raises(ArgumentError, match=said):
            config.value("sync")
    assert re.search(said, config.unread or str(next(filter(None, map(config.refused, SETTINGS)))))


def test_a_wrong_value_that_is_set_over_does_no_harm() -> None:
    config = made({"CHUNKFLOW_BUDGET": "much"})
    with config.set(budget="1MB"):
        assert config.value("budget") == "1MB"


def test_an_empty_text_is_the_default() -> None:
    assert made({"CHUNKFLOW_BUDGET": ""}).value("budget") == SETTINGS["budget"].default


def test_names_that_are_likely_misspelt_are_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("colour: red")
    config = made({"CHUNKFLOW_BUDGTE": "1GB", "CHUNKFLOW_HOME": "/", "CHUNKFLOW_RATES": "0"}, tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert config.value("sync") is False
    assert [str(each.message) for each in seen] == [
        f"'colour' is no setting of chunkflow's, and a file has it: there are {', '.join(SETTINGS)}",
        "CHUNKFLOW_BUDGTE is no setting of chunkflow's: 'budget' is one",
    ]
    config.value("sync")


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.*?) \|$", page, re.MULTILINE)
    expected = [(name, json.dumps(s.default) if isinstance(s.default, str) else repr(s.default), s.says)
                for name, s in SETTINGS.items()]  # fmt: skip
    assert rows == expected


def test_a_run_takes_the_budget_that_is_set() -> None:
    with cf.config.set(budget="300kB"):
        assert cf.explain(np.sqrt, np.ones((100, 1000)), **CPU).budget == 300_000
        assert cf.explain(np.sqrt, np.ones((100, 1000)), budget="200kB", **CPU).budget == 200_000
        with cf.Budget("400kB"):
            assert cf.explain(np.sqrt, np.ones((100, 1000)), **CPU).budget == 400_000
        x = cf.open(np.ones((100, 1000)))
        np.testing.assert_array_equal(((x - x.mean()) + 1).compute(**CPU), 1.0)


def test_a_run_takes_the_cores_that_are_set() -> None:
    with cf.config.set(threads=1):
        assert cf.explain(np.sqrt, np.ones(100), **CPU).lanes == 1


def test_new_arrays_get_checksums_if_that_is_set(tmp_path: Path) -> None:
    def codecs(name: str) -> list[str]:
        return [type(codec).__name__ for codec in zarr.open_array(tmp_path / name).metadata.codecs]  # type: ignore[union-attr]

    for name, said in (("with", True), ("without", False)):
        with cf.config.set(checksum=said):
            cf.copy(np.arange(8), out=tmp_path / f"{name}.zarr", **CPU)
        assert ("Crc32cCodec" in codecs(f"{name}.zarr")) is said
    with cf.config.set(checksum=True):
        cf.copy(np.arange(8), out=tmp_path / "x.npy", **CPU)
        cf.copy(np.arange(8), out=tmp_path / "asked.zarr", checksum=False, **CPU)
    assert "Crc32cCodec" not in codecs("asked.zarr")


def test_a_bar_is_shown_if_that_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    with cf.config.set(progress="always"):
        cf.sum(np.ones(10), **CPU)
        assert "chunkflow" in capsys.readouterr().err
        cf.sum(np.ones(10), progress=False, **CPU)
        assert capsys.readouterr().err == ""


def test_outputs_are_on_the_disk_if_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd))
    cf.copy(np.arange(8), out=tmp_path / "a.npy", **CPU)
    assert not synced
    with cf.config.set(sync=True):
        cf.copy(np.arange(8), out=tmp_path / "b.npy", **CPU)
    assert synced


def test_temporary_files_lie_where_that_is_set(tmp_path: Path) -> None:
    seen: list[bool] = []
    x = cf.open(np.arange(60_000.0).reshape(300, 200))

    def look(block: Any) -> Any:
        seen.append(any(tmp_path.iterdir()))
        return block

    with cf.config.set(temporary_directory=str(tmp_path)):
        assert temporary_directory() == str(tmp_path)
        # A block that a map needs in full, and that is too large to be kept in memory, is stored first.
        np.fft.fft(x.T).map(look, dtype="c16", workspace=0).compute(budget="300kB", **CPU)
    assert any(seen)
    assert not any(tmp_path.iterdir())
    assert setting("temporary_directory") is None
    assert temporary_directory() == tempfile.gettempdir()


def test_the_settings_are_shown_with_their_origins() -> None:
    with cf.config.set(budget="3GB"):
        assert re.search(r"^budget +3GB +config\.set$", repr(cf.config), re.MULTILINE)
        assert "3GB" in cf.config._repr_html_()
