"""What pyproject.toml cannot say: modules in C, which are done without where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(f"chunkflow.{name.replace('/', '.')}", [f"chunkflow/{name}.c"], optional=True, py_limited_api=True)
        for name in ("system/native/_transfer", "system/native/_chunks")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
