"""Reports failures; for spark-submit: `spark-submit report_failures.py --help`."""

import sys

from knafka_jobs.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
