"""Settings: translates a RocketMQ properties file and `--set key=value` to the options of the components."""
