"""What is said in several places is said alike: versions, requirements, extras, and the checks that CI runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import chunkflow

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
RECIPE = yaml.safe_load((ROOT / "conda" / "recipe" / "recipe.yaml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FOR_A_GPU = {"cuda12", "cuda13", "nvcomp", "nvcomp-cuda12"}
FOR_DEVELOPERS = {"test", "mutants", "dev", "docs"}


def names(requirements: list[str]) -> dict[str, str]:
    """Limits on versions, by the names of what is required."""
    return {found.name: str(found.specifier) for found in map(Requirement, requirements)}


def own_extras(requirements: list[str]) -> set[str]:
    """Extras of ours that requirements name."""
    return {extra for r in map(Requirement, requirements) if r.name == PROJECT["name"] for extra in r.extras}


def installed() -> importlib.metadata.Distribution | None:
    """The editable installation of this checkout, beside which setuptools leaves metadata in the checkout itself."""
    for found in importlib.metadata.distributions(name=PROJECT["name"]):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if "dir_info" in origin and Path(unquote(urlparse(origin["url"]).path)) == ROOT:
            return found
    return None


# -- Version ------------------------------------------------------------------------------------------------------


def test_the_version_is_one() -> None:
    assert str(Version(chunkflow.__version__))


def test_the_version_is_that_of_the_distribution() -> None:
    if (found := installed()) is None:
        pytest.skip("another copy of chunkflow is installed here, or none")
    hint = 'installed before the last build: run pip install -e ".[dev]" again'
    assert Version(found.version) == Version(chunkflow.__version__), hint


def test_a_checkout_that_was_not_installed_has_a_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "chunkflow", tmp_path / "chunkflow", ignore=shutil.ignore_patterns("_version.py", "*.pyc"))
    alone = "import sys; sys.meta_path = [f for f in sys.meta_path if '__editable__' not in f.__module__]"
    told = subprocess.run(
        [sys.executable, "-c", f"{alone}; import chunkflow; print(chunkflow.__version__)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "0+unknown\n"


def test_the_fallback_is_the_last_release() -> None:
    (last, *_) = re.findall(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert PYPROJECT["tool"]["setuptools_scm"]["fallback_version"] == last == RECIPE["context"]["version"]


# -- Requirements -------------------------------------------------------------------------------------------------


def test_few_packages_are_needed() -> None:
    assert names(PROJECT["dependencies"]).keys() == {"numpy", "zarr", "numcodecs", "tqdm"}


def test_the_oldest_versions_are_the_floors() -> None:
    lines = (ROOT / "tests" / "constraints" / "oldest.txt").read_text().splitlines()
    oldest = names([line for line in lines if not line.startswith("#")])
    floors = names(PROJECT["dependencies"])
    assert oldest.keys() == floors.keys()
    for name, pin in oldest.items():
        assert Version(pin.removeprefix("==")) == Version(floors[name].removeprefix(">=")), name


def test_the_recipe_of_conda_needs_the_same() -> None:
    run = names(RECIPE["requirements"]["run"])
    assert run.pop("python") == PROJECT["requires-python"]
    assert run == names(PROJECT["dependencies"])
    host = names(RECIPE["requirements"]["host"])
    assert {name: host[name] for name in host.keys() - {"python", "pip"}} == names(
        PYPROJECT["build-system"]["requires"]
    )
    scripts = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["package"]["name"] == PROJECT["name"]
    compiled = [name for test in RECIPE["tests"] for name in test.get("python", {}).get("imports", ())][1:]
    folder = ROOT / "chunkflow" / "system" / "native"
    assert compiled == sorted(f"chunkflow.system.native.{path.stem}" for path in folder.glob("*.c"))
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]


def test_complete_is_all_that_needs_no_gpu() -> None:
    assert own_extras(EXTRAS["complete"]) == EXTRAS.keys() - FOR_A_GPU - FOR_DEVELOPERS - {"complete"}
    assert "complete" in own_extras(EXTRAS["test"])


def test_extras_that_are_named_exist() -> None:
    for requirements in EXTRAS.values():
        assert own_extras(requirements) <= EXTRAS.keys()


@pytest.mark.parametrize("group", PYPROJECT["dependency-groups"])
def test_a_group_is_the_extra_of_that_name(group: str) -> None:
    assert PYPROJECT["dependency-groups"][group] == [f"{PROJECT['name']}[{group}]"]
    assert group in EXTRAS


# -- Checks -------------------------------------------------------------------------------------------------------


def pythons() -> list[str]:
    found = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert f">={found[0]}" == PROJECT["requires-python"]
    return found


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_workflow_runs_the_checks_with_each_python() -> None:
    checks = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["checks"]
    assert checks["strategy"]["matrix"]["python"] == pythons()
    assert ".ci/run" in [step.get("run") for step in checks["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_and_files_that_a_workflow_runs_exist(path: Path) -> None:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    for step in steps:
        for name in re.findall(r"(?<!\S)(?:\.ci|tests)/\S+", step.get("run", "")):
            assert (ROOT / name).is_file(), name
            assert not name.startswith(".ci") or os.access(ROOT / name, os.X_OK), name


def test_tests_that_other_versions_run_exist() -> None:
    chosen = re.findall(r"(?<!\S)tests/\S+", (ROOT / ".ci" / "versions").read_text())
    assert len(chosen) > 7
    assert all((ROOT / name).exists() for name in chosen)


def test_one_wheel_is_built_for_all_versions_of_python() -> None:
    floor = f"cp{pythons()[0].replace('.', '')}"
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == f"{floor}-manylinux_*"
    assert f'"py_limited_api": "{floor}"' in (ROOT / "setup.py").read_text()


def test_a_bug_report_asks_for_the_machine() -> None:
    forms = ROOT / ".github" / "ISSUE_TEMPLATE"
    for name in ("bug", "feature", "question"):
        assert read(forms / f"{name}.yml")["body"]
    fields = {field.get("id"): field for field in read(forms / "bug.yml")["body"]}
    assert "`chunkflow info`" in fields["info"]["attributes"]["label"]
    assert fields["info"]["validations"]["required"]


def test_the_citation_names_the_project() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert cited["license"] == PROJECT["license"]
    assert cited["abstract"] == PROJECT["description"]
    assert cited["authors"] == PROJECT["authors"]
    assert cited["keywords"] == PROJECT["keywords"]
