"""Scaling: decides how many drains each Trigger and Sensor has, from the lags that Kafka
reports."""
