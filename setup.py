"""What pyproject.toml cannot say: loops in C, which are done without where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "chunkflow.devices._staging",
            ["chunkflow/devices/_staging.c"],
            optional=True,
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
