"""`python -m knafka`: the function that FUNCTION_TARGET names; what the image starts."""

import os
import signal

# A container's first process has no default action: until the server listens to it, a SIGTERM
# would be lost, and the pod would live on for its whole grace period.
signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

import runpy  # noqa: E402
import sys  # noqa: E402

MODULES = {"receive": "knafka.receiver", "dispatch": "knafka.dispatcher"}

if __name__ == "__main__":
    target = os.environ.get("FUNCTION_TARGET", "")
    if target not in MODULES:
        print(
            f"error: FUNCTION_TARGET: invalid value: {target!r}: want {' or '.join(MODULES)}",
            file=sys.stderr,
        )
        sys.exit(2)
    runpy.run_module(MODULES[target], run_name="__main__", alter_sys=True)
