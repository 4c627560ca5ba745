pytest_plugins = ["support.kafka"]
