"""`python -m knafka`, which the image starts: runs the function that FUNCTION_TARGET names."""

import os
import runpy
import sys

MODULES = {
    "receive": "knafka.receiver",
    "dispatch": "knafka.dispatcher",
    "sense": "knafka.sensor",
}
"""Packages to run, by FUNCTION_TARGET."""

if __name__ == "__main__":
    target = os.environ.get("FUNCTION_TARGET", "")
    if target not in MODULES:
        print(
            f"error: FUNCTION_TARGET: invalid value: {target!r}: want {', '.join(MODULES)}",
            file=sys.stderr,
        )
        sys.exit(2)
    runpy.run_module(MODULES[target], run_name="__main__", alter_sys=True)
