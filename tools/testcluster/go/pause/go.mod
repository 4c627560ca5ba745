module knafka/tests/cluster/pause

go 1.26.0
