"""`python tools/bench/run.py`: the benchmark's launcher (see `bench.cli`)."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # tools/ is a source root that nothing installs.
    sys.path[0] = str(Path(__file__).parents[1])
    from bench.cli import main

    main()
