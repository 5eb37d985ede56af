"""What pyproject.toml cannot say: modules in C, which are done without where there is no compiler."""

from setuptools import Extension, setup

# Loops over numbers are made of vector instructions; without fused ones, sums are the same on all processors.
OPTIMIZED = ["-O3", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            f"chunkflow.system.native.{name}",
            [f"chunkflow/system/native/{name}.c"],
            optional=True,
            py_limited_api=True,
            extra_compile_args=options,
        )
        for name, options in (("_transfer", []), ("_chunks", []), ("_sums", OPTIMIZED), ("_bins", OPTIMIZED))
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
