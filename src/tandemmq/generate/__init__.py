"""Files for the systems that watch a cluster: a Grafana board and Prometheus' alert rules."""
