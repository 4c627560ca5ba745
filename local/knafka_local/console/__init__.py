"""The console: Brokers and Triggers as one page, with what somebody may do to them.

    Source (local | a cluster's) -> document -> server -> page

Not here: what anything of it means; that is the operator's.
"""
