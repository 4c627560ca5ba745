"""The console: Brokers and Triggers as one page, with what somebody may do to them.

    Source -> document -> server -> page      whatever it is a console of
      local, local_document, opening          of a `knafka up`

Not here: what anything of it means; that is the operator's.
"""
