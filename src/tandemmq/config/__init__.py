"""Settings: a RocketMQ properties file and `--set key=value` become the options of the parts."""
