"""Backtests a Sensor; for spark-submit: `spark-submit backtest_sensor.py --help`."""

import sys

from knafka_jobs.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["backtest", *sys.argv[1:]]))
