"""Replays failed events; for spark-submit: `spark-submit replay.py --help`."""

import sys

from knafka_jobs.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["replay", *sys.argv[1:]]))
