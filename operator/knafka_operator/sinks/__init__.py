"""KafkaSinks: addresses of somebody's topics. What is where: README.md."""
