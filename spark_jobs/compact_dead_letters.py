"""Compacts dead letters; for spark-submit: `spark-submit compact_dead_letters.py --help`."""

import sys

from knafka_jobs.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["compact", *sys.argv[1:]]))
